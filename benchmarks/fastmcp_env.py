"""FastMCP's own virtualenv, so that neither system's dependencies bend the other's."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PYTHON: Final = HERE.parent / ".venv-fastmcp" / "bin" / "python"

_REQUIREMENTS: Final = HERE / "requirements-fastmcp.txt"
_INSTALLED: Final = PYTHON.parent.parent / "installed.txt"

_VERSIONS = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


def ready() -> bool:
    """Whether the virtualenv holds exactly what the requirements ask for."""
    return PYTHON.exists() and _INSTALLED.exists() and _INSTALLED.read_text() == _REQUIREMENTS.read_text()


def ensure() -> None:
    """`.venv-fastmcp` holds the pinned packages; it is made anew when the pins have changed.

    Raises:
        RuntimeError: pip failed; its last lines are in the message.
    """
    if ready():
        return
    venv.create(PYTHON.parent.parent, clear=True, with_pip=True)
    done = subprocess.run(
        [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", _REQUIREMENTS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"pip could not install {_REQUIREMENTS.name}:\n{done.stderr[-2000:]}")
    _INSTALLED.write_text(_REQUIREMENTS.read_text())


def versions(python: Path | str = sys.executable) -> dict[str, str]:
    """Name and version of every package that interpreter sees."""
    return json.loads(subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout)
