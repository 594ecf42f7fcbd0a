"""Every environment variable of the platform, named once, and the frozen `Settings` built from them.

Nothing is read at import. `Settings.load(environment, needs=…)` raises `UsageError` with one line that
names the variable when a value is missing or senseless.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from activity_platform.failures import UsageError

T = TypeVar("T")

DOMAINS = ("activity", "audience", "last_activity")
MIN_SECRET_BYTES = 32  # RFC 7518 3.2: an HS256 key has at least the size of the hash
HMAC_ALGORITHMS = ("HS256", "HS384", "HS512")
KEY_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip


class Need(Enum):
    """What an entry point can't do without; missing ones are named when it starts."""

    DATABASE = "DATABASE_URL"
    REDIS = "REDIS_URL"
    OBJECTS = "S3_BUCKET"
    TOKENS = "JWT_SECRET"


DOMAIN_NEEDS: Mapping[str, frozenset[Need]] = {
    "activity": frozenset({Need.DATABASE}),
    "audience": frozenset({Need.DATABASE, Need.REDIS, Need.OBJECTS}),
    "last_activity": frozenset({Need.DATABASE, Need.REDIS}),
}


def _text(value: str) -> str:
    return value


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value and not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError("is not a " + " or ".join(f"{scheme}://" for scheme in schemes) + " address")
        return value.rstrip("/") if "http" in schemes else value

    return parse


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return int(value)

    return parse


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number <= most:  # NaN is neither
            raise ValueError(f"is not a number from {least:g} to {most:g}")
        return number

    return parse


def _boolean(value: str) -> bool:
    words = {"1": True, "true": True, "0": False, "false": False}
    if value.lower() not in words:
        raise ValueError("is not one of 1, 0, true, false")
    return words[value.lower()]


def _boolean_or_none(value: str) -> bool | None:
    return _boolean(value) if value else None


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _domains(value: str) -> tuple[str, ...]:
    chosen = _words(value)
    if not chosen or set(chosen) - set(DOMAINS):
        raise ValueError("is not a comma-separated choice of " + ", ".join(DOMAINS))
    return tuple(domain for domain in DOMAINS if domain in chosen)


def _origins(value: str) -> tuple[str, ...]:
    origins = _words(value)
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != "*" and (scheme not in ("http", "https") or not host or "/" in host):
            raise ValueError("is not a comma-separated list of origins such as https://app.example.com")
    return origins


def _seconds_list(value: str) -> tuple[int, ...]:
    words = _words(value)
    if not all(word.isascii() and word.isdigit() and int(word) <= 86_400 for word in words):
        raise ValueError("is not a comma-separated list of whole seconds, each at most 86400")
    return tuple(int(word) for word in words)


def _algorithm(value: str) -> str:
    if value not in HMAC_ALGORITHMS + KEY_ALGORITHMS:
        raise ValueError("is not one of " + ", ".join(HMAC_ALGORITHMS + KEY_ALGORITHMS))
    return value


def _secret(value: str) -> str:
    if value and len(value.encode()) < MIN_SECRET_BYTES:
        raise ValueError(f"is shorter than {MIN_SECRET_BYTES} bytes")
    return value


@dataclass(frozen=True)
class Variable:
    """How one environment variable is read. `about` is the sentence of the configuration page."""

    name: str
    parse: Callable[[str], Any]
    default: str
    about: str
    secret: bool = False


def _variable(name: str, parse: Callable[[str], T], default: str, about: str, *, secret: bool = False) -> T:
    # The parsed default is the field's default, so `Settings()` is usable as it stands in tests.
    return field(
        default=parse(default),
        repr=not secret,
        metadata={"variable": Variable(name, parse, default, about, secret)},
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The platform's settings. A text that is not set is empty; `needs` of `load` says which may not be."""

    domains: tuple[str, ...] = _variable(
        "DOMAINS", _domains, ",".join(DOMAINS), "What is loaded and required, comma-separated."
    )
    database_url: str = _variable(
        "DATABASE_URL",
        _url("postgresql", "postgres"),
        "",
        "The platform's PostgreSQL database (15 to 18).",
        secret=True,
    )
    redis_url: str = _variable(
        "REDIS_URL",
        _url("redis", "rediss", "unix"),
        "",
        "Redis (7.0 or newer) or Valkey (8 or newer): queues and cache. Set maxmemory-policy to noeviction.",
        secret=True,
    )
    s3_bucket: str = _variable("S3_BUCKET", _text, "", "The bucket of uploaded files and results.")
    s3_endpoint_url: str = _variable(
        "S3_ENDPOINT_URL", _url("http", "https"), "", "An S3 other than AWS; empty for AWS."
    )
    line_api_base_url: str = _variable(
        "LINE_API_BASE_URL", _url("http", "https"), "https://api.line.me", "Where the LINE Messaging API is."
    )
    jwt_algorithm: str = _variable(
        "JWT_ALGORITHM", _algorithm, "HS256", "The one algorithm that a token may be signed with."
    )
    jwt_secret: str = _variable(
        "JWT_SECRET",
        _secret,
        "",
        f"The key of an HS algorithm, at least {MIN_SECRET_BYTES} bytes.",
        secret=True,
    )
    jwt_public_key: str = _variable(
        "JWT_PUBLIC_KEY", _text, "", "The PEM public key of another algorithm; or name JWT_JWKS_URL."
    )
    jwt_jwks_url: str = _variable(
        "JWT_JWKS_URL", _url("http", "https"), "", "Where the issuer publishes its public keys (JWKS)."
    )
    jwt_audience: str = _variable("JWT_AUDIENCE", _text, "", "The `aud` that a token must hold, if set.")
    jwt_issuer: str = _variable("JWT_ISSUER", _text, "", "The `iss` that a token must hold, if set.")
    cors_origins: tuple[str, ...] = _variable(
        "CORS_ORIGINS", _origins, "", "Browser origins that may call the API, comma-separated; empty: none."
    )
    rollup_lag_seconds: float = _variable(
        "ROLLUP_LAG_SECONDS", _number(0, 86_400), "10", "How far the fold stays behind the clock."
    )
    retention_days: int = _variable(
        "RETENTION_DAYS",
        _integer(0, 36_500),
        "30",
        "Days that a month of events is kept after its end; 0 drops nothing.",
    )
    partitions_ahead: int = _variable(
        "PARTITIONS_AHEAD", _integer(1, 120), "3", "How many coming months have their partition."
    )
    edge_half_life_days: float = _variable(
        "EDGE_HALF_LIFE_DAYS",
        _number(0.001, 36_500),
        "30",
        "After how many days an edge counts half when it is read.",
    )
    audience_retry_seconds: tuple[int, ...] = _variable(
        "AUDIENCE_RETRY_SECONDS",
        _seconds_list,
        "10,60,300,900,3600",
        "How long a failed audience message waits before each further attempt.",
    )
    line_requests_per_second: int = _variable(
        "LINE_REQUESTS_PER_SECOND",
        _integer(1, 1_000_000),
        "2000",
        "The most profile requests a second and channel, over all runs.",
    )
    profile_fresh_hours: float = _variable(
        "PROFILE_FRESH_HOURS", _number(0, 87_600), "6", "How long a fetched profile counts as fresh."
    )
    archive_before_drop: bool | None = _variable(
        "ARCHIVE_BEFORE_DROP",
        _boolean_or_none,
        "",
        "Whether a month must lie in the training corpus before it is dropped; default: if S3_BUCKET is set.",
    )
    history_days: int = _variable(
        "HISTORY_DAYS", _integer(1, 36_500), "14", "Days that Dagster's runs, events and logs are kept."
    )
    message_days: int = _variable(
        "MESSAGE_DAYS",
        _integer(1, 36_500),
        "30",
        "Days that a message id counts as known; after that the same one would be done again.",
    )
    import_days: int = _variable(
        "IMPORT_DAYS",
        _integer(1, 36_500),
        "90",
        "Days that finished imports and their files are kept; an audience's newest stays.",
    )
    alert_webhook_url: str = _variable(
        "ALERT_WEBHOOK_URL",
        _url("http", "https"),
        "",
        "Gets a POST with JSON for each run that failed; empty: none.",
        secret=True,
    )
    dagster_postgres_url: str = _variable(
        "DAGSTER_POSTGRES_URL",
        _url("postgresql", "postgres"),
        "",
        "Dagster's own database; read by dagster.yaml.",
        secret=True,
    )

    @classmethod
    def variables(cls) -> dict[str, Variable]:
        """Field name → its environment variable, in the order of the configuration page."""
        return {item.name: item.metadata["variable"] for item in fields(cls)}

    @classmethod
    def load(cls, environment: Mapping[str, str], *, needs: Iterable[Need] = ()) -> Settings:
        """The settings in `environment`. An empty value counts as not set.

        A secret may stand in a file: `JWT_SECRET_FILE=/run/secrets/jwt`. Raises `UsageError` for the first
        value that is missing or senseless.
        """
        values: dict[str, Any] = {}
        for name, variable in cls.variables().items():
            text = _look_up(variable, environment)
            if text:
                try:
                    values[name] = variable.parse(text)
                except ValueError as error:
                    raise UsageError(f"{variable.name} {error}") from None
        settings = cls(**values)
        settings.check(needs)
        return settings

    def check(self, needs: Iterable[Need]) -> None:
        """Raises `UsageError` for the first of `needs` that is not met."""
        wanted = set(needs)
        for need in Need:
            if need not in wanted:
                continue
            if need is Need.TOKENS:
                self._check_token_key()
            elif not getattr(self, need.value.lower()):
                raise UsageError(
                    f"{need.value} is not set: export it, or start `activity-platform services` in another"
                    " terminal, which this command then finds"
                )

    @property
    def must_archive(self) -> bool:
        """Whether a month must be archived before it is dropped."""
        return bool(self.s3_bucket) if self.archive_before_drop is None else self.archive_before_drop

    def domain_needs(self) -> frozenset[Need]:
        """What the chosen domains can't do without."""
        return frozenset().union(*(DOMAIN_NEEDS[domain] for domain in self.domains))

    def _check_token_key(self) -> None:
        if self.jwt_algorithm in HMAC_ALGORITHMS:
            if not self.jwt_secret:
                raise UsageError(f"JWT_SECRET is not set: {self.jwt_algorithm} tokens are checked with it")
            if self.jwt_public_key or self.jwt_jwks_url:
                raise UsageError(
                    f"JWT_ALGORITHM is {self.jwt_algorithm}, which takes JWT_SECRET alone: "
                    "unset JWT_PUBLIC_KEY and JWT_JWKS_URL, or choose their algorithm"
                )
        elif bool(self.jwt_public_key) == bool(self.jwt_jwks_url):
            raise UsageError(
                f"JWT_PUBLIC_KEY or JWT_JWKS_URL must be set, one of them: {self.jwt_algorithm} needs"
                " a public key"
            )


def _look_up(variable: Variable, environment: Mapping[str, str]) -> str:
    text = environment.get(variable.name, "")
    path = environment.get(f"{variable.name}_FILE", "")
    if not path or not (variable.secret or variable.name == "JWT_PUBLIC_KEY"):
        return text
    if text:
        raise UsageError(f"{variable.name} and {variable.name}_FILE are both set: unset one of them")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{variable.name}_FILE can't be read: {error}") from None
