"""The keys that tokens are checked with: one from the settings, or those that the issuer publishes (JWKS)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import httpx
import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from activity_platform import USER_AGENT
from activity_platform.failures import TransientFailure, UsageError
from activity_platform.settings import HMAC_ALGORITHMS, Settings

FETCH_SECONDS = 5.0
REFRESH_SECONDS = 600.0
#: A token with an unknown key id asks for the keys again, but forged ones shall not hammer the issuer.
REFETCH_SECONDS = 10.0
MAX_KEYSET_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)


class KeysAway(TransientFailure):
    """The issuer's keys can't be had, so nobody can tell whether a token is good."""


class TokenKeys(Protocol):
    async def find(self, key_id: str | None, /) -> Any | None:
        """The key that PyJWT verifies with, None if there is none of that id. Raises `KeysAway`."""


def token_keys(settings: Settings) -> TokenKeys:
    """The keys that the settings name. Raises `UsageError` for a key that does not fit the algorithm."""
    algorithm = settings.jwt_algorithm
    if algorithm in HMAC_ALGORITHMS:
        return GivenKey(settings.jwt_secret.encode())
    if settings.jwt_jwks_url:
        return PublishedKeys(settings.jwt_jwks_url, algorithm)
    try:
        key = get_default_algorithms()[algorithm].prepare_key(settings.jwt_public_key)
    except (ValueError, TypeError, jwt.PyJWTError):
        raise UsageError(f"JWT_PUBLIC_KEY is not a PEM public key for {algorithm}") from None
    if hasattr(key, "private_bytes"):
        raise UsageError("JWT_PUBLIC_KEY holds a private key: give the public one, and replace the pair")
    return GivenKey(key)


class GivenKey:
    """One key for all tokens, whatever key id they name."""

    def __init__(self, key: Any) -> None:
        self._key = key

    async def find(self, _: str | None) -> Any | None:
        return self._key


class PublishedKeys:
    """A JWKS address. Keys are kept, renewed in the background, and fetched anew for an unknown key id."""

    def __init__(self, url: str, algorithm: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._algorithm = algorithm
        self._clock = clock
        self._keys: dict[str | None, Any] = {}
        self._tried_at = float("-inf")
        self._failed = False
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> Any | None:
        age = self._clock() - self._tried_at
        known = self._known(key_id)
        if (known is None and age > REFETCH_SECONDS) or age > REFRESH_SECONDS or self._fetching:
            fetching = self._fetch_once()
            if known is None:
                await asyncio.shield(fetching)
                known = self._known(key_id)
        if known is None and self._failed:
            raise KeysAway("the issuer's keys can't be fetched")
        return known

    def _known(self, key_id: str | None) -> Any | None:
        """A token without a key id is checked with the only key there is."""
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _fetch_once(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                self._keys = self._usable(await _download(self._url))
            self._failed = False
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            self._failed = True
            logger.warning("the issuer's keys can't be fetched: %s", type(error).__name__)
        finally:
            self._fetching = None

    def _usable(self, keyset: bytes) -> dict[str | None, Any]:
        """The keys of the set that sign with our algorithm, by key id."""
        found: dict[str | None, Any] = {}
        for entry in msgspec.json.decode(keyset, type=_KeySet).keys:
            if entry.get("use", "sig") != "sig" or entry.get("alg", self._algorithm) != self._algorithm:
                continue
            try:
                found[entry.get("kid")] = jwt.PyJWK(entry, self._algorithm).key
            except (jwt.PyJWTError, ValueError, TypeError):
                continue  # a set may hold keys of kinds that we don't use
        return found


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


async def _download(url: str) -> bytes:
    content = bytearray()
    headers = {"User-Agent": USER_AGENT}
    async with (
        httpx.AsyncClient(timeout=FETCH_SECONDS, headers=headers) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_KEYSET_BYTES:
                raise ValueError("the key set is too long")
    return bytes(content)
