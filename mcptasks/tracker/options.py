"""The tracker's own knobs, from `MCPTASKS_TRACK_*`. What it shares with the rest of the house is in `Settings`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from mcptasks.errors import ConfigurationError
from mcptasks.settings import MIB, Milliseconds, problems


class TrackOptions(BaseSettings):
    """How one process tracks. Environment names are `MCPTASKS_TRACK_` plus the field's name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix="MCPTASKS_TRACK_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    #: The `mcpServers` file; empty: none.
    servers: str = ""
    #: How long a task is kept after its end.
    ttl_ms: Milliseconds = 7 * 86_400_000
    #: How long a task is kept after its last poll: only a fleet that stood still so long forgets a live one.
    live_ms: Milliseconds = 30 * 86_400_000
    #: What one call to a server may take, and as long may a submit wait for its turn.
    call_ms: Milliseconds = 30_000
    #: A tracker that is not heard of for this long has lost the task that it polls. Above three calls: a poll may
    #: deliver a cancel and answers, and look.
    lease_ms: Milliseconds = 120_000
    #: As long belongs an intent to its submitter. Above two calls: the wait for a turn, and the call.
    intent_ms: Milliseconds = 90_000
    #: How long a submit that fails waits for its remote task to be cancelled; that goes on in the background then.
    compensation_ms: Milliseconds = 5_000
    #: Polls at once in one process.
    polls: int = Field(default=256, gt=0)
    #: Polls at once of one server, in one process.
    polls_per_server: int = Field(default=64, gt=0)
    #: Events at once in one process, per consumer.
    deliveries: int = Field(default=64, gt=0)
    #: What a consumer may take for one event; its handler of questions may take any time.
    delivery_ms: Milliseconds = 30_000
    #: Failed attempts after which an event is a dead letter.
    attempts: int = Field(default=5, gt=0)
    #: The largest result that is stored whole; of a larger one there is a preview.
    result_max: int = Field(default=1 * MIB, gt=0)
    #: An idle tracker looks for what is due at least this often.
    look_ms: Milliseconds = 1_000

    @model_validator(mode="after")
    def _leases_outlast_calls(self) -> Self:
        for name, times in (("lease_ms", 3), ("intent_ms", 2)):
            if getattr(self, name) <= times * self.call_ms:
                raise ValueError(
                    f"{name} must be more than {times} times call_ms ({self.call_ms:,} ms), or what still goes on is "
                    "taken for lost"
                )
        return self

    @classmethod
    def load(cls) -> Self:
        """The options that the environment says.

        Raises:
            ConfigurationError: a variable cannot be read; it names it.
        """
        try:
            return cls()
        except ValidationError as exc:
            text = "; ".join(problems(exc)).replace("MCPTASKS_", "MCPTASKS_TRACK_")
            raise ConfigurationError(text) from None
