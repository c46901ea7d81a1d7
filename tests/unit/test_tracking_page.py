"""docs/tracking.md: its examples are read, and its tables name what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from mcptasks.tracker.config import Speaking, load
from mcptasks.tracker.servers import Servers

PAGE: Final = (Path(__file__).parents[2] / "docs/tracking.md").read_text()


def test_every_file_on_the_page_is_one() -> None:
    """And its servers can be used."""
    files = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "mcpServers" in block]
    assert len(files) >= 2
    for file in files:
        servers = Servers(file, environment={"REPORTS_TOKEN": "t"})
        assert servers.problems() == {}
        assert [servers.driver(name) for name in servers.names] != []


def test_the_settings_on_the_page_are_those_that_there_are() -> None:
    """By name; and the defaults in the first example are not needed."""
    table = PAGE.partition("| setting |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    there = {field.alias or name for name, field in Speaking.model_fields.items()}
    assert named == there
    assert load({"mcpServers": {"x": {"url": "http://x"}}})["x"].mcptasks == Speaking()
