"""Keys to seal with."""

from __future__ import annotations

from typing import Final

from pydantic import SecretStr

#: Fernet keys, good for nothing else.
SECRETS: Final = (
    SecretStr("veN-L5n1nLzrA0lnhE1PJSubVbih-0s5YH8W6vyt_4s="),
    SecretStr("K8hTwwmMg7-q7CjJeiAZO-j_DRsmyT11MIN2WTz9m8I="),
    SecretStr("r0qnNe1mZadu6N_ZsNYzChsZgfbSZ7DGyonq-dg4QXU="),
)
