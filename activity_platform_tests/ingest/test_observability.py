"""What an operator sees: probes, metrics, and an access log that tells nothing of anybody."""

from __future__ import annotations

import json
import re
import threading
import time
from io import StringIO
from pathlib import Path

import psycopg
import pytest

from activity_platform.ingest.access_log import AccessLog, Line
from activity_platform_tests.ingest.served import EDGES, EVENTS, Served, assert_problem, body, event, new_user


def metrics(api: Served) -> dict[str, float]:
    text = api.client.get(f"{api.url}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE)}


def test_metrics_count_what_was_accepted_and_why_others_were_not(api: Served, user: str) -> None:
    before = metrics(api)
    api.post(body(event(), event()), user)
    api.post(b"{}", user)
    api.post(b"{}", user, Content_Type="text/plain")
    api.client.post(api.url + EVENTS)
    api.client.get(f"{api.url}/{new_user()}")
    after = metrics(api)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("activity_ingest_events_accepted_total") == 2
    for reason in ("bad_request", "unsupported_media_type", "missing_token", "not_found"):
        assert grown(f'activity_ingest_requests_rejected_total{{reason="{reason}"}}') == 1
    assert grown(f'activity_ingest_request_seconds_count{{path="{EVENTS}",status="202"}}') == 1
    assert grown("activity_ingest_batch_events_sum") == 2
    assert after["activity_ingest_queue_depth"] == 0
    assert not any(user in name for name in after)


def test_the_access_log_tells_requests_and_nothing_of_users(api: Served, user: str) -> None:
    secret = "very-private-search"
    token = api.token(user, scope="edges:read")
    api.post(body(event(object_id=secret, context={"q": secret})), user, Idempotency_Key=secret)
    api.post(body(event(verb=secret)), user)
    api.client.get(f"{api.url}{EDGES}?actor_id={secret}", headers={"Authorization": f"Bearer {token}"})
    api.client.get(f"{api.url}/{secret}")
    api.client.request(secret.upper(), api.url + EVENTS)
    time.sleep(0.5)

    lines = [json.loads(line) for line in api.log.read_text().splitlines() if line.startswith("{")]
    told = [(line["method"], line["path"], line["status"], line.get("refusal")) for line in lines[-5:]]
    assert told == [
        ("POST", EVENTS, 202, None),
        ("POST", EVENTS, 400, "bad_request"),
        ("GET", EDGES, 200, None),
        ("GET", "other", 404, "not_found"),
        ("other", EVENTS, 405, "method_not_allowed"),
    ]
    assert all(line["milliseconds"] >= 0 and abs(line["time"] - time.time()) < 60 for line in lines[-5:])
    for private in (secret, user, token, api.token(user)[:40]):
        assert private not in api.log.read_text()


class StuckStream(StringIO):
    """A pipe whose reader does not read until it is `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.released.wait()
        return super().write(text)


def test_a_reader_of_the_log_that_stops_reading_stops_nobody() -> None:
    stream = StuckStream()
    log = AccessLog(stream)
    log.start()
    log.add(Line(0, "GET", "/first", 200, 1))
    time.sleep(0.5)
    started = time.monotonic()
    for number in range(20_000):
        log.add(Line(0, "GET", f"/{number}", 200, 1))
    log.stop()
    assert time.monotonic() - started < 4
    stream.released.set()
    while not stream.getvalue().endswith('"/19999","status":200,"milliseconds":1}\n'):
        time.sleep(0.01)
    assert len(stream.getvalue().splitlines()) == 10_001  # the oldest are lost


def test_lines_that_wait_are_written_at_the_stop() -> None:
    stream = StringIO()
    log = AccessLog(stream)
    log.start()
    log.add(Line(1.5, "POST", EVENTS, 202, 0.25))
    log.stop()
    assert json.loads(stream.getvalue()) == {
        "time": 1.5, "method": "POST", "path": EVENTS, "status": 202, "milliseconds": 0.25,
    }  # fmt: skip


def test_readiness_takes_a_migrated_database(api: Served) -> None:
    assert api.client.get(f"{api.url}/readyz").json() == {"status": "ok"}
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        [version] = connection.execute("SELECT version_num FROM alembic_version").fetchone() or [""]
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
        assert_problem(api.client.get(f"{api.url}/readyz"), 503)
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        assert api.client.get(f"{api.url}/readyz").status_code == 200
        connection.execute("UPDATE alembic_version SET version_num = %s", [version])
    assert api.client.get(f"{api.url}/healthz").json() == {"status": "ok"}


def memory_grows_by(api: Served, user: str, seconds: float) -> float:
    """Bytes a client's load for so long leaves behind, after a warm-up of a quarter of it."""
    content = body(*[event(context={"q": "x" * 500, "n": list(range(20))}) for _ in range(100)])
    headers = api.headers(user)
    before = 0
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        api.client.post(api.url + EVENTS, content=content, headers=headers | {"X-Request": str(elapsed)})
        api.client.post(api.url + EVENTS, content=b"{}", headers=api.headers(new_user()))
        if not before and elapsed > seconds / 4:
            before = api.memory()
    return api.memory() - before


def test_memory_stays_flat_for_a_moment(api: Served, user: str) -> None:
    assert memory_grows_by(api, user, 4) < 20 * 2**20


@pytest.mark.heavy
def test_memory_stays_flat_for_five_minutes(api: Served, user: str) -> None:
    assert memory_grows_by(api, user, 300) < 10 * 2**20
    assert Path(f"/proc/{api.process.pid}").exists()


def test_metrics_tell_how_the_platform_is(api: Served) -> None:
    told = metrics(api)
    assert told['activity_platform_up{system="postgresql"}'] == 1
    assert told['activity_platform_queue_depth{queue="create_audience"}'] >= 0
    assert "activity_platform_fold_lag_seconds" in told
