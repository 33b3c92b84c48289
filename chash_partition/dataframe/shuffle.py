"""Where Dask's P2P shuffle lands each output partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chash_partition._dask import DataFrameShuffleSpec
from chash_partition.layout import Layout


@dataclass(frozen=True)
class PlacedShuffleSpec(DataFrameShuffleSpec):
    """A P2P shuffle whose outputs land on their owners.

    Attributes
    ----------
    layout : which node owns each partition
    addresses : address of each node that is a worker
    """

    layout: Layout
    addresses: dict[str, str]

    def pick_worker(self, partition: int, workers: Sequence[str]) -> str:
        """The owner; if it is gone the next node on the ring that is here; else any worker."""
        here = {name: address for name, address in self.addresses.items() if address in workers}
        owner = self.layout.owner_of(partition)
        if owner in here:
            return here[owner]
        for name in self.layout.ring.preference_at(self.layout.point(partition)):
            if name in here:
                return here[name]
        # Dask hands the workers over in rotated order: sort, so that a re-run lands alike.
        return sorted(workers)[partition % len(workers)]
