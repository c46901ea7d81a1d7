"""`docs/images/demo.svg`: what `mcptasks demo` really printed. `make demo-picture` runs it and draws it anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

from rich.console import Console
from rich.text import Text

#: As wide as the tour prints where there is no terminal.
_WIDTH: Final = 100
#: The scenes that are shown, of five: who looks at the first screen has a minute.
_SHOWN: Final = ("2 ", "5 ", "What happened")


def run() -> str:
    """What the tour prints, with the escapes of its colours.

    Raises:
        subprocess.CalledProcessError: it did not come out.
    """
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(_WIDTH)}
    command = [sys.executable, "-m", "mcptasks.cli.main", "demo"]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout


def picture(printed: str) -> str:
    """The tour's terminal as an SVG that fetches nothing."""
    parts = re.split(r"\n\n(?=\x1b\[1m)", printed)
    plain = [Text.from_ansi(part).plain for part in parts]
    shown = [part for part, text in zip(parts, plain, strict=True) if text.lstrip().startswith(_SHOWN)]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        console.print(Text("$ make demo", "bold"), Text("   (scenes 2 and 5 of 5)", "dim"), "\n")
        console.print(Text.from_ansi("\n\n".join(shown)))
        drawn = console.export_svg(title="mcptasks demo", unique_id="demo")
    # Whoever lacks the font gets the next best of their own machine's.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return re.sub(r"[ \t]+\n", "\n", drawn).replace("Fira Code", "Fira Code, DejaVu Sans Mono")
