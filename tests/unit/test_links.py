"""The URIs of artifacts: what they name, and what is none."""

from __future__ import annotations

from typing import Final

import pytest

from mcptasks.links import URIS, Link
from tests.requirements import covers

TASK: Final = "HAQnJ4o_-ySVgsJzpj98p8QpmrFNH589"
SHA: Final = "0123456789abcdef" * 4
URI: Final = f"{URIS}{TASK}/artifacts/{SHA}"


@pytest.mark.parametrize(
    ("query", "offset", "length"),
    [("", None, None), ("?offset=3", 3, None), ("?length=4", None, 4), ("?offset=0&length=0", 0, 0)],
)
def test_a_uri_names_an_artifact_or_a_part_of_it(query: str, offset: int | None, length: int | None) -> None:
    """And is made of what it names."""
    link = Link(TASK, SHA, offset, length)
    assert Link.parse(URI + query) == link
    assert link.uri == URI + query


@covers("F11", "W7")
@pytest.mark.parametrize(
    "uri",
    [
        "",
        URIS,
        f"{URIS}{TASK}",
        f"{URIS}{TASK}/artifacts/",
        f"{URIS}{TASK}/artifacts/{SHA[:-1]}",
        f"{URIS}{TASK}/artifacts/{SHA.upper()}",
        f"{URIS}{TASK}/artifacts/{SHA}/",
        f"{URIS}{TASK}/artifacts/../{SHA}",
        f"{URIS}../artifacts/{SHA}",
        f"{URIS}%2e%2e/artifacts/{SHA}",
        f"{URIS}{TASK[:-1]}/artifacts/{SHA}",
        f"{URIS}{TASK}x/artifacts/{SHA}",
        f"mcptasks://user@tasks/{TASK}/artifacts/{SHA}",
        f"mcptasks://tasks:80/{TASK}/artifacts/{SHA}",
        f"https://tasks/{TASK}/artifacts/{SHA}",
        f"file:///{TASK}/artifacts/{SHA}",
        "mcptasks://[tasks/",
        f"{URI}#x",
        f"{URI}?offset",
        f"{URI}?offset=",
        f"{URI}?offset=-1",
        f"{URI}?offset=1.5",
        f"{URI}?offset=1e3",
        f"{URI}?offset=٣",
        f"{URI}?offset={'9' * 30}",
        f"{URI}?path=/etc/passwd",
        f"{URI}?offset=1;length=2",
        f"{URI}?offset=1&offset=2",
        f"{URI}?offset=1&",
        f"{URI}?",
        f"{URI}\n",
        "mcptasks://tasks/\ud83d",
    ],
)
def test_what_is_no_uri_of_an_artifact_names_nothing(uri: str) -> None:
    """Every part of it is checked; none of it ever becomes a path."""
    assert Link.parse(uri) is None


@covers("P81")
def test_a_link_in_a_log_does_not_give_its_task_away() -> None:
    """Without authentication the id is the secret."""
    link = Link(TASK, SHA)
    for text in (f"{link}", f"{link!r}", "%s %r" % (link, link)):  # noqa: UP031 - as logging does
        assert TASK not in text
        assert TASK[:10] in text
