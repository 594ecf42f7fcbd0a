"""Keys that the issuer publishes: fetched when needed, kept, renewed, and never hammered for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from activity_platform.ingest.auth import InvalidToken, TokenVerifier
from activity_platform.ingest.token_keys import REFETCH_SECONDS, REFRESH_SECONDS, KeysAway, PublishedKeys
from activity_platform.settings import Settings

pytestmark = pytest.mark.anyio

NOW = 1_796_000_000
KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("k1", "k2")}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def published(name: str, **changes: Any) -> dict[str, Any]:
    """The public half as an issuer publishes it."""
    made = jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True)
    return {**made, "kid": name, "use": "sig", "alg": "RS256", **changes}


def token(name: str, *, kid: str | None = None, **claims: Any) -> str:
    header = {"kid": name if kid is None else kid}
    return jwt.encode({"sub": "u1", "exp": NOW + 60, **claims}, KEYS[name], algorithm="RS256", headers=header)


class Issuer:
    """Publishes `keys` over HTTP, unless it is `down`, and counts how often it was asked."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [published("k1")]
        self.content: bytes | None = None
        self.down = False
        self.asked = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                content = issuer.content or json.dumps({"keys": issuer.keys}).encode()
                self.send_response(503 if issuer.down else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


class Time:
    """The verifier's clocks, which stand until they are moved."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return NOW + self.passed


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def verifier(issuer: Issuer, time: Time) -> TokenVerifier:
    settings = Settings.load({"JWT_ALGORITHM": "RS256", "JWT_JWKS_URL": issuer.url})
    return TokenVerifier(settings, PublishedKeys(issuer.url, "RS256", clock=time), clock=lambda: NOW)


async def subject(verifier: TokenVerifier, token: str) -> str:
    try:
        return (await verifier.verify(token)).sub
    except InvalidToken:
        return "refused"


async def test_keys_are_fetched_once_for_many_requests(issuer: Issuer, verifier: TokenVerifier) -> None:
    tokens = [token("k1", jti=str(number)) for number in range(20)]
    assert set(await asyncio.gather(*(subject(verifier, each) for each in tokens))) == {"u1"}
    assert issuer.asked == 1


async def test_an_unknown_key_id_is_looked_for_once_in_a_while(
    issuer: Issuer, verifier: TokenVerifier, time: Time
) -> None:
    assert await subject(verifier, token("k1")) == "u1"
    time.passed = REFETCH_SECONDS + 1
    for number in range(50):
        assert await subject(verifier, token("k2", jti=str(number))) == "refused"
    assert issuer.asked == 2
    issuer.keys.append(published("k2"))
    time.passed *= 2
    assert await subject(verifier, token("k2")) == "u1"
    assert issuer.asked == 3


async def test_a_withdrawn_key_is_forgotten_when_the_keys_are_renewed(
    issuer: Issuer, verifier: TokenVerifier, time: Time
) -> None:
    assert await subject(verifier, token("k1")) == "u1"
    issuer.keys = [published("k2")]
    time.passed = REFRESH_SECONDS + 1
    assert await subject(verifier, token("k1", jti="while renewing")) == "u1"
    await asyncio.sleep(0.5)
    assert await subject(verifier, token("k1", jti="after")) == "refused"


async def test_while_the_issuer_is_away_known_keys_work_and_others_cannot_be_judged(
    issuer: Issuer, verifier: TokenVerifier, time: Time
) -> None:
    issuer.down = True
    with pytest.raises(KeysAway):
        await verifier.verify(token("k1"))
    issuer.down = False
    time.passed = REFETCH_SECONDS + 1
    assert await subject(verifier, token("k1")) == "u1"
    issuer.down = True
    time.passed = 2 * REFRESH_SECONDS
    assert await subject(verifier, token("k1", jti="2")) == "u1"
    await asyncio.sleep(0.5)
    assert await subject(verifier, token("k1", jti="3")) == "u1"
    with pytest.raises(KeysAway):
        await verifier.verify(token("k2"))


async def test_a_token_without_a_key_id_is_checked_with_the_only_key(
    issuer: Issuer, verifier: TokenVerifier, time: Time
) -> None:
    nameless = jwt.encode({"sub": "u1", "exp": NOW + 60}, KEYS["k1"], algorithm="RS256")
    assert await subject(verifier, nameless) == "u1"
    issuer.keys.append(published("k2"))
    time.passed = REFRESH_SECONDS + 1
    await subject(verifier, token("k1"))
    await asyncio.sleep(0.5)
    later = jwt.encode({"sub": "u1", "exp": NOW + 61}, KEYS["k1"], algorithm="RS256")
    assert await subject(verifier, later) == "refused"


@pytest.mark.parametrize(
    "key",
    [
        published("k1", use="enc"), published("k1", alg="RS512"), published("k1", kty="EC"),
        {"kid": "k1"}, {},
        {"kid": "k1", "kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "alg": "RS256"},
    ],
)  # fmt: skip
async def test_keys_of_other_kinds_are_left_out(
    issuer: Issuer, verifier: TokenVerifier, key: dict[str, Any]
) -> None:
    issuer.keys = [key, published("k2")]
    assert await subject(verifier, token("k1")) == "refused"
    assert await subject(verifier, token("k2")) == "u1"


@pytest.mark.parametrize("content", [b"[]", b"{}", b"<html>", b'{"keys":[1]}', b" " * 2_000_000])
async def test_an_answer_that_is_no_key_set_is_no_key_set(
    issuer: Issuer, verifier: TokenVerifier, content: bytes
) -> None:
    issuer.content = content
    with pytest.raises(KeysAway):
        await verifier.verify(token("k1"))
