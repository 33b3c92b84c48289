"""Counters of `Autobalance` on the scheduler's own Prometheus endpoint.

They need prometheus_client, as Dask's own do; without it there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import dask.config

if TYPE_CHECKING:
    from chash_partition.cluster.autobalance import Autobalance

# Attributes of `Autobalance`, with what they are and of which kind.
NAMES = {
    "out_of_place": ("Gauge", "Partitions that are not on their owner, as of the last look"),
    "moves": ("Counter", "Partitions moved to their owner"),
    "nbytes": ("Counter", "Bytes of partitions moved to their owner"),
    "failures": ("Counter", "Moves given up"),
    "plan_seconds": ("Gauge", "Seconds that the last plan took"),
}


class Collector:
    """What prometheus_client asks. Its registry is one for all schedulers of a process, and so is this."""

    def __init__(self) -> None:
        self.sources: list[Autobalance] = []

    def collect(self) -> Iterator[Any]:
        core = import_module("prometheus_client.core")
        namespace = dask.config.get("distributed.dashboard.prometheus.namespace")
        for name, (kind, text) in NAMES.items():
            full = "_".join(filter(None, (namespace, "chash", name.replace("nbytes", "moved_bytes"))))
            family = getattr(core, f"{kind}MetricFamily")(full, text, labels=["layout"])
            for source in self.sources:
                family.add_metric([source.entry.layout.id], getattr(source, name))
            yield family


_collector = Collector()


def _registry() -> Any:
    there = find_spec("prometheus_client") is not None
    return import_module("prometheus_client").REGISTRY if there else None


def add(source: Autobalance) -> None:
    _collector.sources.append(source)
    if len(_collector.sources) == 1 and (registry := _registry()) is not None:
        registry.register(_collector)


def remove(source: Autobalance) -> None:
    _collector.sources.remove(source)
    if not _collector.sources and (registry := _registry()) is not None:
        registry.unregister(_collector)
