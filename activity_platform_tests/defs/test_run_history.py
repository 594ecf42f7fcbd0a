"""Old runs go with all that belongs to them; assets keep their last events and sensors what they count."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from activity_platform.defs import run_history
from activity_platform.defs.audience import audience_queue_sensor
from activity_platform.defs.run_history import Forgotten
from activity_platform.gateways import dagster_database, queue
from activity_platform.settings import Settings

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAYS = 14

COPY_RUN = """
INSERT INTO runs (run_id, snapshot_id, pipeline_name, status, run_body, start_time, end_time,
                  create_timestamp, update_timestamp)
SELECT %(new)s::text, snapshot_id, pipeline_name, %(status)s, replace(run_body, run_id, %(new)s::text),
       extract(epoch FROM %(at)s::timestamp), extract(epoch FROM %(at)s::timestamp), %(at)s, %(at)s
FROM runs WHERE run_id = %(old)s
"""
COPY_TAGS = """
INSERT INTO run_tags (run_id, key, value)
SELECT %(new)s::text, key, value FROM run_tags WHERE run_id = %(old)s
"""
COPY_EVENTS = """
INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT %(new)s::text, replace(event, run_id, %(new)s::text), dagster_event_type, %(at)s, step_key, asset_key,
       partition
FROM event_logs WHERE run_id = %(old)s ORDER BY id
"""
COPY_CHECKS = """
INSERT INTO asset_check_executions (asset_key, check_name, run_id, execution_status, evaluation_event,
                                    create_timestamp)
SELECT asset_key, check_name, %(new)s::text, execution_status, evaluation_event, %(at)s
FROM asset_check_executions WHERE run_id = %(old)s
"""


@dg.asset
def measured() -> dg.MaterializeResult[None]:
    """Something that a schedule materializes."""
    return dg.MaterializeResult(metadata={"rows": 7})


@dg.asset_check(asset=measured)
def plausible() -> dg.AssetCheckResult:
    """Its check."""
    return dg.AssetCheckResult(passed=True)


@dg.op(out=dg.Out(dg.Nothing))
def work() -> None:
    """Something that a sensor asks for."""


@dg.job
def worked() -> None:
    """Its job."""
    work()


class History:
    """Runs that ended when the test says, each a copy of one that Dagster executed."""

    def __init__(self, instance: dg.DagsterInstance, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        checked = dg.Definitions(assets=[measured], asset_checks=[plausible])
        self._asset_run = checked.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance
        )
        self._op_run = worked.execute_in_process(instance=instance)

    def add(
        self, days: float, *, key: str | None = None, status: str = "SUCCESS", asset: bool = False
    ) -> str:
        """A run that ended so many days ago; its id."""
        old = self._asset_run.run_id if asset else self._op_run.run_id
        new = f"00000000-0000-4000-8000-{next(self._numbers):012}"
        moment = (NOW - timedelta(days=days)).replace(tzinfo=None)
        values = {"old": old, "new": new, "at": moment, "status": status}
        for statement in (COPY_RUN, COPY_TAGS, COPY_EVENTS, COPY_CHECKS):
            self._connection.execute(statement, values)
        if key:
            self._connection.execute(
                "INSERT INTO run_tags (run_id, key, value) VALUES (%s, 'dagster/run_key', %s)", [new, key]
            )
        return new

    def forget_originals(self, instance: dg.DagsterInstance) -> None:
        for run in (self._asset_run, self._op_run):
            instance.delete_run(run.run_id)
            self._connection.execute("DELETE FROM asset_check_executions WHERE run_id = %s", [run.run_id])


@pytest.fixture
def storage(dagster_postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dagster_postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def history(instance: dg.DagsterInstance, storage: psycopg.Connection) -> History:
    return History(instance, storage)


def forget(
    instance: dg.DagsterInstance, connection: psycopg.Connection, *, most: int = 10_000, seconds: float = 600
) -> Forgotten:
    return run_history.forget(
        instance, connection, before=NOW - timedelta(days=DAYS), most=most, patience_seconds=seconds
    )


def run_ids(connection: psycopg.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT run_id FROM runs")}


def next_key(storage: psycopg.Connection, entry: str) -> str:
    """The key under which the sensor asks for a further run of the entry: one more than have finished."""
    ((count,),) = storage.execute(
        "SELECT count(*) FROM run_tags JOIN runs USING (run_id)"
        " WHERE key = 'dagster/run_key' AND starts_with(value, %s) AND status = ANY(%s)",
        [f"{entry}/", list(dagster_database.FINISHED)],
    )
    return f"{entry}/{count + 1}"


def is_taken(instance: dg.DagsterInstance, key: str) -> bool:
    return bool(instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": key})))


def test_old_runs_go_with_everything_that_is_theirs(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History
) -> None:
    old = [history.add(days) for days in (15, 20, 400)]
    history.add(14.1, status="STARTED")
    young = history.add(13.9)
    logs = Path(instance.root_directory) / "storage" / old[0] / "compute_logs"
    logs.mkdir(parents=True)
    (logs / "x.out").write_text("printed")

    forgotten = forget(instance, storage)

    assert (forgotten.runs, forgotten.more) == (3, False)
    assert run_ids(storage).isdisjoint(old)
    assert young in run_ids(storage)
    assert not logs.parent.exists()
    tables = storage.execute(
        "SELECT table_name FROM information_schema.columns WHERE column_name = 'run_id'"
    ).fetchall()
    assert ("event_logs",) in tables
    for (table,) in tables:
        ((left,),) = storage.execute(f"SELECT count(*) FROM {table} WHERE run_id = ANY(%s)", [old])
        assert left == 0, table
    assert forget(instance, storage).runs == 0


def test_an_asset_that_was_not_materialized_for_long_keeps_its_last_one(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History
) -> None:
    older, last = history.add(40, asset=True), history.add(30, asset=True)
    history.forget_originals(instance)
    forgotten = forget(instance, storage)
    assert (forgotten.runs, forgotten.check_results) == (1, 1)
    (left,) = instance.fetch_materializations(measured.key, limit=10).records
    assert left.run_id == last
    assert older not in run_ids(storage)
    ((checked,),) = storage.execute("SELECT run_id FROM asset_check_executions").fetchall()
    assert checked == last


def test_runs_of_a_message_stay_until_all_of_them_are_old_and_finished(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History
) -> None:
    waiting = [history.add(days, key=f"create_audience/1-0/{n}") for n, days in enumerate((30, 20, 1), 1)]
    working = [history.add(30, key="create_audience/2-0/1")]
    working += [history.add(20, key="create_audience/2-0/2", status="STARTED")]
    history.add(30, key="create_audience/3-0/1", status="FAILURE")
    history.add(20, key="create_audience/3-0/2")
    other = history.add(30, key="create_audience/1-01/1")  # another entry, whose name begins alike

    assert forget(instance, storage).runs == 3

    assert run_ids(storage) >= {*waiting, *working}
    assert other not in run_ids(storage)
    assert next_key(storage, "create_audience/1-0") == "create_audience/1-0/4"
    assert next_key(storage, "create_audience/3-0") == "create_audience/3-0/1"
    for entry in ("1-0", "2-0", "3-0"):
        key = next_key(storage, f"create_audience/{entry}")
        assert is_taken(instance, key) == (entry == "2-0")  # its second run is under way


def test_wherever_a_purge_ends_the_next_key_of_a_message_is_free(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History
) -> None:
    for n in range(1, 6):
        history.add(40 - n, key=f"create_audience/1-0/{n}", status="FAILURE")
    for left in (4, 3, 2, 1, 0):
        assert forget(instance, storage, most=1).more
        assert next_key(storage, "create_audience/1-0") == f"create_audience/1-0/{left + 1}"
        assert not is_taken(instance, f"create_audience/1-0/{left + 1}")


def test_a_run_that_somebody_launched_again_by_hand_counts_as_one_of_its_message(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History
) -> None:
    """The sensor counts it, too: without it, the next key would be one that is taken."""
    by_hand = history.add(30)
    runs = [by_hand, history.add(1, key="create_audience/1-0/2")]
    storage.execute(
        "INSERT INTO run_tags (run_id, key, value) SELECT run_id, key, value"
        " FROM unnest(%s::text[]) AS run_id,"
        " (VALUES ('queue', 'create_audience'), ('entry_id', '1-0')) AS tag (key, value)",
        [runs],
    )
    assert forget(instance, storage).runs == 0
    assert by_hand in run_ids(storage)


def test_the_audience_sensor_asks_under_a_free_key_after_a_purge(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History, settings: Settings
) -> None:
    """Of three messages that still wait, one has old runs only, one a young one, one none at all."""
    payload = '{{"audienceId": {}, "lineOaId": 1, "organizationId": 1, "filePath": "f"}}'
    with closing(queue.connect(settings.redis_url)) as client:
        entries = [
            queue.Queues(client).publish(queue.CREATE_AUDIENCE, payload.format(audience))
            for audience in (1, 2, 3)
        ]
    for entry, days in ((entries[0], (40, 30, 20)), (entries[1], (40, 30, 2))):
        for number, ago in enumerate(days, 1):
            run_id = history.add(ago, key=f"create_audience/{entry}/{number}", status="FAILURE")
            storage.execute(
                "INSERT INTO run_tags (run_id, key, value)"
                " VALUES (%(run)s, 'queue', 'create_audience'), (%(run)s, 'entry_id', %(entry)s)",
                {"run": run_id, "entry": entry},
            )

    assert forget(instance, storage).runs == 3

    context = dg.build_sensor_context(instance, resources={"settings": settings})
    requests = audience_queue_sensor.evaluate_tick(context).run_requests or []
    assert [request.run_key for request in requests] == [
        f"create_audience/{entries[0]}/1",
        f"create_audience/{entries[1]}/4",
        f"create_audience/{entries[2]}/1",
    ]
    assert not any(is_taken(instance, str(request.run_key)) for request in requests)


def test_a_purge_ends_when_its_time_is_over(
    instance: dg.DagsterInstance, storage: psycopg.Connection, history: History
) -> None:
    history.add(20)
    forgotten = forget(instance, storage, seconds=-1)
    assert (forgotten.runs, forgotten.more) == (0, True)


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.heavy)])
def test_the_database_shrinks_to_what_the_days_hold_and_stays_there(
    instance: dg.DagsterInstance,
    storage: psycopg.Connection,
    history: History,
    count: int,
) -> None:
    """A month of runs, two for each message. What sensors count is the same before and after."""
    entries = [f"create_audience/{n}-0" for n in range(count // 2)]

    def add_month() -> None:
        for n in range(count):
            days = 30 * (count - n) / count
            history.add(days, key=f"{entries[n // 2]}/{n % 2 + 1}", asset=n % 10 == 0)

    def size() -> int:
        tables = ", ".join(f"('{name}')" for name in dagster_database.GROWING)
        ((found,),) = storage.execute(
            f"SELECT sum(pg_total_relation_size(name::regclass)) FROM (VALUES {tables}) AS growing (name)"
        )
        return int(found)

    add_month()
    young = count * DAYS // 30
    forgotten = forget(instance, storage)
    assert not forgotten.more
    ((runs, oldest),) = storage.execute("SELECT count(*), min(update_timestamp) FROM runs")
    assert young <= runs <= young + 5  # the executed ones, and halves of a message's two
    assert NOW.replace(tzinfo=None) - oldest < timedelta(days=DAYS + 1)
    ((events,),) = storage.execute(
        "SELECT count(*) FROM event_logs WHERE run_id NOT IN (SELECT run_id FROM runs)"
    )
    assert events == 0
    rows = storage.execute("SELECT value FROM run_tags WHERE key = 'dagster/run_key'")
    keys = {row[0] for row in rows}
    counts = Counter(key.rpartition("/")[0] for key in keys)
    assert keys.isdisjoint(f"{entry}/{counts[entry] + 1}" for entry in entries)
    peak = size()
    storage.execute("UPDATE runs SET update_timestamp = update_timestamp - interval '30 days'")
    storage.execute(
        "UPDATE asset_check_executions SET create_timestamp = create_timestamp - interval '30 days'"
    )
    assert forget(instance, storage).runs >= young - 5
    assert size() < peak
