"""What tools, load and accounting must agree on. Imports nothing, because the tools' processes read it too."""

from __future__ import annotations

from typing import Final

#: Attempts of almost every tool: lost workers are the weather here, and not what a task may fail of.
MANY: Final = 1_000
#: Attempts of `fragile`: the second one is the last, and in a threads worker it runs in a process of its own.
FEW: Final = 2
#: Delays of `retries` and `gives_up`, in seconds.
RETRIES: Final = (0.5, 1.5, 3.0, 6.0)
EXHAUSTED_AFTER: Final = (0.3, 0.6)
