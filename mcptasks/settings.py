"""Every knob, read once from `MCPTASKS_*` when `Tasks()` is made, and passed down from there."""

from __future__ import annotations

import base64
from importlib.util import find_spec
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mcptasks.errors import ConfigurationError
from mcptasks.model import Undeclared
from mcptasks.times import duration_ms


def _duration(value: object) -> object:
    try:
        return duration_ms(value) if isinstance(value, str) and not value.isdigit() else value
    except ConfigurationError as exc:
        # Pydantic puts the setting's name to a ValueError, and to nothing else.
        raise ValueError(str(exc)) from exc


def _names(value: object) -> object:
    return tuple(part.strip().lower() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _secrets(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _is_fernet_key(text: str) -> bool:
    try:
        return len(base64.urlsafe_b64decode(text)) == FERNET_KEY_BYTES
    except ValueError:
        return False


Milliseconds = Annotated[int, BeforeValidator(_duration), Field(gt=0)]
"""Milliseconds as an integer, or text with a unit ("15s")."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

#: The SDK refuses shorter keys.
STATE_KEY_BYTES: Final = 32

MAX_PORT: Final = 65_535

#: For signing and encrypting, 16 each.
FERNET_KEY_BYTES: Final = 32


class Settings(BaseSettings):
    """The settings of one process. Environment names are `MCPTASKS_` plus the field's name in capitals."""

    model_config = SettingsConfigDict(env_prefix="MCPTASKS_", frozen=True, extra="forbid", hide_input_in_errors=True)

    #: The store: Redis >= 6.2 or Valkey. Also the broker unless `broker_url` names another.
    redis_url: str = "redis://127.0.0.1:6379/0"
    #: Any Celery broker URL; empty: the store.
    broker_url: str = ""
    #: Put before every key. Give it a hash tag ("{mcp}:") to keep all keys in one slot.
    prefix: str = "mcptasks:"
    #: Celery queue of tools whose policy names none.
    queue: str = "mcptasks"
    #: Of your code, kept with every task and named where a later version cannot go on with it; empty: the MCP server's.
    version: str = ""

    #: How long a task stays readable after its creation, and again after its end.
    ttl_ms: Milliseconds = 24 * 3_600_000
    #: What clients are told to wait between polls while things move.
    poll_ms: Milliseconds = 1_000
    #: What clients are told to wait between polls while the task waits for a person.
    poll_parked_ms: Milliseconds = 5_000

    #: A run that is not renewed for this long is taken for dead.
    lease_ms: Milliseconds = 15_000
    #: How often a worker renews the leases of its runs. At most half a lease; by default three fit into one, so that
    #: one lost packet does not cost a run.
    renew_ms: Milliseconds = 5_000
    #: How often the one active sweeper looks for what is overdue.
    sweep_ms: Milliseconds = 2_000
    #: A queued task whose message was not claimed by then is sent again (doubling up to 5 minutes).
    resend_ms: Milliseconds = 5_000
    #: A parked task looks after itself at these distances before it goes cold. All far below any visibility timeout.
    countdowns_ms: tuple[Milliseconds, ...] = (2_000, 5_000, 15_000, 30_000, 60_000)
    #: How many parked tasks of the whole fleet may hold a countdown message in some worker's memory.
    countdown_budget: int = Field(default=200, ge=0)

    #: A task whose tool a worker has not got is offered again after these delays, for some minutes in all: in the midst
    #: of a deploy another worker may have it.
    deferrals_ms: tuple[Milliseconds, ...] = (
        *(1_000, 1_000, 2_000, 2_000, 5_000, 5_000, 10_000),
        *(10_000, 30_000, 30_000, 60_000, 60_000),
    )

    #: The largest arguments of a call, as JSON; a call with larger ones is refused.
    arguments_max: int = Field(default=1 * MIB, gt=0)
    #: The largest result that a tool may return, and a step, wherever it is kept; one that is larger is an error.
    result_max: int = Field(default=16 * MIB, gt=0)
    #: The largest result that is kept in the store itself. What is over it becomes a file with the artifacts.
    result_inline_max: int = Field(default=256 * KIB, gt=0)
    #: The largest answer to one question, as JSON.
    answer_max: int = Field(default=256 * KIB, gt=0)
    #: How many questions a task may have open at a time; the run that asks one more fails.
    questions_max: int = Field(default=64, gt=0)

    #: Where artifacts and large results are: a folder, or any URL that fsspec knows ("s3://bucket/mcptasks"). Workers
    #: and servers must all reach the same place.
    artifacts_url: str = ".mcptasks/artifacts"
    #: The largest artifact.
    artifact_max: int = Field(default=1 * GIB, gt=0)
    #: What all artifacts that one task keeps at a time may take.
    artifacts_total_max: int = Field(default=4 * GIB, gt=0)
    #: How many artifacts one task may have.
    artifacts_max: int = Field(default=100, gt=0)
    #: Bytes of an artifact in one answer to `resources/read`; what is larger is read in parts. Memory: about six times.
    artifact_read_max: int = Field(default=4 * MIB, gt=0)

    #: How often a task may be run from the top, by answers, timers, retries and lost workers together.
    replays_max: int = Field(default=1_000, gt=0)

    #: Unfinished tasks one caller may have, 0: any number. Without authentication all callers are one.
    owner_max: int = Field(default=0, ge=0)
    #: Unfinished tasks one tool may have, 0: any number.
    tool_max: int = Field(default=0, ge=0)
    #: Tasks that may wait for a worker, 0: any number.
    queue_max: int = Field(default=0, ge=0)

    #: Tasks that one `subscriptions/listen` may name; those beyond are not acknowledged, and have to be polled.
    listen_max: int = Field(default=1_000, gt=0)
    #: Open `subscriptions/listen` that name tasks, per server process; one more is refused with -32603.
    listeners_max: int = Field(default=10_000, gt=0)
    #: How often at most a listener is told of a change of one task's status message.
    push_progress_ms: Milliseconds = 250

    #: Names of the request headers that are kept for the run. `authorization` is refused here; see `keep_token`.
    headers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    #: Fernet keys, separated by commas, the same on every server and worker: what callers and tools say is sealed with
    #: the first, and all of them open it. Empty: it is stored as plain text. docs/encryption.md says what is sealed,
    #: and in which steps keys change.
    encryption_keys: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_secrets)] = ()
    #: Keep the caller's bearer token with the call, sealed, so that the tool can act in the caller's name as in a live
    #: call. Off: tools of a task see the caller's identity, and an empty token.
    keep_token: bool = False
    #: Refuse a `tasks/*` request by HTTP that carries no `Mcp-Name` header (real clients omit it, so off by default).
    strict_mcp_name: bool = False
    #: A durable tool's call from a client that did not declare the tasks extension: `wait` for its end on the fleet,
    #: run it `inline` in the server process, or `refuse` it. A tool's own policy goes first.
    undeclared: Undeclared = Undeclared.WAIT
    #: A waiting call of 2026-07-28 is answered after this long at the latest; the client, told to, comes back for more.
    #: Must stay below the clients' time limit for one request.
    bridge_wait_ms: Milliseconds = 20_000
    #: How often such a client comes back at most, its answers to questions included. The SDKs' clients do 10 times.
    bridge_rounds: int = Field(default=10, gt=0)
    #: Secrets of at least 32 bytes, separated by commas, the same on every server process: what a client carries from
    #: round to round can then be opened by all of them. The first seals, all open; a new one goes to the end first.
    request_state_keys: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_secrets)] = ()
    #: How long the server waits for the store before it answers -32603. Must leave room below 5 seconds.
    store_timeout_ms: Milliseconds = 2_000
    #: After SIGTERM a worker's runs may finish for this long; then they are interrupted and given back.
    shutdown_grace_ms: Milliseconds = 30_000
    #: How server, worker and console log: `text`, or `json`, an object per line with the task's and the trace's id.
    log_format: Literal["text", "json"] = "text"
    #: What Flower may see of a task: its life (`tasks`), or nothing (`off`).
    flower: Literal["tasks", "off"] = "tasks"
    #: Serve Prometheus metrics on this port, or on the first free one of a range ("9400-9409"), in server, worker and
    #: console processes; empty: none are kept. Needs the package extra `metrics`.
    metrics_port: str = Field(default="", pattern=r"^(\d{1,5}(-\d{1,5})?)?$")
    #: The address that `metrics_port` listens on. Metrics name tools, and have no login.
    metrics_host: str = "127.0.0.1"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.renew_ms * 2 > self.lease_ms:
            raise ValueError("renew_ms must be at most half of lease_ms, or one late renewal costs the run")
        if forbidden := {"authorization", "cookie", "proxy-authorization"} & set(self.headers):
            raise ValueError(f"headers may not name {', '.join(sorted(forbidden))}: credentials are never stored so")
        if self.keep_token and not self.encryption_keys:
            raise ValueError("keep_token needs encryption_keys: a caller's token is never stored in plain text")
        return self

    @field_validator("redis_url")
    @classmethod
    def _a_store(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("redis", "rediss"):
            raise ValueError("must be redis://host:port/number, or rediss:// for TLS")
        return url

    @field_validator("metrics_port")
    @classmethod
    def _ports(cls, text: str) -> str:
        first, _, last = text.partition("-")
        if text and not 0 < int(first) <= int(last or first) <= MAX_PORT:
            raise ValueError(f"must be a port, or a range of ports, from 1 to {MAX_PORT}")
        if text and find_spec("prometheus_client") is None:
            raise ValueError("needs the package prometheus-client: pip install 'mcptasks[metrics]'")
        return text

    @field_validator("request_state_keys")
    @classmethod
    def _long_and_different(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        secrets = [key.get_secret_value().encode() for key in keys]
        if any(len(secret) < STATE_KEY_BYTES for secret in secrets) or len(set(secrets)) < len(secrets):
            raise ValueError(
                f"must be different secrets of at least {STATE_KEY_BYTES} bytes each; "
                'make one with: python -c "import secrets; print(secrets.token_hex(32))"'
            )
        return keys

    @field_validator("encryption_keys")
    @classmethod
    def _fernet_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if keys and find_spec("cryptography") is None:
            raise ValueError("needs the package cryptography: pip install 'mcptasks[encryption]'")
        secrets = [key.get_secret_value() for key in keys]
        if not all(map(_is_fernet_key, secrets)) or len(set(secrets)) < len(secrets):
            raise ValueError(
                "must be different Fernet keys; make one with: "
                'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
            )
        return keys

    @classmethod
    def load(cls) -> Self:
        """The settings that the environment says.

        Raises:
            ConfigurationError: a variable cannot be read, or two contradict each other; it names them.
        """
        try:
            return cls()
        except ValidationError as exc:
            raise ConfigurationError("; ".join(problems(exc))) from None

    @property
    def broker(self) -> str:
        """The broker's URL: `broker_url`, else the store."""
        return self.broker_url or self.redis_url

    @property
    def broker_is_store(self) -> bool:
        """The queues are lists on the store's own server, below its prefix, so that a script can reach them."""
        return self.broker == self.redis_url


def problems(error: ValidationError) -> list[str]:
    """What is wrong with the settings, by variable, without their values: one of them may hold a password."""
    return [
        f"MCPTASKS_{str(detail['loc'][0]).upper() if detail['loc'] else '*'}: "
        f"{detail['msg'].removeprefix('Value error, ')}"
        for detail in error.errors(include_url=False, include_input=False)
    ]
