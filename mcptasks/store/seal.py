"""Seals what people and tools said before it goes into the store, and opens it on the way back.

A sealed text is `MARK` and a Fernet token (AES-128-CBC with HMAC-SHA256) of the text behind a digest of its place: the
task and the field. A token that was moved to another task or field is refused like one of a strange key. The scripts
carry it as any other text. Texts without the mark are plain, whoever has keys: those from before encryption was turned
on, and the few that the scripts word themselves.

For bytes outside the store (`seal_bytes`, `open_bytes`) the place is any name that tells them apart; who writes them in
pieces numbers these in it, and records how many there are. Bytes have no mark: record whether they are sealed
(`Seal.on`). A token is 4/3 of its bytes and some 130 more.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from mcptasks.errors import Sealed
from mcptasks.model import label

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

#: No JSON begins with it.
MARK: Final = "\x02"

#: Of the digest of a place, inside of what is signed: nobody can look for a place that collides.
_PLACE_BYTES: Final = 16

#: Messages of that many tasks are remembered.
_REMEMBERED: Final = 256


class Seal:
    """The keys of one process. The first seals, all of them open; without any, nothing is sealed."""

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        self._secrets = [key.get_secret_value().encode() for key in keys]
        self._fernet: MultiFernet | None = None
        self._refusal: tuple[type[Exception], ...] = ()
        if keys:
            # Only where it is used: the settings say what to install where it is missing.
            from cryptography import fernet  # noqa: PLC0415

            self._fernet = fernet.MultiFernet([fernet.Fernet(secret) for secret in self._secrets])
            self._refusal = (fernet.InvalidToken,)
        #: As `seal`, and the same sealed text for the same text while it is remembered: a script sees no difference.
        self.seal_again = lru_cache(_REMEMBERED)(self.seal)

    @property
    def on(self) -> bool:
        """What is written is sealed."""
        return self._fernet is not None

    def seal(self, task_id: str, name: str, text: str) -> str:
        """The text as it is to be stored in that field of the task. An empty one stays empty."""
        if text and self._fernet is not None:
            return MARK + self.seal_bytes(task_id, name, text.encode()).decode()
        # A tool may begin its message with anything.
        return MARK + text if text.startswith(MARK) else text

    def open(self, task_id: str, name: str, stored: str) -> str:
        """The text that was stored in that field of the task, sealed or plain.

        Raises:
            Sealed: it is sealed, and no key here opens it.
        """
        if not is_sealed(stored):
            return stored.removeprefix(MARK)
        return self.open_bytes(task_id, name, stored[len(MARK) :].encode()).decode()

    def open_all(self, task_id: str, fields: Mapping[str, str]) -> dict[str, str]:
        """The texts of these fields, each opened as its own.

        Raises:
            Sealed: one is sealed, and no key here opens it.
        """
        return {name: self.open(task_id, name, text) for name, text in fields.items()}

    def seal_bytes(self, task_id: str, name: str, data: bytes) -> bytes:
        """The bytes sealed, in ASCII. `name` is not stored: who opens them must know it.

        Raises:
            ValueError: there is no key (see `on`).
        """
        if self._fernet is None:
            raise ValueError("without MCPTASKS_ENCRYPTION_KEYS nothing can be sealed")
        return self._fernet.encrypt(_place(task_id, name) + data)

    def open_bytes(self, task_id: str, name: str, token: bytes) -> bytes:
        """The bytes that `seal_bytes` was given with that name.

        Raises:
            Sealed: no key here opens them, they were damaged, or they were sealed for another place.
        """
        if self._fernet is None:
            raise Sealed(_message(task_id, "this process has no MCPTASKS_ENCRYPTION_KEYS"))
        try:
            data = self._fernet.decrypt(token)
        except self._refusal:
            why = "no key among this process's MCPTASKS_ENCRYPTION_KEYS opens it, or it was damaged"
            raise Sealed(_message(task_id, why)) from None
        place = _place(task_id, name)
        if not hmac.compare_digest(data[:_PLACE_BYTES], place):
            raise Sealed(_message(task_id, "it was written for another task or field and moved here"))
        return data[_PLACE_BYTES:]

    def digests(self, text: str) -> list[str]:
        """Of a text that is only compared: the digest to store, and behind it all that may have been stored for it.

        With keys it takes one of them to find out what a digest is of.
        """
        keyed = [hmac.new(secret, text.encode(), hashlib.sha256).hexdigest() for secret in self._secrets]
        return [*keyed, text]


def is_sealed(stored: str) -> bool:
    """The stored text is a sealed one."""
    return stored.startswith(MARK) and not stored.startswith(MARK * 2)


def _place(task_id: str, name: str) -> bytes:
    # As JSON, so that no task and name together look like another pair.
    return hashlib.sha256(json.dumps([task_id, name]).encode()).digest()[:_PLACE_BYTES]


def _message(task_id: str, why: str) -> str:
    return (
        f"Task {label(task_id)}: what is stored of it is sealed, and {why}. Every server and worker needs the "
        "same keys; one that is to go stays in the list, behind the others, until its tasks are gone."
    )
