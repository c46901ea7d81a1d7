"""The pages that are made from the code are fresh, and the site builds strictly, out of what is here alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify

from tests.docs.pages import COMMAND, DOCS, ROOT, made, straight_path
from tests.docs.pages.settings_page import names


@pytest.mark.parametrize("path", made(), ids=lambda path: path.name)
def test_a_page_made_from_the_code_is_fresh(path: Path) -> None:
    assert path.read_text() == made()[path], f"make it anew: {COMMAND}"


def test_every_variable_that_the_code_names_is_on_the_settings_page() -> None:
    """`MCPTASKS_SAMPLES_*` is the sample tools' own."""
    text = "\n".join(path.read_text() for path in (ROOT / "mcptasks").rglob("*.py"))
    found = set(re.findall(r"MCPTASKS_[A-Z][A-Z_]*[A-Z]", text))
    # `MCPTASKS_TRACK_*` stands for all that begin so.
    begun = {name for name in found if any(known.startswith(f"{name}_") for known in names())}
    assert {name for name in found - begun if not name.startswith("MCPTASKS_SAMPLES")} - names() == set()


def test_the_picture_names_only_what_the_code_has(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = straight_path.STEPS[0]
    monkeypatch.setattr(straight_path, "STEPS", (drawn._replace(code="dispatch:Publisher.sent"),))
    with pytest.raises(AttributeError):
        straight_path.picture()
    monkeypatch.setattr(straight_path, "STEPS", (drawn._replace(script="created"),))
    with pytest.raises(KeyError):
        straight_path.picture()


def test_each_alert_leads_to_a_heading_of_the_operating_page_that_names_it() -> None:
    """Whoever is called at night comes out where it says what to do."""
    page = (DOCS / "operating.md").read_text()
    sections = {slugify(text.split("\n", 1)[0], "-"): text for text in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    for rule in rules:
        anchor = rule["annotations"]["runbook"].removeprefix("docs/operating.md#")
        assert f"`{rule['alert']}`" in sections[anchor], f"{rule['alert']} is not in {anchor}"
    assert set(re.findall(r"`(Mcptasks[A-Za-z]+)`", page)) == {rule["alert"] for rule in rules}


def test_the_site_builds_strictly_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env={"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    loaded = re.compile(r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* rel=\"?stylesheet[^>]* href=\"?https?:")
    assert [page.name for page in tmp_path.rglob("*.html") if loaded.search(page.read_text())] == []
