"""Reading a timeline: what the record tells and what is stored become one, the same on both ends of the wire."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from mcptasks.actors import operator_word, read_actor
from mcptasks.model import Reason, Record, Status
from mcptasks.observe.timeline import Timeline, timeline_of
from mcptasks.store.timeline import Noted
from tests.requirements import covers

#: Every word, with what goes with it as the scripts write it.
NOTED: Final = [
    Noted(at_ms=2_000, what="claim", words=("1", "1"), text="w1"),
    Noted(at_ms=3_000, what="progress", words=("3", "3500", "1.0", "2.5", "-"), text="Row 2"),
    Noted(at_ms=3_600, what="ask", words=("roots/list=roots-1", "elicitation/create=r1-2")),
    Noted(at_ms=3_600, what="park"),
    Noted(at_ms=4_000, what="answer", words=("client", "roots-1", "r1-2")),
    Noted(at_ms=5_000, what="claim", words=("2", "1"), text=""),
    Noted(at_ms=5_100, what="step", text="charge#1"),
    Noted(at_ms=5_200, what="artifact", words=("11",), text="a b.csv"),
    Noted(at_ms=5_300, what="sleep", words=("6000",)),
    Noted(at_ms=6_000, what="omitted", words=("17",)),
    Noted(at_ms=6_100, what="lost", words=("2", "w2")),
    Noted(at_ms=6_200, what="retry", words=("1", "500"), text="Busy"),
    Noted(at_ms=6_300, what="defer", words=("1", "500"), text="Waits"),
    Noted(at_ms=6_400, what="release"),
    Noted(at_ms=6_590, what="extend", words=("tool", "90000")),
    Noted(at_ms=6_600, what="log", text='{"level":"info","text":"x"}'),
    Noted(at_ms=6_550, what="note", text='{"text":"x","data":[1]}'),
    Noted(at_ms=6_700, what="cancel", words=("operator",), text="Moving house"),
    Noted(at_ms=6_710, what="cancel", words=("operator=olga%20o%27hara",), text="Moving house"),
    Noted(at_ms=6_720, what="retried", words=("as", "HaNMe1Ys", "operator=olga")),
    Noted(at_ms=6_800, what="of a later version", words=("1",)),
]


def record(status: Status = Status.CANCELLED, **more: Any) -> Record:
    """A task that has ended, unless another status is given."""
    times: dict[str, Any] = {"created_ms": 1_000, "updated_ms": 7_000, "started_ms": 2_000, "ttl_ms": 1, "poll_ms": 1}
    ended: dict[str, Any] = {"reason": Reason.CANCELLED} if status.terminal else {}
    names: dict[str, Any] = {"task_id": "x", "tool": "report", "owner": "ann", "revision": 1}
    return Record(**names, **times, **ended, status=status, token=1, attempt=1, **more)


@covers("W6")
def test_record_and_entries_become_one_timeline_in_the_order_of_time() -> None:
    """What was said a little before it was written stands where it was said, in the order in which it was said."""
    found = timeline_of(record(), NOTED, {"r1-2": "the question 'Sure?'"})
    assert [entry.at_ms for entry in found] == sorted(entry.at_ms for entry in found)
    assert len(found) == len(NOTED) + 2 and (found.entries[0].what, found.entries[-1].what) == ("create", "end")
    about = [(entry.what, entry.about) for entry in found]
    assert about[2] == (
        "progress",
        {"reports": 3, "until": "1970-01-01T00:00:03.500Z", "first": 1.0, "last": 2.5, "message": "Row 2"},
    )
    assert about[3][1]["questions"] == [
        {"key": "roots-1", "method": "roots/list"},
        {"key": "r1-2", "method": "elicitation/create", "label": "the question 'Sure?'"},
    ]
    assert [what for what, _ in about[15:19]] == ["log", "note", "extend", "cancel"]
    assert about[8] == ("artifact", {"name": "a b.csv", "size": 11}) and about[6][1] == {"run": 2, "attempt": 1}
    assert about[19] == ("cancel", {"by": "operator", "operator": "olga o'hara", "why": "Moving house"})
    assert about[20] == ("retried", {"as": "HaNMe1Ys", "by": "operator", "operator": "olga"})
    assert about[21] == ("of a later version", {}) and found.omitted == 17


@covers("W6")
def test_it_is_the_same_on_the_other_end_of_the_wire() -> None:
    """Through JSON and back."""
    found = timeline_of(record(version="1.2"), NOTED, {})
    assert Timeline.read(json.loads(json.dumps(found.told()))) == found


@covers("W6")
def test_a_record_alone_tells_of_its_one_run() -> None:
    """Of none, where there was none yet; of its end, where it has ended."""
    waits, runs = record(Status.QUEUED, ran_on=None), record(Status.RUNNING, ran_on="w1")
    assert [entry.what for entry in timeline_of(runs, [], {})] == ["create", "claim"]
    assert timeline_of(runs, [], {}).entries[1].about == {"run": 1, "attempt": 1, "worker": "w1"}
    assert timeline_of(waits, [], {}).entries[1].about == {"run": 1, "attempt": 1}


def test_a_line_is_for_people() -> None:
    """One line an entry."""
    lines = [str(entry) for entry in timeline_of(record(), NOTED, {})]
    assert lines[0] == "1970-01-01T00:00:01.000Z create: tool report"
    assert lines[4] == "1970-01-01T00:00:03.600Z park"
    rude = Noted(at_ms=2_000, what="note", text=json.dumps({"text": "a\n\x1b[2J"}))
    assert str(timeline_of(record(), [rude], {}).entries[1])[25:] == 'note: text "a\\n\\u001b[2J"'


@covers("W6")
def test_its_caller_reads_that_an_operator_acted_and_not_who() -> None:
    """Names of people, as those of hosts, are the operators' own business."""
    found = timeline_of(record(), NOTED, {}).for_owner()
    assert not any({"operator", "worker"} & entry.about.keys() for entry in found)
    assert {"by": "operator", "why": "Moving house"} in [entry.about for entry in found]


@pytest.mark.parametrize(
    "name", ["", "olga", "Olga O'Hara", "o=l\ng a", "\U0001f511 \u00fc@example.com", "half \ud83d"]
)
def test_an_operators_name_is_one_word_that_reads_back(name: str) -> None:
    """Words of an entry stand between blanks, whatever somebody calls themselves."""
    word = operator_word(name)
    assert len(word.split()) == 1 and word.isascii()
    assert read_actor(word) == ("operator", name.replace("\ud83d", "?"))
    assert len(read_actor(operator_word("x" * 500))[1]) == 80
