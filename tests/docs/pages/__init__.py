"""What in docs/ is made from the code: `python -m tests.docs.pages` writes it, `test_pages.py` finds it stale."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.docs.pages import settings_page, straight_path

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "docs"
#: How to make them anew, for whoever finds one stale.
COMMAND: Final = "make docs"


def made() -> dict[Path, str]:
    """Every generated file, with what has to stand in it."""
    return {
        DOCS / "settings.md": settings_page.page(),
        DOCS / "images" / "straight-path.svg": straight_path.picture(),
    }
