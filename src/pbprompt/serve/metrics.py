"""What the server counts of itself, for Prometheus; each app has a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counters of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pbprompt_requests", "Requests answered.", ["endpoint", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "pbprompt_request_seconds", "Time to answer a request.", ["endpoint"], registry=self.registry
        )
        self.batches = Histogram(
            "pbprompt_batch_images",
            "Images that went through the tower together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.waiting = Gauge(
            "pbprompt_waiting_images", "Images being read, decoded or computed.", registry=self.registry
        )
        self.examples = Counter(
            "pbprompt_examples", "Labelled images the model has learned.", registry=self.registry
        )
        self.classes = Gauge("pbprompt_classes", "Classes the model tells apart.", registry=self.registry)

    def page(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)
