"""One pass of a tool over its journal: which question is this, was it answered, are we past what is recorded.

A call-style question's key is `{kind}-{digest}-{occurrence}`: the digest of what is asked, and how often this pass
asked just that. It does not depend on the order in which concurrent branches ask, so a shuffled replay binds the same
answers. A question that a tool returns (resolver, guard) is `r{round}-{digest}-{n}`: tools reuse their keys, the wire
may not (SEP-2663: a key is unique over the task's lifetime).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mcptasks.model import Guard, Journal, Question


def digest(method: str, params: Mapping[str, Any]) -> str:
    """What is asked, in twelve hex digits; request metadata (progress tokens and the like) does not count."""
    asked = {k: v for k, v in params.items() if k != "_meta"}
    canonical = json.dumps([method, asked], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class Replay:
    """The state of one pass."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._occurrences: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        # Answers to returned questions reach the tool through its parameters, not through a call.
        self._ahead = set(journal.answers) - (set(journal.guard.keys.values()) if journal.guard else set[str]())

    @property
    def replaying(self) -> bool:
        """Some recorded answer has not been asked for yet: what the tool says meanwhile was said before."""
        return bool(self._ahead)

    def mint(self, method: str, params: Mapping[str, Any]) -> Question:
        """The question with its key. Synchronous, so that keys follow the order of calls."""
        what = digest(method, params)
        n = self._occurrences[what] = self._occurrences.get(what, 0) + 1
        return Question(key=f"{method.split('/')[0]}-{what}-{n}", method=method, params=params)

    def step_name(self, key: str) -> str:
        """The journal's name of this pass's next step with that key."""
        n = self._steps[key] = self._steps.get(key, 0) + 1
        return f"{key}#{n}"

    def take(self, key: str) -> Any | None:
        """The recorded answer, or None; a taken one counts as replayed."""
        answer = self.journal.answers.get(key)
        if answer is not None:
            self._ahead.discard(key)
        return answer

    def extend(self, journal: Journal) -> None:
        """Answers that arrived while the tool was held are known from now on."""
        self.journal = journal

    def next_round(self, request_state: str | None, asked: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Guard:
        """The guard state after the tool returned these questions (its own key -> method, params)."""
        number = self.journal.guard.round + 1 if self.journal.guard else 1
        keys = {
            own: f"r{number}-{digest(method, params)}-{n}" for n, (own, (method, params)) in enumerate(asked.items(), 1)
        }
        return Guard(round=number, request_state=request_state, keys=keys)
