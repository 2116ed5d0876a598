"""What the server counts and times, in the text format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gdod.data.preparing.encoder import Encoded
from gdod.data.tables.read import Chunk

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class Metrics:
    """Counters and times of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "gdod_requests", "Requests to /predict that were answered, by status.", ["status"], registry=self.registry
        )
        self.under_way = Gauge("gdod_requests_under_way", "Requests to /predict under way.", registry=self.registry)
        self.request_seconds = Histogram(
            "gdod_request_seconds",
            "Time of a request to /predict in the server, from its head to its answer.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.model_seconds = Histogram(
            "gdod_model_seconds",
            "Time of a call of the model, with the encoder.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.call_rows = Histogram(
            "gdod_call_rows", "Rows in a call of the model.", buckets=_ROWS, registry=self.registry
        )
        self.call_requests = Histogram(
            "gdod_call_requests", "Requests in a call of the model.", buckets=_ROWS, registry=self.registry
        )
        self.missing = Counter(
            "gdod_missing_values", "Values that were missing, by column.", ["column"], registry=self.registry
        )
        self.unknown = Counter(
            "gdod_unknown_values", "Values that training has not seen, by column.", ["column"], registry=self.registry
        )

    def look_at(self, chunk: Chunk, encoded: Encoded) -> None:
        """Count the missing and unknown values of rows that are predicted."""
        for counter, counts in ((self.missing, encoded.missing), (self.unknown, encoded.unknown)):
            for name, count in counts.items():
                if count:
                    counter.labels(name).inc(count)

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self.registry)
