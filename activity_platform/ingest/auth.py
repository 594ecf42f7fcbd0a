"""Who calls: a Bearer token (RFC 6750), checked by PyJWT with one pinned algorithm, and its claims by us.

Every refusal is the same 401, whatever was wrong. It comes before the body is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import jwt
import msgspec
from jwt.api_jws import PyJWS
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser
from starlette.requests import HTTPConnection

from activity_platform.failures import UsageError
from activity_platform.ingest.problems import Problem, unavailable
from activity_platform.ingest.token_keys import KeysAway, TokenKeys, token_keys
from activity_platform.settings import HMAC_ALGORITHMS, Settings

LEEWAY_SECONDS = 30
MAX_TOKEN_CHARACTERS = 8 * 1024
MAX_SUBJECT_CHARACTERS = 256

#: A verified token is remembered for so long, so that a client's next request costs no signature check.
#: A key that the issuer withdraws is trusted no longer than this beyond its withdrawal.
REMEMBERED_SECONDS = 60.0
MAX_REMEMBERED = 4096

EDGES_READ = "edges:read"


class Claims(msgspec.Struct, frozen=True):
    """The claims that we look at (RFC 7519 section 4.1). Times are seconds since 1970, fractions allowed."""

    sub: str
    exp: int | float
    nbf: int | float = 0
    iat: int | float = 0
    aud: Any = None
    iss: Any = None
    scope: Any = None


@dataclass(frozen=True)
class Caller(BaseUser):
    """The user that a token speaks for."""

    actor_id: str

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return self.actor_id

    @property
    def identity(self) -> str:
        return self.actor_id


class InvalidToken(Exception):
    """The token is no proof of anything. The reason stays inside."""


class TokenVerifier:
    """Checks tokens against the settings. `clock` gives seconds since 1970."""

    def __init__(
        self, settings: Settings, keys: TokenKeys | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._algorithm = settings.jwt_algorithm
        self._audience = settings.jwt_audience
        self._issuer = settings.jwt_issuer
        self._keys = keys or token_keys(settings)
        self._clock = clock
        self._signatures = PyJWS(algorithms=[self._algorithm])
        self._remembered: dict[str, tuple[Claims, float]] = {}

    async def verify(self, token: str) -> Claims:
        """Raises `InvalidToken`, or `KeysAway` when it can't be told."""
        now = self._clock()
        remembered = self._remembered.get(token)
        if remembered is None or not 0 <= now - remembered[1] < REMEMBERED_SECONDS:
            remembered = await self._signed_claims(token), now
            self._check_parties(remembered[0])
            self._remember(token, remembered)
        claims = remembered[0]
        if claims.exp <= now - LEEWAY_SECONDS or max(claims.nbf, claims.iat) > now + LEEWAY_SECONDS:
            raise InvalidToken
        return claims

    async def _signed_claims(self, token: str) -> Claims:
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise InvalidToken
        try:
            header = self._signatures.get_unverified_header(token)
            key = await self._keys.find(header.get("kid"))
            payload = self._signatures.decode(token, key, algorithms=[self._algorithm]) if key else b""
            claims = msgspec.json.decode(payload, type=Claims)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise InvalidToken from None
        if not _is_subject(claims.sub):
            raise InvalidToken
        return claims

    def _check_parties(self, claims: Claims) -> None:
        audiences = claims.aud if isinstance(claims.aud, list) else [claims.aud]
        if self._audience and self._audience not in audiences:
            raise InvalidToken
        if self._issuer and claims.iss != self._issuer:
            raise InvalidToken

    def _remember(self, token: str, verified: tuple[Claims, float]) -> None:
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[token] = verified


def _is_subject(text: str) -> bool:
    """Whether an actor can be named so: not blank, and nothing that PostgreSQL can't hold."""
    return 1 <= len(text) <= MAX_SUBJECT_CHARACTERS and bool(text.strip()) and "\0" not in text


class BearerBackend(AuthenticationBackend):
    """Starlette's authentication by a Bearer token. No request passes it without one."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, Caller]:
        headers = conn.headers.getlist("authorization")
        if not headers:
            raise unauthorized("Bearer", "missing_token")
        scheme, _, token = headers[0].partition(" ")
        if len(headers) > 1 or scheme.lower() != "bearer":
            raise unauthorized("Bearer", "invalid_token")
        try:
            claims = await self._verifier.verify(token.strip(" "))
        except InvalidToken:
            raise unauthorized('Bearer error="invalid_token"', "invalid_token") from None
        except KeysAway:
            raise unavailable("Tokens can't be checked at the moment.", "token_keys_away") from None
        scopes = claims.scope.split(" ") if isinstance(claims.scope, str) else []
        return AuthCredentials(scopes), Caller(claims.sub)


def unauthorized(challenge: str, reason: str) -> Problem:
    return Problem(
        HTTPStatus.UNAUTHORIZED,
        "A valid Bearer token is required.",
        headers={"WWW-Authenticate": challenge},
        reason=reason,
    )


def development_token(settings: Settings, sub: str, *, scope: str = "", ttl_seconds: float = 3600) -> str:
    """A token for `sub`, signed with JWT_SECRET. Raises `UsageError` where tokens come from an issuer."""
    if settings.jwt_algorithm not in HMAC_ALGORITHMS:
        raise UsageError(f"JWT_ALGORITHM is {settings.jwt_algorithm}: its issuer makes the tokens")
    if not settings.jwt_secret:
        raise UsageError("JWT_SECRET is not set: tokens are signed with it")
    if not _is_subject(sub):
        raise UsageError(f"a user is a text of 1 to {MAX_SUBJECT_CHARACTERS} characters, not blank")
    now = time.time()
    claims: dict[str, Any] = {"sub": sub, "iat": int(now), "exp": int(now + ttl_seconds)}
    if settings.jwt_audience:
        claims["aud"] = settings.jwt_audience
    if settings.jwt_issuer:
        claims["iss"] = settings.jwt_issuer
    if scope:
        claims["scope"] = scope
    return jwt.encode(claims, settings.jwt_secret, algorithm=settings.jwt_algorithm)
