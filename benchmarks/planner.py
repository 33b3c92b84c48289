"""Plans against Swift's ring builder, a plan for a data centre, and owners of keys against uhashring.

    python benchmarks/planner.py

Swift and uhashring are in the extra ``bench``; what one of them is needed for is left out without it. Swift's
``RingBuilder`` has one replica, one zone and equal weights here, so that it solves the same problem. It takes
half a minute for one first placement and is run once; ours is the best of several, between which nothing is
remembered: each has nodes of other names. A plan from a layout that was just made finds the tokens of its
nodes remembered; in a new process it does not, and makes the ring first.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import xxhash
from rich.console import Console
from rich.table import Table

from chash_partition import HashRing, Layout, plan_rebalance

PARTITION_POWER, NODES = 17, 1000  # 131,072 partitions
LARGE_PARTITIONS, LARGE_NODES = 1_000_000, 10_000
KEYS, SAMPLE, RING_NODES, VNODES = 5_000_000, 200_000, 100, 256
T = TypeVar("T")

console = Console(width=110)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def deviation(owners: Any, nodes: int) -> float:
    """How far off its share a node is at most, above or below, in %: Swift's "balance"."""
    share = len(owners) / nodes
    return float(100 * np.abs(np.bincount(owners, minlength=nodes) / share - 1).max())


def of_swift() -> dict[str, tuple[float, int, float]]:
    """Seconds, moves and deviation of the first placement and of one more node."""
    from swift.common.ring import RingBuilder

    builder = RingBuilder(PARTITION_POWER, 1, 0)  # 2^power partitions, 1 replica, 0 hours between moves

    def add(number: int) -> None:
        address = f"10.0.{number // 256}.{number % 256}"
        builder.add_dev(
            {"id": number, "region": 1, "zone": 1, "ip": address, "port": 6200, "device": "d", "weight": 1.0}
        )

    def owners() -> Any:
        return np.array([builder.get_part_devices(part)[0]["id"] for part in range(builder.parts)])

    for number in range(NODES):
        add(number)
    first, _ = timed(lambda: builder.rebalance(seed=0))
    before = owners()
    add(NODES)
    more, _ = timed(lambda: builder.rebalance(seed=0))
    after = owners()
    return {
        "first placement": (first, 0, deviation(before, NODES)),
        "one node added": (more, int((before != after).sum()), deviation(after, NODES + 1)),
    }


def of_ours(run: int) -> dict[str, tuple[float, int, float]]:
    names = [f"{run}-{i}" for i in range(NODES)]
    first, layout = timed(lambda: Layout.create("key", 2**PARTITION_POWER, names))
    more, made = timed(lambda: plan_rebalance(layout, [*names, f"{run}-new"]))
    assert len(made.moves) == made.lower_bound
    return {
        "first placement": (first, 0, deviation(layout.assignment, NODES)),
        "one node added": (more, len(made.moves), deviation(made.after.assignment, NODES + 1)),
    }


def create(path: str, npartitions: int, nodes: int) -> float:
    """Seconds of a first placement, which is written to a file."""
    names = [f"w{i}" for i in range(nodes)]
    seconds, layout = timed(lambda: Layout.create("key", npartitions, names))
    Path(path).write_text(layout.to_json())
    return seconds


def plan(path: str, joining: int) -> tuple[float, float, int, int]:
    """Seconds of a plan for a layout from a file, first and again; its moves; and the most memory that the
    process ever had, in MiB."""
    layout = Layout.from_json(Path(path).read_text())
    names = [*layout.nodes, *(f"new{i}" for i in range(joining))]
    first, made = timed(lambda: plan_rebalance(layout, names))
    assert len(made.moves) == made.lower_bound
    again, _ = timed(lambda: plan_rebalance(layout, names))
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return first, again, len(made.moves), int(peak[1]) // 1024 if peak else 0


def alone(work: Callable[..., T], *arguments: Any) -> T:
    """In a process of its own, which has made no ring before, and whose memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def against_swift() -> None:
    runs = [of_ours(run) for run in range(3)]
    try:
        swift = of_swift()
    except ImportError as error:
        console.print(f"Nothing to compare first placements with: {error}")
        return
    runs += [of_ours(run) for run in range(3, 6)]
    with TemporaryDirectory() as folder:
        alone(create, f"{folder}/layout.json", 2**PARTITION_POWER, NODES)
        cold = min(alone(plan, f"{folder}/layout.json", 1)[0] for _ in range(3))
    table = Table(
        "", "ours, s", "Swift, s", "Swift / ours", "moves, ours", "Swift", "off share, ours, %", "Swift, %",
        title=f"{2**PARTITION_POWER:,} partitions on {NODES:,} nodes",
    )  # fmt: skip
    for what, (seconds, moves, off) in swift.items():
        ours, our_moves, our_off = min(run[what] for run in runs)
        table.add_row(
            what, f"{ours:.3f}", f"{seconds:.2f}", f"{seconds / ours:.0f}", f"{our_moves}", f"{moves}",
            f"{our_off:.3f}", f"{off:.3f}",
        )  # fmt: skip
    added = swift["one node added"][0]
    table.add_row("... in a new process", f"{cold:.3f}", f"{added:.2f}", f"{added / cold:.0f}")
    console.print(table)


def large() -> None:
    with TemporaryDirectory() as folder:
        path = f"{folder}/layout.json"
        created = alone(create, path, LARGE_PARTITIONS, LARGE_NODES)
        first, again, moves, peak = alone(plan, path, LARGE_NODES // 100)
    table = Table(
        "first placement, s", "plan for 1 % more nodes, s", "the same again, s", "moves", "peak memory, MiB",
        title=f"{LARGE_PARTITIONS:,} partitions on {LARGE_NODES:,} nodes",
    )  # fmt: skip
    table.add_row(f"{created:.2f}", f"{first:.2f}", f"{again:.2f}", f"{moves:,}", f"{peak:,}")
    console.print(table)


def against_uhashring() -> None:
    try:
        import uhashring
    except ImportError as error:
        console.print(f"Nothing to compare owners of keys with: {error}")
        return
    names = [f"w{i}" for i in range(RING_NODES)]
    strings = [f"user-{i:09}" for i in range(KEYS)]
    array, series, sample = pa.array(strings), pd.Series(strings, dtype="str"), strings[:: KEYS // SAMPLE]
    ours = HashRing(names, vnodes=VNODES)
    theirs = uhashring.HashRing(
        names, vnodes=VNODES, hash_fn=lambda key: xxhash.xxh64_intdigest(key.encode())
    )
    runs: dict[str, tuple[int, Callable[[], Any]]] = {
        "uhashring": (SAMPLE, lambda: [theirs.get_node(key) for key in sample]),
        "ours, Arrow strings": (KEYS, lambda: ours.owners(array)),
        "ours, a pandas Series": (KEYS, lambda: ours.owners(series)),
        "ours, a list of str": (KEYS, lambda: ours.owners(strings)),
    }
    best = {name: float("inf") for name in runs}
    for _ in range(4):
        for name, (number, work) in runs.items():
            best[name] = min(best[name], timed(work)[0] / number)
    table = Table(
        "", "ns a key", "uhashring / ours",
        title=f"Owners of {KEYS:,} keys of 14 bytes, {RING_NODES} nodes of {VNODES} virtual nodes; "
        f"uhashring: of {SAMPLE:,} of them",
    )  # fmt: skip
    for name, seconds in best.items():
        ratio = "" if name == "uhashring" else f"{best['uhashring'] / seconds:.0f}"
        table.add_row(name, f"{1e9 * seconds:,.0f}", ratio)
    console.print(table)


def main() -> None:
    large()
    against_swift()
    against_uhashring()


if __name__ == "__main__":
    main()
