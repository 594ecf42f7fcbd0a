"""What the app counts, in Prometheus' text format; summed over the workers when there are several."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

#: prometheus-client chooses its storage by this variable when it is first imported.
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BATCH_EVENTS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class Metrics:
    """The counters of one app."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._accepted = Counter(
            "activity_ingest_events_accepted", "Events that were answered with 202.", registry=registry
        )
        self._rejected = Counter(
            "activity_ingest_requests_rejected", "Requests that were refused.", ["reason"], registry=registry
        )
        self._seconds = Histogram(
            "activity_ingest_request_seconds",
            "From a request's head to its answer.",
            ["path", "status"],
            buckets=LATENCY_SECONDS,
            registry=registry,
        )
        self._batch = Histogram(
            "activity_ingest_batch_events",
            "Events that were committed together.",
            buckets=BATCH_EVENTS,
            registry=registry,
        )
        self._depth = Gauge(
            "activity_ingest_queue_depth",
            "Requests that wait to be written.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def accepted(self, events: int) -> None:
        self._accepted.inc(events)

    def answered(self, path: str, status: int, seconds: float, refusal: str | None) -> None:
        self._seconds.labels(path, str(status)).observe(seconds)
        if refusal is not None:
            self._rejected.labels(refusal).inc()

    def batch_written(self, events: int) -> None:
        self._batch.observe(events)

    def queue_depth(self, requests: int) -> None:
        self._depth.set(requests)

    def exposition(self) -> bytes:
        """Prometheus' text format, of all workers where there are several."""
        if SHARED_DIRECTORY not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
