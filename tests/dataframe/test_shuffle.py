"""Where the outputs of a shuffle are to land."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

from chash_partition import Layout
from chash_partition.dataframe.shuffle import PlacedShuffleSpec

NODES = ["a", "b", "c", "d"]
LAYOUT = Layout.create("k", 64, NODES)
ADDRESSES = {name: f"tcp://{name}" for name in NODES}


def landed(workers: list[str], addresses: dict[str, str] = ADDRESSES) -> list[str]:
    spec = PlacedShuffleSpec(
        id="s",
        npartitions=LAYOUT.npartitions,
        column="_partitions",
        meta=pd.DataFrame({"_partitions": [0]}),
        parts_out=set(range(LAYOUT.npartitions)),
        disk=False,
        drop_column=True,
        layout=LAYOUT,
        addresses=addresses,
    )
    return [spec.pick_worker(p, workers) for p in range(LAYOUT.npartitions)]


OWNERS = [ADDRESSES[LAYOUT.owner_of(p)] for p in range(LAYOUT.npartitions)]
ALL = [*ADDRESSES.values()]


def test_on_the_owner() -> None:
    assert landed(ALL) == landed(ALL[::-1]) == landed([*ALL, "tcp://unknown"]) == OWNERS


@pytest.mark.parametrize("gone", NODES)
def test_on_the_next_node_of_the_ring_if_the_owner_is_gone(gone: str) -> None:
    left = [ADDRESSES[name] for name in NODES if name != gone]
    ring = LAYOUT.ring.without_nodes([gone])
    for p, (there, owner) in enumerate(zip(landed(left), OWNERS, strict=True)):
        next_node = ADDRESSES[ring.owners_at([LAYOUT.point(p)])[0]]
        assert there == (next_node if owner == ADDRESSES[gone] else owner)
    assert landed(left) == landed(left[::-1])


@pytest.mark.parametrize("addresses", [{}, {"a": "tcp://gone"}])
def test_on_any_worker_if_no_node_is_here(addresses: dict[str, str]) -> None:
    workers = ["tcp://x", "tcp://y"]
    assert landed(workers, addresses) == landed(workers[::-1], addresses)
    assert Counter(landed(workers, addresses)) == dict.fromkeys(workers, 32)
