"""Any order of ingest, slow writers, folds, killed folds, clock steps and maintenance leaves exact sums.

The model is a list of what was accepted. The only events that may be missing from the edges are those that
were stamped at or before the watermark when they came, and those the platform has to report as late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from activity_platform.activity import partitions, rollup, rollup_sql
from activity_platform.activity.checks import check_conservation
from activity_platform.activity.vocabulary import EDGE_RULES, Verb
from activity_platform.gateways.postgres import DatabaseAway
from activity_platform_tests.activity.log_rows import add_event

Key = tuple[str, str, str]

users = st.sampled_from(["u1", "u2"])
verbs = st.sampled_from([Verb.SAVE, Verb.TAP, Verb.SELECT, Verb.DISMISS, Verb.VIEW])
targets = st.sampled_from(["t1", "t2"])
writers = st.integers(0, 2)
#: Within the hour in which late events are looked for at every fold, and up to some minutes ahead.
offsets = st.integers(-3000, 300).map(lambda seconds: timedelta(seconds=seconds, microseconds=seconds % 3))


class Accepted:
    """An event that was or may be committed."""

    def __init__(self, user: str, verb: Verb, target: str, stamp: datetime) -> None:
        self.user, self.verb, self.target, self.stamp = user, verb, target, stamp
        self.late = False


class FoldMachine(RuleBasedStateMachine):
    """One database, its model, and three writers who take their time."""

    database_url: str

    def __init__(self) -> None:
        super().__init__()
        self.connection = psycopg.connect(self.database_url, autocommit=True)
        self.writers = [psycopg.connect(self.database_url) for _ in range(3)]
        self.open: list[list[Accepted]] = [[], [], []]
        self.prepared: list[list[Accepted]] = [[], [], []]
        self.committed: list[Accepted] = []
        self.jumped_to = datetime.min.replace(tzinfo=UTC)
        self.rows_were_deleted = False

    @initialize(months=st.booleans())
    def start_empty(self, months: bool) -> None:
        for (name,) in self.connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'activity_events'::regclass"
            " AND inhrelid <> 'activity_events_default'::regclass"
        ).fetchall():
            self.connection.execute(f"DROP TABLE {name}")
        self.connection.execute("TRUNCATE activity_events, interaction_edges, activity_rollup_slice")
        self.connection.execute("UPDATE activity_rollup_state SET watermark = 'epoch'")
        if months:
            self.maintain(days=0)

    def teardown(self) -> None:
        for number, writer in enumerate(self.writers):
            writer.close()
            if self.prepared[number]:
                self.connection.execute(f"ROLLBACK PREPARED '{self._prepared_name(number)}'")
        self.connection.close()

    # Ingest

    @rule(user=users, verb=verbs, on=targets)
    def ingest(self, user: str, verb: Verb, on: str) -> None:
        self._commit([self._insert(self.connection, user, verb, on, None)])

    @rule(user=users, verb=verbs, on=targets, offset=offsets)
    def import_with_a_stamp(self, user: str, verb: Verb, on: str, offset: timedelta) -> None:
        stamp = datetime.now(UTC) + offset
        self._commit([self._insert(self.connection, user, verb, on, stamp)])

    @rule(number=writers, user=users, verb=verbs, on=targets)
    def write_slowly(self, number: int, user: str, verb: Verb, on: str) -> None:
        if not self.prepared[number]:
            self.open[number].append(self._insert(self.writers[number], user, verb, on, None))

    @rule(number=writers, keep=st.booleans())
    def end_a_slow_writer(self, number: int, keep: bool) -> None:
        events, self.open[number] = self.open[number], []
        if keep:
            self.writers[number].commit()
            self._commit(events)
        else:
            self.writers[number].rollback()

    @rule(number=writers)
    def prepare_a_slow_writer(self, number: int) -> None:
        if self.open[number] and not self.prepared[number]:
            self.writers[number].execute(f"PREPARE TRANSACTION '{self._prepared_name(number)}'")
            self.writers[number].rollback()
            self.prepared[number], self.open[number] = self.open[number], []

    @rule(number=writers)
    def commit_a_prepared_writer(self, number: int) -> None:
        if self.prepared[number]:
            self.connection.execute(f"COMMIT PREPARED '{self._prepared_name(number)}'")
            events, self.prepared[number] = self.prepared[number], []
            self._commit(events)

    # Fold

    @rule(lag=st.sampled_from([0.0, 0.0, 0.02, 60.0]), slice_events=st.sampled_from([1, 3, 1000]))
    def fold(self, lag: float, slice_events: int) -> None:
        before = self._watermark()
        result = rollup.fold(self.database_url, lag_seconds=lag, slice_events=slice_events)
        ((now,),) = self.connection.execute("SELECT clock_timestamp()")

        assert not result.busy
        assert result.watermark >= before
        assert result.watermark == before or result.watermark < now - timedelta(seconds=lag)
        if not self.rows_were_deleted:
            assert result.late == sum(event.late and event.verb in EDGE_RULES for event in self.committed)
            assert check_conservation(self.connection).passed

    @rule(slice_events=st.sampled_from([1, 1000]), after=st.integers(0, 2))
    def fold_and_be_killed(self, slice_events: int, after: int) -> None:
        """The server ends the session instead of moving the watermark, in the slice after some whole ones."""
        real = rollup._fold_slice
        with pytest.MonkeyPatch.context() as patch, suppress(DatabaseAway):

            def dying(
                connection: psycopg.Connection, lag: float, most: int, before: list[rollup.Slice]
            ) -> rollup.Slice | rollup.Bound:
                if len(before) == after:
                    patch.setattr(rollup_sql, "ADVANCE", "SELECT pg_terminate_backend(pg_backend_pid())")
                return real(connection, lag, most, before)

            patch.setattr(rollup, "_fold_slice", dying)
            rollup.fold(self.database_url, lag_seconds=0, slice_events=slice_events)

    @rule(ahead=st.sampled_from([timedelta(milliseconds=50), timedelta(minutes=4)]))
    def step_the_clock_back(self, ahead: timedelta) -> None:
        """Seen from the clock, the watermark jumps ahead; what it jumps over is late."""
        before = self._watermark()
        after = max(before, datetime.now(UTC) + ahead)
        if before > datetime.now(UTC) - timedelta(minutes=1):
            self.connection.execute("UPDATE activity_rollup_state SET watermark = %s", [after])
            self.jumped_to = after
            for event in self.committed:
                event.late = event.late or before < event.stamp <= after

    # Maintenance

    @rule(days=st.sampled_from([0, 0, 40, 100]))
    def maintain(self, days: int) -> None:
        result = partitions.maintain(
            self.database_url,
            now=datetime.now(UTC) + timedelta(days=days),
            retention_days=30,
            ahead=2,
            patience_seconds=0,
        )
        assert result.failed == 0
        self.rows_were_deleted = self.rows_were_deleted or bool(result.deleted_rows or result.dropped)

    @invariant()
    def edges_are_the_sum_of_what_was_accepted(self) -> None:
        watermark = self._watermark()
        found = {
            (actor, edge_type, target): (weight, events, first_at, last_at)
            for actor, edge_type, target, weight, events, first_at, last_at in self.connection.execute(
                "SELECT actor_id, edge_type, target_id, weight, event_count, first_at, last_at"
                " FROM interaction_edges"
            )
        }
        assert found == _expected(
            event for event in self.committed if not event.late and event.stamp <= watermark
        )

    @invariant()
    def the_watermark_is_below_what_is_not_committed(self) -> None:
        watermark = self._watermark()
        open_stamps = [event.stamp for events in (*self.open, *self.prepared) for event in events]
        assert all(stamp > watermark or stamp <= self.jumped_to for stamp in open_stamps)

    def _insert(
        self, connection: psycopg.Connection, user: str, verb: Verb, target: str, stamp: datetime | None
    ) -> Accepted:
        add_event(connection, target, user=user, verb=verb, at=stamp)
        ((stamped,),) = connection.execute("SELECT created_at FROM activity_events WHERE id = lastval()")
        return Accepted(user, verb, target, stamped)

    def _commit(self, events: list[Accepted]) -> None:
        watermark = self._watermark()
        for event in events:
            event.late = event.stamp <= watermark
        self.committed += events

    def _watermark(self) -> datetime:
        return rollup.read_watermark(self.connection)

    def _prepared_name(self, number: int) -> str:
        return f"{self.connection.info.dbname}_{number}"


def _expected(events: Iterator[Accepted]) -> dict[Key, tuple[float, int, datetime, datetime]]:
    sums: dict[Key, tuple[float, int, datetime, datetime]] = {}
    for event in events:
        if edge := EDGE_RULES.get(event.verb):
            key = (event.user, str(edge.edge_type), event.target)
            weight, count, first_at, last_at = sums.get(key, (0.0, 0, event.stamp, event.stamp))
            sums[key] = (
                weight + edge.weight,
                count + 1,
                min(first_at, event.stamp),
                max(last_at, event.stamp),
            )
    return sums


def prove(database_url: str, scenarios: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partitions, "LOCK_TIMEOUT", "5ms")  # an open writer is in the way of every step
    patch.setattr(FoldMachine, "database_url", database_url, raising=False)
    run_state_machine_as_test(
        FoldMachine,
        settings=settings(
            max_examples=scenarios,
            stateful_step_count=25,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # the clock takes part: a scenario can't be run again to shrink it
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_order_of_events_folds_and_faults_leaves_exact_sums(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(database_url, 8, monkeypatch)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_any_order_of_events_folds_and_faults_leaves_exact_sums_in_500_scenarios(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(database_url, 500, monkeypatch)
