"""The script loader: a header is a contract, and each Lua file keeps its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcptasks.model import SCHEMA_VERSION
from mcptasks.store.scripts import SCRIPTS, SHARED, Script, parse
from tests.support.tasks import WORKER_WRITES

LUA = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "mcptasks/store/lua").glob("*.lua")}
STORE_TESTS = Path(__file__).parents[1] / "store"

HEADER = """-- It holds.
--
-- KEYS: task, others...
-- ARGV: id, limit,
--   rest...
-- RETURNS: DONE number | NO
--   | GONE
return {'DONE'}
"""


def script(text: str = HEADER, prelude: str = "") -> Script:
    """The parsed text."""
    return parse("demo", text, prelude)


# ------------------------------------------------------------------------------------------------ headers


def test_a_header_names_keys_arguments_and_answers_over_several_lines() -> None:
    """DESIGN: each file has a contract header."""
    demo = script()
    assert (demo.name, demo.keys, demo.args) == ("demo", ("task", "others..."), ("id", "limit", "rest..."))
    assert demo.answers == {"DONE", "NO", "GONE"}


def test_every_name_is_a_local_of_the_script_and_the_rest_is_a_table() -> None:
    """So that no script counts positions by hand; `k` hands the keys on to the prelude's functions."""
    lines = script(prelude="-- prelude").source.splitlines()
    assert lines[:8] == [
        "local task = KEYS[1]",
        "local others = {unpack(KEYS, 2)}",
        "local id = ARGV[1]",
        "local limit = ARGV[2]",
        "local rest = {unpack(ARGV, 3)}",
        "local k = {task = task}",
        f"local SCHEMA = {SCHEMA_VERSION}",
        "-- prelude",
    ]


@pytest.mark.parametrize("missing", ["KEYS", "ARGV", "RETURNS"])
def test_a_file_without_a_whole_header_is_refused(missing: str) -> None:
    """At import, not at the first call in production."""
    with pytest.raises(ValueError, match=r"demo\.lua needs a header with KEYS, ARGV and RETURNS"):
        script(HEADER.replace(f"-- {missing}:", f"-- {missing.lower()}:"))


def test_names_are_put_into_their_order_and_none_is_empty() -> None:
    """Redis knows only text; an absent value is the empty one."""
    keys, args = script().bind({"others": ["b", "c"], "task": "a"}, {"rest": [], "limit": None, "id": 7})
    assert (keys, args) == (["a", "b", "c"], [7, ""])


@pytest.mark.parametrize(
    ("keys", "args", "says"),
    [
        ({"task": "a"}, {"id": 1, "limit": 2, "rest": []}, r"key names missing \['others'\], unknown \[\]"),
        ({"task": "a", "others": []}, {"id": 1, "rest": []}, r"argument names missing \['limit'\], unknown \[\]"),
        ({"task": "a", "others": []}, {"id": 1, "limit": 2, "rest": [], "x": 1}, r"unknown \['x'\]"),
    ],
)
def test_a_missing_or_extra_name_is_a_programming_error(
    keys: dict[str, object], args: dict[str, object], says: str
) -> None:
    """It raises before anything is sent."""
    with pytest.raises(TypeError, match=says):
        script().bind(keys, args)


@pytest.mark.parametrize(
    ("reply", "parts"), [(["DONE", "1"], ["DONE", "1"]), ("NO", ["NO"]), (["GONE"], ["GONE"])], ids=str
)
def test_a_listed_answer_is_passed_on(reply: object, parts: list[str]) -> None:
    """Always as a list whose first item is the word."""
    assert script().check(reply) == parts


@pytest.mark.parametrize("reply", [["MAYBE"], [], None, "done", [None]], ids=str)
def test_an_answer_that_the_header_does_not_list_is_a_programming_error(reply: object) -> None:
    """A word nobody handles must not be taken for success."""
    with pytest.raises(RuntimeError, match=r"demo\.lua answered .* which its header does not list"):
        script().check(reply)


# ------------------------------------------------------------------------------------------------ our own files


def test_every_lua_file_is_a_script() -> None:
    """Each is in the package, indexes.lua and prelude.lua in front of each."""
    assert SCRIPTS.keys() == LUA.keys() - set(SHARED)
    shared = "\n".join(LUA[name] for name in SHARED)
    assert all(shared in one.source for one in SCRIPTS.values())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_answers_exactly_the_words_of_its_header(name: str) -> None:
    """The words in its text and those of the helpers (stale workers, answers that are taken), no more and no fewer."""
    options = {"PX", "BYSCORE", "BYLEX", "LIMIT", "WITHSCORES", "BY", "GET", "SORT", "XX", "ATTEMPTS"}
    said = set(re.findall(r"'([A-Z][A-Z_]+)'", LUA[name])) - options
    said -= set(re.findall(r"redis\.call\('([A-Z]+)'", LUA[name]))
    if "refused(" in LUA[name] and name != "renew":
        said |= {"STALE", "TERMINAL", "GONE"}
    if "take_answers(" in LUA[name]:
        said |= {"QUEUED", "WOKEN", "PARTIAL"}
    news = {"RUNNING", "WAITING", "CANCEL", "LOST"} if name == "renew" else set[str]()
    assert said - news == SCRIPTS[name].answers


@pytest.mark.parametrize("name", LUA)
def test_no_script_reads_payloads_or_looks_for_keys(name: str) -> None:
    """Lua's JSON has doubles and no empty list; KEYS and SCAN would look at other tasks."""
    code = "\n".join(line for line in LUA[name].splitlines() if not line.startswith("--"))
    for forbidden in ("cjson", "cmsgpack", "'KEYS'", "'SCAN'", "'FLUSH", "'EVAL", "math.random"):
        assert forbidden not in code


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_and_argument_of_a_script_is_used(name: str) -> None:
    """A name nobody reads is a contract nobody keeps; a key may also be handed on in `k`."""
    body = LUA[name].split("\n\n", 1)[1]
    handed_on = set(SCRIPTS[name].keys) if re.search(r"\bk\b", body) else set[str]()
    for one in {*SCRIPTS[name].keys, *SCRIPTS[name].args} - handed_on:
        assert re.search(rf"\b{one.removesuffix('...')}\b", body), one


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_answer_of_a_script_is_tested(name: str) -> None:
    """In the test file of its transition, or, for the refusals, in the table that all workers' writes share."""
    file = {"sweep": "sweep_and_reap", "reap": "sweep_and_reap", "active": "admission"}.get(name, name)
    tests = (STORE_TESTS / f"test_{file}.py").read_text()
    if name == "create":
        tests += (STORE_TESTS / "test_admission.py").read_text()
        # `Refused` carries what the two words mean.
        tests = tests.replace('Refused("closed"', '"CLOSED"').replace('Refused("owner"', '"FULL"')
        tests = tests.replace('Refused("final"', '"FINAL"')
    if name == "reap":
        tests += (STORE_TESTS / "test_input_limits.py").read_text()
    if name == "claim":
        tests += (STORE_TESTS / "test_retry.py").read_text()
    if name == "read":
        # The words for a record and for none.
        tests = tests.replace("is not None", '"FOUND"').replace("is None", '"GONE"')
    if name in ("answer", "cancel"):
        # Raised, as by a read.
        tests += (STORE_TESTS / "test_newer.py").read_text().replace("raises(SchemaTooNew", '"NEWER"')
    if name in WORKER_WRITES:
        tests += (STORE_TESTS / "test_fencing.py").read_text()
    # CLAIMED is what `claimed()` asserts in every other test.
    untested = {word for word in SCRIPTS[name].answers if f'"{word}"' not in tests} - {"CLAIMED"}
    assert untested == set()
