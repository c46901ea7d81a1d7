"""`python -m tests.chaos`: for CHAOS_MINUTES (1.5), from CHAOS_SEED (any). Exit code 1: a promise was broken."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from mcptasks.cli.interrupts import interrupt_on_termination
from tests.chaos.report import document, tables
from tests.chaos.run import Chaos

OUT: Final = Path(__file__).parent / "out"


def main() -> int:
    """Runs chaos and prints what it came to; 0 if every promise was kept."""
    minutes = float(os.environ.get("CHAOS_MINUTES") or 1.5)
    seed = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = OUT / f"{name}-{os.getpid()}"
    folder.mkdir(parents=True)
    screen = Console(stderr=True)
    screen.print(f"Chaos for {minutes:g} min, seed {seed}; evidence in {folder}", soft_wrap=True)
    try:
        with interrupt_on_termination(), screen.status("") as status:
            tell = status.update if screen.is_terminal else lambda _: None
            verdict = Chaos(folder, minutes, seed, tell).go()
    except KeyboardInterrupt:
        screen.print(f"Interrupted; no process of it is left. Evidence: {folder}", soft_wrap=True)
        return 130
    text = json.dumps(document(verdict), indent=2) + "\n"
    (OUT / f"{name}.json").write_text(text)
    (OUT / "latest.json").write_text(text)
    Console().print(tables(verdict))
    if verdict.sound:
        shutil.rmtree(folder)
        screen.print(f"Every promise was kept. {OUT / f'{name}.json'}", soft_wrap=True)
        return 0
    screen.print(f"[red]A promise was broken.[/] Evidence: {folder}; again with CHAOS_SEED={seed}", soft_wrap=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
