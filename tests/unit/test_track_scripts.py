"""The tracker's Lua files keep the contracts of their headers, as the store's do (test_scripts)."""

from __future__ import annotations

import re

import pytest

from mcptasks.store.scripts import SCRIPTS, texts
from mcptasks.tracker.store.base import SHARED_SCRIPTS, TRACK_SCRIPTS

LUA = texts("mcptasks.tracker.store")


def test_every_lua_file_is_a_script_and_none_hides_a_shared_one() -> None:
    """The prelude is in front of each, behind the store's indexes."""
    assert TRACK_SCRIPTS.keys() == LUA.keys() - {"prelude"}
    assert not TRACK_SCRIPTS.keys() & set(SHARED_SCRIPTS)
    assert set(SHARED_SCRIPTS) <= SCRIPTS.keys()
    shared = f"{texts('mcptasks.store')['indexes']}\n{LUA['prelude']}"
    assert all(shared in one.source for one in TRACK_SCRIPTS.values())


@pytest.mark.parametrize("name", TRACK_SCRIPTS)
def test_a_script_answers_exactly_the_words_of_its_header(name: str) -> None:
    """No more and no fewer."""
    said = set(re.findall(r"return \{'([A-Z]+)'", LUA[name]))
    assert said == TRACK_SCRIPTS[name].answers


@pytest.mark.parametrize("name", TRACK_SCRIPTS)
def test_every_key_and_argument_of_a_script_is_used(name: str) -> None:
    """A name nobody reads is a contract nobody keeps."""
    body = LUA[name].split("\n\n", 1)[1]
    for one in {*TRACK_SCRIPTS[name].keys, *TRACK_SCRIPTS[name].args}:
        assert re.search(rf"\b{one.removesuffix('...')}\b", body), one


@pytest.mark.parametrize("name", LUA)
def test_no_script_reads_payloads_or_looks_for_keys(name: str) -> None:
    """Lua's JSON has doubles and no empty list; KEYS and SCAN would look at other tasks."""
    code = "\n".join(line for line in LUA[name].splitlines() if not line.startswith("--"))
    for forbidden in ("cjson", "cmsgpack", "'KEYS'", "'SCAN'", "'FLUSH", "'EVAL", "math.random"):
        assert forbidden not in code
