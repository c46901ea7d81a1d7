"""The `mcpServers` file: what it may say, what a mistake in it is answered, and that it gives nothing away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from mcptasks.errors import ConfigurationError
from mcptasks.tracker.config import filled, load
from mcptasks.tracker.pointers import fill, find
from mcptasks.tracker.servers import Servers

#: As other programs write it, with keys that are theirs.
ECOSYSTEM: Final[dict[str, Any]] = {
    "mcpServers": {
        "remote": {
            "type": "streamable-http",
            "url": "https://${HOST:-tasks.example}/mcp?token=${URL_TOKEN:-}",
            "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "blue"},
            "disabled": False,
            "alwaysAllow": ["build"],
        },
        "local": {"command": "uvx", "args": ["reports", "--key=${TOKEN}"], "env": {"KEY": "${TOKEN}"}, "cwd": "/srv"},
    },
    "inputs": [],
}

TRIPLE: Final[dict[str, Any]] = {
    "status": {"tool": "job_status", "arguments": {"id": "$handle"}},
    "paths": {"handle": "/job/id", "status": "/job/state"},
}


def speaking(**settings: Any) -> dict[str, Any]:
    """A file of one server with these settings."""
    return {"mcpServers": {"x": {"url": "http://x", "mcptasks": settings}}}


def test_the_ecosystems_file_is_read_as_it_is(tmp_path: Path) -> None:
    """From a path or from what was read; foreign keys are passed over."""
    file = tmp_path / "servers.json"
    file.write_text(json.dumps(ECOSYSTEM))
    assert load(file) == load(str(file)) == load(ECOSYSTEM)
    assert Servers(file, environment={}).names == ["remote", "local"]
    speaking = Servers(file, environment={}).speaking("remote")
    assert (speaking.driver, speaking.max_concurrency, speaking.rate, speaking.timeout_ms) == ("auto", 8, None, 20_000)
    assert not speaking.honours_key


def test_references_are_filled_from_the_environment() -> None:
    """In every text; a default where the variable is missing or empty."""
    entries = load(ECOSYSTEM)
    remote = filled("remote", entries["remote"], {"TOKEN": "s3cret", "HOST": ""})
    assert (remote.url, remote.headers["Authorization"]) == ("https://tasks.example/mcp?token=", "Bearer s3cret")
    local = filled("local", entries["local"], {"TOKEN": "s3cret"})
    assert (local.args[1], local.env) == ("--key=s3cret", {"KEY": "s3cret"})
    assert filled("remote", entries["remote"], {"TOKEN": "t", "HOST": "h"}).url == "https://h/mcp?token="


def test_a_missing_variable_costs_its_own_server_only() -> None:
    """The message names the server, the setting and the variable, and the others are used as before."""
    document = {"mcpServers": {**ECOSYSTEM["mcpServers"], "open": {"url": "http://127.0.0.1:1/mcp"}}}
    servers = Servers(document, environment={})
    with pytest.raises(ConfigurationError, match=r"Server 'remote': .* no TOKEN, which headers.Authorization names"):
        servers.driver("remote")
    servers.driver("open")
    problems = servers.problems()
    assert problems.keys() == {"remote", "local"} and "args[1]" in problems["local"]


def test_nothing_secret_is_shown() -> None:
    """Not in a repr, and not in a message about a mistake beside it."""
    entries = load(ECOSYSTEM)
    remote = filled("remote", entries["remote"], {"TOKEN": "s3cret", "URL_TOKEN": "s3cret"})
    local = filled("local", entries["local"], {"TOKEN": "s3cret"})
    servers = Servers(ECOSYSTEM, environment={"TOKEN": "s3cret", "URL_TOKEN": "s3cret"})
    shown = repr(remote) + str(remote) + repr(local) + repr(servers) + repr(servers.driver("remote"))
    assert "s3cret" not in shown
    bad: dict[str, Any] = {
        "url": "http://s3cret",
        "headers": {"Authorization": ["s3cret"]},
        "mcptasks": {"rate": "s3cret"},
    }
    with pytest.raises(ConfigurationError) as caught:
        load({"mcpServers": {"x": bad}})
    assert "s3cret" not in str(caught.value) and "headers.Authorization" in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    broken = {"mcpServers": {"x": {"url": "http://x", "headers": {"Authorization": "${T}"}}}}
    with pytest.raises(ConfigurationError, match="line break") as caught:
        Servers(broken, environment={"T": "s3cret\r\nX: y"}).driver("x")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="does not begin with") as caught:
        Servers({"mcpServers": {"x": {"url": "${T}"}}}, environment={"T": "s3cret"}).driver("x")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "no object"),
        ({"mcpServers": []}, "no object"),
        ({"mcpServers": {"x": {}}}, "'x': give either `url`"),
        ({"mcpServers": {"x": {"url": "http://x", "command": "y"}}}, "give either `url`"),
        ({"mcpServers": {"x": {"url": "http://x", "type": "sse"}}}, "'sse' is not spoken here"),
        ({"mcpServers": {"x": {"command": "y", "type": "http"}}}, "'http' is not spoken here"),
        ({"mcpServers": {"x": "http://x"}}, "'x'"),
        (speaking(drivr="auto"), r"mcptasks\.drivr: Extra"),
        (speaking(driver="magic"), r"mcptasks\.driver"),
        (speaking(max_concurrency=0), r"mcptasks\.max_concurrency"),
        (speaking(rate=0), r"mcptasks\.rate"),
        (speaking(timeout="soon"), r"mcptasks\.timeout: .*not a duration"),
        (speaking(timeout=-1), r"mcptasks\.timeout"),
        (speaking(driver="triple"), "go together"),
        (speaking(triple=TRIPLE), "go together"),
        (speaking(driver="triple", triple=TRIPLE | {"paths": {"handle": "id", "status": ""}}), "no JSON pointer"),
        (
            speaking(driver="triple", triple=TRIPLE | {"cancel": {"tool": "stop", "arguments": {}}}),
            r"tool 'stop' do not hold",
        ),
        (speaking(driver="triple", triple=TRIPLE | {"statuses": {"done": "finished"}}), r"statuses\.done"),
    ],
)
def test_a_mistake_is_named_with_its_server_and_setting(document: Any, says: str) -> None:
    """Errors are for people."""
    with pytest.raises(ConfigurationError, match=says):
        load(document)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """And where in it the mistake is."""
    with pytest.raises(ConfigurationError, match=r"none\.json: cannot be read \(No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"mcpServers": {\n  "x": }')
    with pytest.raises(ConfigurationError, match=r"bad\.json: is no JSON: .* line 2, column 8"):
        load(tmp_path / "bad.json")
    (tmp_path / "latin.json").write_bytes(b'{"mcpServers": "\xe9"}')
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        load(tmp_path / "latin.json")


def test_a_server_that_is_not_there_is_named_with_those_that_are() -> None:
    """Also where a hook is for one."""
    servers = Servers(ECOSYSTEM, environment={"TOKEN": "t"})
    with pytest.raises(ConfigurationError, match="no server 'lcal' in mcpServers; there are: remote, local"):
        servers.driver("lcal")

    async def nobody() -> dict[str, str]:
        return {}

    with pytest.raises(ConfigurationError, match="no server 'other'"):
        Servers(ECOSYSTEM, auth={"other": nobody})
    assert servers.driver("remote") is servers.driver("remote")


def test_times_are_read_as_everywhere() -> None:
    """Seconds as a number, or text with a unit."""
    assert [load(speaking(timeout=t))["x"].mcptasks.timeout_ms for t in (5, 0.5, "250ms", "2m")] == [
        5_000,
        500,
        250,
        120_000,
    ]


def test_pointers_and_templates() -> None:
    """RFC 6901, and names that stand for values."""
    document = {"a": {"b/c": [10, {"~": None}]}, "": 1}
    found = [find(document, p) for p in ("", "/a/b~1c/0", "/a/b~1c/1/~0", "/a/b~1c/2", "/a/x", "/", "/a/b~1c/-1")]
    assert found == [document, 10, None, None, None, 1, None]
    template = {"id": "$handle", "deep": [{"t": "$arguments/topic"}, "$other", 7], "text": "a $handle"}
    values = {"$handle": 5, "$arguments": {"topic": "q3"}}
    assert fill(template, values) == {"id": 5, "deep": [{"t": "q3"}, "$other", 7], "text": "a $handle"}
