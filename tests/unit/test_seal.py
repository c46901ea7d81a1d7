"""What is sealed opens only with a key of the list, and only in the place it was sealed for."""

from __future__ import annotations

import pytest
from cryptography.fernet import Fernet

from mcptasks.errors import Sealed
from mcptasks.store.seal import MARK, Seal, is_sealed
from tests.requirements import covers
from tests.support.keys import SECRETS

OLD, NEW, OTHER = SECRETS
TASK, FIELD = "t" * 32, "a:sure"


@pytest.mark.parametrize("text", ['{"a":1}', "naïve \U0001f600", MARK, f"{MARK}gAAAA", f"{MARK}{MARK}", ""])
@pytest.mark.parametrize("keys", [(), (OLD,)], ids=["plain", "sealed"])
def test_every_text_comes_back_as_it_was(text: str, keys: tuple[object, ...]) -> None:
    """Also one that looks like a sealed one: a tool may say anything."""
    seal = Seal(SECRETS[:1] if keys else ())
    stored = seal.seal(TASK, FIELD, text)
    assert is_sealed(stored) == (seal.on and text != "")
    assert not keys or text.startswith(MARK) or text == "" or text not in stored
    assert seal.open(TASK, FIELD, stored) == text


@pytest.mark.parametrize("data", [b"", b"\x00\xff", MARK.encode()])
def test_bytes_come_back_as_they_were_in_ascii(data: bytes) -> None:
    """For whoever keeps bytes elsewhere."""
    seal = Seal([OLD])
    token = seal.seal_bytes(TASK, "chunk 0 of 1", data)
    assert token.isascii()
    assert seal.open_bytes(TASK, "chunk 0 of 1", token) == data


@covers("B09")
def test_the_first_key_seals_and_every_key_opens() -> None:
    """Rotation: a new key is known everywhere before it is the first anywhere, the old one until its tasks are gone."""
    before, during, after = Seal([OLD]), Seal([NEW, OLD]), Seal([NEW])
    assert during.open(TASK, FIELD, before.seal(TASK, FIELD, "word")) == "word"
    assert after.open(TASK, FIELD, during.seal(TASK, FIELD, "word")) == "word"
    assert Seal([OLD, NEW]).open(TASK, FIELD, during.seal(TASK, FIELD, "word")) == "word"


def test_plain_text_is_read_with_keys() -> None:
    """What was written before encryption was turned on, and what the scripts word themselves."""
    assert Seal([OLD]).open(TASK, FIELD, '{"action":"cancel"}') == '{"action":"cancel"}'


@covers("B09")
@pytest.mark.parametrize(
    ("keys", "why"), [((), "this process has no MCPTASKS_ENCRYPTION_KEYS"), ((OTHER,), "no key among this process's")]
)
def test_without_the_key_it_says_which_task_and_which_setting(keys: tuple[object, ...], why: str) -> None:
    """The id is a secret, so only its label."""
    stored = Seal([OLD]).seal(TASK, FIELD, "SECRET-1")
    with pytest.raises(Sealed, match=why) as refused:
        Seal([OTHER] if keys else ()).open(TASK, FIELD, stored)
    text = str(refused.value)
    assert f"Task {TASK[:10]}:" in text and "MCPTASKS_ENCRYPTION_KEYS" in text
    assert TASK not in text and stored not in text and OTHER.get_secret_value() not in text
    assert refused.value.__cause__ is None


@covers("B09")
@pytest.mark.parametrize(("task", "field"), [("u" * 32, FIELD), (TASK, "a:other"), (TASK, ""), (f"{TASK}a", ":sure")])
def test_moved_to_another_task_or_field_it_is_refused(task: str, field: str) -> None:
    """Who can write to the store must not be able to give one task another one's arguments, answers or caller."""
    seal = Seal([OLD])
    with pytest.raises(Sealed, match="written for another task or field"):
        seal.open(task, field, seal.seal(TASK, FIELD, "word"))


def test_a_damaged_one_is_refused() -> None:
    seal = Seal([OLD])
    stored = seal.seal(TASK, FIELD, "word")
    for damaged in (
        stored[:-8],
        f"{MARK}",
        f"{MARK}no base64",
        stored.replace(stored[40], "A" if stored[40] != "A" else "B"),
    ):
        with pytest.raises(Sealed, match="or it was damaged"):
            seal.open(TASK, FIELD, damaged)


def test_a_strangers_token_of_our_key_is_refused() -> None:
    """The key may seal other things, too; they are nobody's text here."""
    foreign = MARK + Fernet(OLD.get_secret_value()).encrypt(b"short").decode()
    with pytest.raises(Sealed, match="written for another task or field"):
        Seal([OLD]).open(TASK, FIELD, foreign)


def test_the_same_text_sealed_again_looks_the_same_only_where_it_is_asked_for() -> None:
    """A script that compares sees that nothing changed; who reads the store must not see which answers are equal."""
    seal = Seal([OLD])
    assert seal.seal_again(TASK, "msg", "Half way") == seal.seal_again(TASK, "msg", "Half way")
    assert seal.seal(TASK, FIELD, "yes") != seal.seal(TASK, FIELD, "yes")


def test_a_digest_is_compared_under_every_key_and_plain() -> None:
    """A plain digest of few possible arguments tells which they were."""
    plain = "d" * 64
    assert Seal(()).digests(plain) == [plain]
    stored, *others = Seal([NEW, OLD]).digests(plain)
    assert plain != stored
    assert others == [Seal([OLD]).digests(plain)[0], plain]


def test_nothing_is_sealed_without_a_key_by_mistake() -> None:
    with pytest.raises(ValueError, match="without MCPTASKS_ENCRYPTION_KEYS nothing can be sealed"):
        Seal(()).seal_bytes(TASK, FIELD, b"data")
