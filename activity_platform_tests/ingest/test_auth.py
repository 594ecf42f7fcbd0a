"""Which tokens are taken. Every refusal is the same 401, and nothing is stored or fetched for it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from activity_platform.failures import UsageError
from activity_platform.ingest.auth import InvalidToken, TokenVerifier, development_token
from activity_platform.ingest.token_keys import token_keys
from activity_platform.settings import Settings
from activity_platform_tests.ingest.served import EVENTS, Served, body, event, read_answer

SECRET = "s" * 32
NOW = 1_796_000_000.25
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
DER = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
)


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims with changes; None leaves one out."""
    made = {"sub": "u1", "exp": int(NOW) + 60, **changes}
    return {name: value for name, value in made.items() if value is not None}


def signed(
    content: Mapping[str, Any] | bytes,
    *,
    header: Mapping[str, Any] | None = None,
    key: bytes = SECRET.encode(),
) -> str:
    """An HS256 token of any content and header, whatever a library would say of it."""
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    parts = [json.dumps({"alg": "HS256", **(header or {})}).encode(), payload]
    signing_input = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(signing_input, key)
    return (signing_input + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


async def verdict(token: str, **settings: str) -> str:
    """The subject of a token that is taken at NOW, or "refused"."""
    chosen = Settings.load({"JWT_SECRET": SECRET, **settings})
    try:
        return (await TokenVerifier(chosen, clock=lambda: NOW).verify(token)).sub
    except InvalidToken:
        return "refused"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


# S9: algorithms and keys


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "", "HS384", "RS256", "hs256"])
async def test_another_algorithm_is_refused(algorithm: str) -> None:
    """S9"""
    token = signed(claims(), header={"alg": algorithm})
    assert await verdict(token) == "refused"
    assert await verdict(token.rsplit(".", 1)[0] + ".") == "refused"


@pytest.mark.parametrize("key", [PEM, PEM.rstrip(b"\n"), DER, b""])
async def test_a_public_key_signs_no_token(key: bytes) -> None:
    """S9: HS256 with the bytes of the public key as its secret."""
    forged = signed(claims(), key=key)
    assert (
        await verdict(forged, JWT_ALGORITHM="RS256", JWT_SECRET="", JWT_PUBLIC_KEY=PEM.decode()) == "refused"
    )
    good = jwt.encode(claims(), RSA_KEY, algorithm="RS256")
    assert await verdict(good, JWT_ALGORITHM="RS256", JWT_SECRET="", JWT_PUBLIC_KEY=PEM.decode()) == "u1"


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode()}},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/certificate"},
        {"kid": "../../../dev/null"},
        {"crit": ["exp"], "exp": 1},
        {"b64": False, "crit": ["b64"]},
        {"kid": 7},
    ],
)
async def test_a_header_cannot_bring_its_own_key(header: dict[str, Any]) -> None:
    """S9: nothing that a header names is fetched or believed."""
    assert await verdict(signed(claims(), header=header, key=b"x" * 32)) == "refused"


async def test_a_changed_or_cut_token_is_refused() -> None:
    """S9"""
    good = signed(claims())
    assert await verdict(good) == "u1"
    head, payload, signature = good.split(".")
    flipped = base64.urlsafe_b64encode(json.dumps(claims(sub="u2")).encode()).decode().rstrip("=")
    for bad in (
        f"{head}.{flipped}.{signature}", f"{head}.{payload}.", f"{head}.{payload}", f"{head}..{signature}",
        "", ".", "..",
        "...", f"{good}.x", f"{good}x", f" {good}", good[:-2], head, "x" * 100_000, "é", f"{good}\u00e9",
        signed(b"[]"), signed(b"null"), signed(b""), signed(b"\xff"), signed(b'{"sub":"u1"'),
        signed(b"[" * 100_000),
    ):  # fmt: skip
        assert await verdict(bad) == "refused"


async def test_every_pinned_algorithm_takes_its_own_tokens() -> None:
    p256, p384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
    for algorithm, key in (("RS256", RSA_KEY), ("PS384", RSA_KEY), ("ES256", p256), ("ES384", p384)):
        pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        token = jwt.encode(claims(), key, algorithm=algorithm)
        settings = {"JWT_SECRET": "", "JWT_PUBLIC_KEY": pem.decode()}
        assert await verdict(token, JWT_ALGORITHM=algorithm, **settings) == "u1"
        assert (
            await verdict(token, JWT_ALGORITHM="RS512", JWT_SECRET="", JWT_PUBLIC_KEY=PEM.decode())
            == "refused"
        )


def test_a_key_that_does_not_fit_stops_the_start() -> None:
    private = RSA_KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for algorithm, key in (("RS256", "nonsense"), ("ES256", PEM.decode()), ("RS256", private.decode())):
        with pytest.raises(UsageError, match="JWT_PUBLIC_KEY"):
            token_keys(Settings.load({"JWT_ALGORITHM": algorithm, "JWT_PUBLIC_KEY": key}))


# S10: times


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"exp": NOW - 35}, False),
        ({"exp": NOW - 30}, False),
        ({"exp": NOW - 29.5}, True),
        ({"exp": None}, False),
        ({"exp": str(int(NOW) + 60)}, False),
        ({"exp": True}, False),
        ({"exp": [NOW + 60]}, False),
        ({"exp": 1e300}, True),
        ({"exp": NOW + 60.5}, True),
        ({"exp": -1}, False),
        ({"nbf": NOW + 600}, False),
        ({"nbf": NOW + 31}, False),
        ({"nbf": NOW + 29}, True),
        ({"nbf": "soon"}, False),
        ({"iat": NOW + 5}, True),
        ({"iat": NOW + 86_400}, False),
        ({"iat": "now"}, False),
        ({"iat": -1e300}, True),
    ],
)
async def test_times_are_numbers_and_hold_with_half_a_minutes_leeway(
    changes: dict[str, Any], taken: bool
) -> None:
    """S10"""
    assert await verdict(signed(claims(**changes))) == ("u1" if taken else "refused")


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "NaN", "9" * 5000])
async def test_a_time_beyond_float64_is_no_server_error(number: str) -> None:
    """S10"""
    assert await verdict(signed(f'{{"sub":"u1","exp":{number}}}'.encode())) in ("u1", "refused")
    assert await verdict(signed(f'{{"sub":"u1","exp":{number}}}'.encode())) == "refused"


async def test_a_token_that_was_taken_before_is_refused_once_it_ran_out() -> None:
    now = NOW
    verifier = TokenVerifier(Settings.load({"JWT_SECRET": SECRET}), clock=lambda: now)
    token = signed(claims(exp=NOW + 10))
    assert (await verifier.verify(token)).sub == "u1"
    now = NOW + 39
    assert (await verifier.verify(token)).sub == "u1"
    now = NOW + 41
    with pytest.raises(InvalidToken):
        await verifier.verify(token)


# Subject, audience, issuer


@pytest.mark.parametrize(
    ("sub", "taken"),
    [
        ("u", True), ("a" * 256, True), ("😀" * 256, True), (" u ", True), ("a b\tc\n", True), ("\u200b",
        True),
        ("", False), ("a" * 257, False), ("😀" * 257, False), (" ", False), ("\t\n\u3000", False), ("a\0",
        False),
        ("\ud800", False), (None, False), (7, False), (["u"], False), ({}, False), (True, False),
    ],
)  # fmt: skip
async def test_the_subject_is_a_text_of_1_to_256_characters(sub: Any, taken: bool) -> None:
    assert await verdict(signed(claims(sub=sub))) == (sub if taken else "refused")


async def test_audience_and_issuer_are_checked_where_they_are_configured() -> None:
    wanted = {"JWT_AUDIENCE": "activity", "JWT_ISSUER": "https://issuer"}
    good = {"aud": "activity", "iss": "https://issuer"}
    assert await verdict(signed(claims(**good)), **wanted) == "u1"
    assert await verdict(signed(claims(**good | {"aud": ["x", "activity"]})), **wanted) == "u1"
    others: list[dict[str, Any]] = [
        {"aud": None}, {"iss": None}, {"aud": "other"}, {"aud": []}, {"aud": "activityx"}, {"aud": ["x"]},
        {"aud": 1},
        {"iss": "other"}, {"iss": ["https://issuer"]}, {"iss": "https://issuer/"},
    ]  # fmt: skip
    for changes in others:
        assert await verdict(signed(claims(**good | changes)), **wanted) == "refused"
    assert await verdict(signed(claims(aud="anything", iss=7))) == "u1"


# Over HTTP


@pytest.fixture
def no_row_is_stored(api: Served, user: str) -> Iterator[None]:
    yield
    assert api.rows(user) == []
    assert api.rows("u1") == []


@pytest.mark.parametrize(
    "authorization",
    [
        None, "", "Bearer", "Bearer x", "Bearer a.b.c", "Basic dTE6cA==", "{token}", "Bearer {token}x",
        "Bearer {token}, Bearer {token}", "Bearer: {token}", "Token {token}", "Bearer {token} {token}",
    ],
)  # fmt: skip
def test_without_a_good_token_the_answer_is_401(
    api: Served, user: str, authorization: str | None, no_row_is_stored: None
) -> None:
    """S11: never an anonymous row."""
    headers = {"Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization.format(token=api.token(user))
    response = api.client.post(api.url + EVENTS, content=body(event()), headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.json() == {
        "type": "about:blank",
        "title": "Unauthorized",
        "status": 401,
        "detail": "A valid Bearer token is required.",
    }


def test_two_authorization_headers_are_refused(api: Served, user: str, no_row_is_stored: None) -> None:
    """S11"""
    content = body(event())
    with api.connect() as connection:
        lines = (f"Authorization: Bearer {api.token(user)}", f"Content-Length: {len(content)}")
        connection.sendall(api.head(user, *lines) + content)
        assert read_answer(connection).status == 401


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "bEaReR"])
def test_the_scheme_is_taken_in_any_case(api: Served, user: str, scheme: str) -> None:
    """S11"""
    headers = {"Authorization": f"{scheme}  {api.token(user)}", "Content-Type": "application/json"}
    assert api.client.post(api.url + EVENTS, content=body(event()), headers=headers).status_code == 202
    assert len(api.rows(user)) == 1


def test_a_development_token_is_taken_and_is_made_with_a_secret_only(settings: Settings) -> None:
    token = development_token(settings, "u1", scope="edges:read", ttl_seconds=5)
    made = jwt.decode(token, settings.jwt_secret, algorithms=["HS256"])
    assert (made["sub"], made["scope"]) == ("u1", "edges:read")
    assert 0 < made["exp"] - time.time() <= 5
    for wrong in ({"JWT_ALGORITHM": "RS256", "JWT_PUBLIC_KEY": PEM.decode()}, {}):
        with pytest.raises(UsageError):
            development_token(Settings.load(wrong), "u1")
    for sub in ("", " ", "a" * 257, "a\0"):
        with pytest.raises(UsageError, match="1 to 256"):
            development_token(settings, sub)
