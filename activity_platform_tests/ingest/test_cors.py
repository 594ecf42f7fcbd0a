"""Calls from browsers: only from the configured origins, and readable for them when they fail, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from activity_platform_tests.ingest.served import EDGES, EVENTS, Served, body, event

APP = "https://app.example.com"


@pytest.fixture(scope="module")
def open_api(
    module_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    environment = module_environment | {"CORS_ORIGINS": f"{APP}, https://other.example.com"}
    with Served(environment, tmp_path_factory.mktemp("cors")) as served:
        yield served


def test_an_origin_reads_answers_and_errors(open_api: Served, user: str) -> None:
    url = open_api.url + EVENTS
    headers = open_api.headers(user, Origin=APP)
    for response, status in (
        (open_api.client.post(url, content=body(event()), headers=headers), 202),
        (open_api.client.post(url, content=b"{}", headers=headers), 400),
        (open_api.client.post(url, headers={"Origin": APP}), 401),
        (open_api.client.get(f"{open_api.url}/nothing", headers=headers), 404),
        (open_api.client.get(url, headers=headers), 405),
        (open_api.client.post(url, content=b"x" * 2_000_000, headers=headers), 413),
        (open_api.client.post(url, content=b"x", headers=headers | {"Content-Type": "text/plain"}), 415),
    ):
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == APP
        assert "origin" in response.headers["vary"].lower()


def test_a_preflight_tells_what_may_be_sent(open_api: Served) -> None:
    headers = {
        "Origin": APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    response = open_api.client.options(open_api.url + EVENTS, headers=headers)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["access-control-allow-origin"] == APP
    assert "POST" in response.headers["access-control-allow-methods"]
    allowed = response.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in headers["Access-Control-Request-Headers"].split(","))
    assert "GET" in open_api.client.options(open_api.url + EDGES, headers=headers).headers["allow"]
    assert open_api.client.options(f"{open_api.url}/nothing", headers=headers).status_code == 404


def test_another_origin_gets_no_permission(open_api: Served, user: str) -> None:
    for origin in ("https://evil.example.com", "null", APP + ".evil.com", "http://app.example.com"):
        headers = open_api.headers(user, Origin=origin)
        answers = [
            open_api.client.post(open_api.url + EVENTS, content=body(event()), headers=headers),
            open_api.client.options(
                open_api.url + EVENTS, headers=headers | {"Access-Control-Request-Method": "POST"}
            ),
        ]
        assert not any(name.startswith("access-control") for answer in answers for name in answer.headers)


def test_without_configured_origins_there_is_no_cors(api: Served, user: str) -> None:
    response = api.client.post(api.url + EVENTS, content=body(event()), headers=api.headers(user, Origin=APP))
    assert response.status_code == 202
    assert not any(name.startswith("access-control") for name in response.headers)
    preflight = api.client.options(
        api.url + EVENTS, headers={"Origin": APP, "Access-Control-Request-Method": "POST"}
    )
    assert (preflight.status_code, preflight.headers["allow"]) == (405, "POST")
