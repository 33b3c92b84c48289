"""What following the workers costs: against shuffling again, and when nothing happens.

    python benchmarks/rebalance.py          # both
    python benchmarks/rebalance.py idle     # the second only

1. Four worker processes hold 64 partitions of 8 million rows; a fifth joins. Moving its share to it,
   against repartitioning the frame over the five.
2. 1,000 partitions on 50 workers in one process, with `autobalance` on. How long its handlers on the
   scheduler take when nothing changes, and the longest that one of them takes when a worker joins and one
   retires.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import defaultdict
from functools import wraps

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, wait
from repartition import BLOCKS, block

from chash_partition import chash_repartition
from chash_partition.cluster import autobalance, plugin

QUIET = 20


def against_shuffling(rows: int = 8_000_000, npartitions: int = 64) -> None:
    cluster = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0", memory_limit="11GiB")
    with cluster, Client(cluster) as client:
        meta = block(0, 1, "str")[:0]
        df = dd.from_map(block, range(BLOCKS), rows=rows // BLOCKS, kind="str", meta=meta).persist()
        wait(df)
        placed = df.pipe(chash_repartition, "key", npartitions=npartitions).chash.persist()
        wait(placed)
        cluster.scale(5)
        client.wait_for_workers(5)

        start = time.perf_counter()
        plan = placed.chash.rebalance(progress=False)
        moving = time.perf_counter() - start
        times = {}
        ways = {
            "chash_repartition": lambda: df.pipe(chash_repartition, "key", npartitions=npartitions),
            "Dask's shuffle": lambda: df.shuffle("key", npartitions=npartitions, shuffle_method="p2p"),
        }
        for name, way in ways.items():
            start = time.perf_counter()
            again = way().persist()
            wait(again)
            times[name] = time.perf_counter() - start
            del again
    print(f"a fifth worker joins: {len(plan.moves)} of {npartitions} partitions, {plan.nbytes / 1e6:.0f} MB")
    print(f"  moved in {moving:.2f} s")
    for name, seconds in times.items():
        print(f"  {name} of all: {seconds:.2f} s, {seconds / moving:.0f} times as long")


def watched(spent: dict[str, list[float]]) -> None:
    """Note what each call of the handlers takes."""

    def watch(cls: type, name: str) -> None:
        function = getattr(cls, name)

        @wraps(function)
        def timed(*arguments, **options):
            start = time.perf_counter()
            result = function(*arguments, **options)
            if name == "run":  # a generator, which the manager sends its answers to
                suggestions = list(result)
                result = (suggestion for suggestion in suggestions)
            spent[f"{cls.__name__}.{name}"].append(time.perf_counter() - start)
            return result

        setattr(cls, name, timed)

    for cls, names in {
        autobalance.Autobalance: (
            *("transition", "add_worker", "remove_worker", "look_at_workers", "valid_workers_downscaling"),
            *("_as_placed", "_nodes", "status"),
        ),
        autobalance.LeaveToOwners: ("run",),
        plugin.ChashPlugin: ("live", "update_graph", "register"),
        plugin.ReduceToOwners: ("run",),
    }.items():
        for name in names:
            watch(cls, name)


def idle(npartitions: int = 1000, workers: int = 50) -> None:
    spent: dict[str, list[float]] = defaultdict(list)
    watched(spent)
    cluster = LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit=0
    )
    with cluster, Client(cluster) as client:
        rows = pd.DataFrame({"k": np.arange(100_000)})
        df = dd.from_pandas(rows, npartitions=4).pipe(chash_repartition, "k", npartitions=npartitions)
        df = df.chash.persist()
        wait(df)

        def settled(follows, n: int) -> None:
            while (status := follows.status()).state != "settled" or len(status.workers) != n:
                time.sleep(0.1)

        with df.chash.autobalance() as follows:
            settled(follows, workers)
            spent.clear()
            time.sleep(QUIET)
            quiet = sum(map(sum, spent.values()))
            share = quiet / QUIET
            print(f"{npartitions:,} partitions on {workers} workers, for {QUIET} s in which nothing changes:")
            print(f"  {quiet * 1000:.1f} ms in handlers, {share:.3%} of the scheduler's time")
            spent.clear()
            cluster.scale(workers + 1)
            settled(follows, workers + 1)
            plans = follows.status()
            client.retire_workers(names=["3"])
            settled(follows, workers)
            longest = max(spent, key=lambda name: max(spent[name]))
            print(f"one joins, one retires: {follows.status().moves} moves, {plans.failures} failures")
            print(f"  the longest handler: {longest}, {max(spent[longest]) * 1000:.1f} ms")
            print(f"  the last plan, in a thread: {follows.status().plan_seconds * 1000:.1f} ms")


def main() -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    if "idle" not in sys.argv[1:]:
        against_shuffling()
    idle()


if __name__ == "__main__":
    main()
