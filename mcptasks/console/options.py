"""The console's own knobs, from `MCPTASKS_CONSOLE_*`. What it shares with the rest of the house is in `Settings`."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mcptasks.errors import ConfigurationError
from mcptasks.settings import Milliseconds, problems

#: Of the token; nobody guesses so many.
TOKEN_MIN: Final = 16
_PORTS: Final = {"http": 80, "https": 443}


def _parts(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class ConsoleOptions(BaseSettings):
    """How operators log in. Environment names are `MCPTASKS_CONSOLE_` plus the field's name in capitals.

    At least one way in is needed: the token, the header of a reverse proxy, or an OpenID provider.
    """

    model_config = SettingsConfigDict(
        env_prefix="MCPTASKS_CONSOLE_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    #: The operators' shared secret, at least 16 characters. Who logs in with it says their name themselves.
    token: SecretStr | None = None
    #: Name of the request header in which a reverse proxy says who the operator is; empty: none is believed.
    proxy_header: str = ""
    #: Networks from which that header is believed, separated by commas.
    proxy_from: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parts)] = ("127.0.0.0/8", "::1/128")
    #: The OpenID provider's URL, without `/.well-known/openid-configuration`; empty: none.
    oidc_issuer: str = ""
    #: The id that the OpenID provider has given the console.
    oidc_client_id: str = ""
    #: The secret that belongs to that id.
    oidc_client_secret: SecretStr | None = None
    #: The claim that names a person. Where it is `email`, the provider must have verified it.
    oidc_claim: str = "email"
    #: Who may enter, by that claim, separated by commas; `*`: everybody whom the provider lets in.
    oidc_operators: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parts)] = ()
    #: Where browsers find the console ("https://ops.example.com/console"); empty: wherever they ask. With https cookies
    #: are only sent encrypted. OpenID needs it.
    url: str = ""
    #: So long after a log-in the next one is due.
    session_ms: Milliseconds = 12 * 3_600_000
    #: Tasks of one page.
    page: int = Field(default=50, ge=1, le=500)

    @field_validator("token")
    @classmethod
    def _long(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < TOKEN_MIN:
            raise ValueError(
                f"must have at least {TOKEN_MIN} characters; "
                'make one with: python -c "import secrets; print(secrets.token_urlsafe(24))"'
            )
        return token

    @field_validator("proxy_from")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network)
        return networks

    @field_validator("url")
    @classmethod
    def _a_url(cls, url: str) -> str:
        if not url:
            return ""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("must be a URL like https://ops.example.com/console")
        # As browsers write it when they say where a form comes from.
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        port = "" if parts.port in (None, _PORTS[parts.scheme]) else f":{parts.port}"
        return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"

    @model_validator(mode="after")
    def _a_way_in(self) -> Self:
        if self.oidc_issuer and not (
            self.oidc_client_id and self.oidc_client_secret and self.oidc_operators and self.url
        ):
            raise ValueError(
                "OpenID needs MCPTASKS_CONSOLE_URL, MCPTASKS_CONSOLE_OIDC_CLIENT_ID, "
                "MCPTASKS_CONSOLE_OIDC_CLIENT_SECRET and MCPTASKS_CONSOLE_OIDC_OPERATORS, too"
            )
        if not (self.token or self.proxy_header or self.oidc_issuer):
            raise ValueError(
                "nobody could log in: set MCPTASKS_CONSOLE_TOKEN, MCPTASKS_CONSOLE_PROXY_HEADER or "
                "MCPTASKS_CONSOLE_OIDC_ISSUER"
            )
        return self

    @property
    def proxies(self) -> list[IPv4Network | IPv6Network]:
        """The networks of `proxy_from`."""
        return [ip_network(network) for network in self.proxy_from]

    @property
    def secure(self) -> bool:
        """Browsers reach the console by https."""
        return self.url.startswith("https://")

    @classmethod
    def load(cls) -> Self:
        """The options that the environment says.

        Raises:
            ConfigurationError: a variable cannot be read, or there is no way to log in; it names it.
        """
        try:
            return cls()
        except ValidationError as exc:
            text = "; ".join(problems(exc)).replace("MCPTASKS_*", "MCPTASKS_CONSOLE_*")
            names = {f"MCPTASKS_{name.upper()}:": f"MCPTASKS_CONSOLE_{name.upper()}:" for name in cls.model_fields}
            for short, name in names.items():
                text = text.replace(short, name)
            raise ConfigurationError(text) from None
