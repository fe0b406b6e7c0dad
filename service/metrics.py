"""What Prometheus reads of the service, in the registry that is handed in and no global one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from service.batcher import Batcher
from service.batches import Batch
from service.compilation import CompilationCounter
from service.engine import Slot
from service.envelope import Exchange
from service.errors import NonFiniteOutput
from service.lifecycle import Lifecycle
from service.registry import Registry

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# The tokens of an answer's usage, as our own schemas and that of OpenAI call them.
USAGE = {
    "input": ("input_tokens", "prompt_tokens"),
    "output": ("output_tokens", "completion_tokens"),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfExchanges:
    """What requests of one kind add to; finding it by its labels takes longer than adding.

    ``tokens`` has a counter for each direction, with the fields of a usage that tell it.
    """

    requests: Counter
    seconds: Histogram
    tokens: list[tuple[Sequence[str], Counter]]


class Metrics:
    """Counters that requests and batches add to.

    A request's ``path`` is the template of its route, and its ``task`` that of the model that it
    ran, so that no caller can add labels without bound.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._exchanges: dict[tuple[str, str, str, int], _OfExchanges] = {}
        model = ("model", "version", "program")
        self._requests = Counter(
            "triwire_requests",
            "Requests answered.",
            ("method", "path", "task", "status"),
            registry=registry,
        )
        self.in_progress = Gauge(
            "triwire_requests_in_progress", "Requests that are not answered yet.", registry=registry
        )
        self._request_s = Histogram(
            "triwire_request_seconds",
            "Time from a request's arrival to the end of its answer.",
            ("path", "task"),
            buckets=SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "triwire_tokens",
            "Tokens that requests were charged for, as their usage says.",
            ("task", "direction"),
            registry=registry,
        )
        self._queue_s = Histogram(
            "triwire_queue_seconds",
            "Time that the rows of one request waited for a batch.",
            model,
            buckets=SECONDS,
            registry=registry,
        )
        self._compute_s = Histogram(
            "triwire_compute_seconds",
            "Time that a batch took.",
            model,
            buckets=SECONDS,
            registry=registry,
        )
        self._rows = Histogram(
            "triwire_batch_rows",
            "Rows of requests in a batch.",
            model,
            buckets=ROWS,
            registry=registry,
        )
        self._places = Counter(
            "triwire_batch_tokens",
            "Places that batches computed: tokens of requests, or padding.",
            (*model, "kind"),
            registry=registry,
        )
        self._non_finite = Counter(
            "triwire_non_finite_outputs",
            "Rows whose results held NaN or infinity, and were not served.",
            model,
            registry=registry,
        )
        self._failed = Counter(
            "triwire_failed_batches", "Batches that raised an error.", model, registry=registry
        )
        ProcessCollector(registry=registry)

    def count_exchange(self, exchange: Exchange) -> None:
        """Counts a request that is over, unless no client was behind it."""
        if exchange.is_rehearsal:
            return
        kind = (exchange.method, exchange.path, exchange.ticket.task, exchange.status)
        counters = self._exchanges.get(kind)
        if counters is None:
            counters = self._exchanges[kind] = self._of_exchanges(*kind)
        counters.requests.inc()
        counters.seconds.observe(exchange.ended - exchange.started)
        for names, tokens in counters.tokens:
            if num_tokens := sum(getattr(exchange.usage, name, 0) for name in names):
                tokens.inc(num_tokens)

    def _of_exchanges(self, method: str, path: str, task: str, status: int) -> _OfExchanges:
        return _OfExchanges(
            requests=self._requests.labels(method, path, task, str(status)),
            seconds=self._request_s.labels(path, task),
            tokens=[(names, self._tokens.labels(task, name)) for name, names in USAGE.items()],
        )

    def count_batch(self, batch: Batch) -> None:
        """Counts a batch that has run."""
        slot = batch.key
        assert isinstance(slot, Slot)
        card = slot.engine.card
        labels = (card.name, str(card.version), slot.program)
        queue_s = self._queue_s.labels(*labels)
        for waited_s in batch.waited_s:
            queue_s.observe(waited_s)
        if batch.results is None:
            self._failed.labels(*labels).inc()
            return
        self._compute_s.labels(*labels).observe(batch.compute_s)
        self._rows.labels(*labels).observe(len(batch.rows))
        num_real, num_places = slot.num_places(batch.rows)
        self._places.labels(*labels, "real").inc(num_real)
        self._places.labels(*labels, "padding").inc(num_places - num_real)
        num_wrong = sum(isinstance(result, NonFiniteOutput) for result in batch.results)
        self._non_finite.labels(*labels).inc(num_wrong)


class States(Collector):
    """What is read from the parts of the service at the moment Prometheus asks."""

    def __init__(
        self,
        registry: Registry,
        batcher: Batcher,
        lifecycle: Lifecycle,
        compilations: CompilationCounter,
    ) -> None:
        self._registry = registry
        self._batcher = batcher
        self._lifecycle = lifecycle
        self._compilations = compilations

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering asks for no values."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The values now."""
        compilations = self._compilations
        yield _gauge("ready", "Whether /readyz says yes.", int(self._lifecycle.is_ready))
        yield _gauge("queue_rows", "Rows that wait for the device.", self._batcher.num_rows)
        yield _counter(
            "worker_restarts", "Times that the worker has died.", self._batcher.num_restarts
        )
        yield _counter("compilations", "Programs that XLA has compiled.", compilations.total)
        yield _counter(
            "compilation_cache_hits",
            "Programs that were on disk and took no compiling.",
            compilations.loaded,
        )
        yield _counter("compilation_seconds", "Time that compilations took.", compilations.spent_s)
        yield _counter(
            "compilations_after_ready",
            "Compilations that a request has caused; always 0.",
            compilations.after_ready,
        )
        info = GaugeMetricFamily(
            "triwire_model_info",
            "The models that are loaded.",
            labels=("model", "version", "wiring", "task"),
        )
        for name in sorted(self._registry.models):
            for model in self._registry.versions(name):
                card = model.card
                task = str(card.task.get("name", ""))
                info.add_metric((card.name, str(card.version), card.wiring, task), 1)
        yield info
        failed = GaugeMetricFamily(
            "triwire_model_failed", "Models whose last load failed.", labels=("model",)
        )
        for name in sorted(self._registry.failures):
            failed.add_metric((name,), 1)
        yield failed


def _gauge(name: str, meaning: str, value: int) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"triwire_{name}", meaning, value=value)


def _counter(name: str, meaning: str, value: int | float) -> CounterMetricFamily:
    return CounterMetricFamily(f"triwire_{name}", meaning, value=value)
