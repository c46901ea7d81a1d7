"""docs/testing.md: its example runs as it stands, and it names only what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from mcptasks import testing

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/testing.md").read_text()


def test_the_example_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """With no setting and no server, under pytest's own rules for warnings."""
    blocks = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
    assert blocks.keys() == {"server.py", "test_server.py"}
    for name, code in blocks.items():
        (tmp_path / name).write_text(code)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MCPTASKS_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_is_short_and_names_only_what_there_is() -> None:
    """One screen or two, and nothing that was renamed since."""
    assert len(PAGE.splitlines()) < 90
    assert "docs/testing.md" in (ROOT / "README.md").read_text()
    named = set(re.findall(r"world\.(\w+)", PAGE))
    public = {name for name in dir(testing.World) if not name.startswith("_")} | {"operations"}
    assert named <= public
    assert public - {"operations"} - named == {"aclose"}
