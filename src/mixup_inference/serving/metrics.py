"""What the server counts, for Prometheus."""

from __future__ import annotations

from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from mixup_inference.guard import Answer

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SCORES = tuple(n / 10 for n in range(-5, 11))


class Watched(Protocol):
    """What is asked when the metrics are read."""

    @property
    def waiting(self) -> int:
        """How many images wait."""

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, watched: Watched) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "guard_requests", "Requests, by route and status.", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.latency = Histogram(
            "guard_request_seconds", "From a request's header to the end of its answer.", ["route"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "guard_requests_in_flight", "Requests that are being read or answered.",
            registry=registry,
        )  # fmt: skip
        self.images = Counter("guard_images", "Images answered.", registry=registry)
        self.flagged = Counter("guard_images_flagged", "Images flagged.", registry=registry)
        self.draws = Counter("guard_draws", "Random mixtures made.", registry=registry)
        self.score = Histogram(
            "guard_score", "Scores of the images; larger is more suspicious.", buckets=SCORES,
            registry=registry,
        )  # fmt: skip
        self.batch_rows = Histogram(
            "guard_batch_rows", "Images computed at once.", buckets=ROWS, registry=registry
        )
        self.batch_seconds = Histogram(
            "guard_batch_seconds", "Time to compute a batch.", buckets=SECONDS, registry=registry
        )
        waiting = Gauge("guard_queue_rows", "Images that wait.", registry=registry)
        waiting.set_function(lambda: watched.waiting)
        ready = Gauge("guard_ready", "1 when the guard has loaded.", registry=registry)
        ready.set_function(lambda: watched.ready)

    def observe(self, answer: Answer, seconds: float) -> None:
        """Count a batch."""
        self.images.inc(len(answer.label))
        self.flagged.inc(int(answer.is_adversarial.sum()))
        self.draws.inc(int(answer.draws.sum()))
        self.batch_rows.observe(len(answer.label))
        self.batch_seconds.observe(seconds)
        for score in answer.score.tolist():
            self.score.observe(score)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        content: bytes = generate_latest(self.registry)
        return content
