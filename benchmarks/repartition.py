"""Repartitioning against Dask's own shuffles, all in one run on one LocalCluster.

Eight million rows of six columns from 16 into 64 partitions, from memory to memory, on two
worker processes of one thread each; peers take turns, and each is given its best of several
runs. Absolute times mean little; read the ratios.

    python benchmarks/repartition.py [rows in millions] [output partitions]
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client, LocalCluster, wait
from rich.console import Console
from rich.table import Table

from chash_partition import chash_repartition

BLOCKS = 16
REPEATS = 4


def block(i: int, rows: int, kind: str) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    key = rng.integers(0, 1_000_000, rows)
    frame = pd.DataFrame(
        {
            "key": key,
            "a": rng.normal(size=rows),
            "b": rng.normal(size=rows),
            "c": rng.normal(size=rows),
            "d": rng.integers(0, 100, rows),
            "e": rng.integers(0, 10**9, rows),
        }
    )
    if kind == "str":
        digits = pc.utf8_lpad(pc.cast(pa.array(key), pa.string()), 9, "0")
        frame["key"] = pd.array(pc.binary_join_element_wise("user_", digits, ""), dtype="string[pyarrow]")
    return frame


def best_of(ways: dict[str, Callable[[], dd.DataFrame]], rows: int, repeats: int) -> dict[str, float]:
    """The best time of each way to make a frame of so many rows in memory; they take turns.

    The first round, which starts workers' caches and compiled loops, does not count.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, make in ways.items():
            start = time.perf_counter()
            wait(result := make().persist())
            seconds[way].append(time.perf_counter() - start)
            assert len(result) == rows, way  # also raises what `wait` does not
            del result
    return {way: min(runs[1:]) for way, runs in seconds.items()}


def main(rows: int = 8_000_000, npartitions: int = 64) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    table = Table("key", "ours", "p2p", "tasks", "better of Dask's / ours", "ns a row")
    table.title = f"{rows / 1e6:g} million rows of 6 columns, {BLOCKS} into {npartitions} partitions, s"
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="10GiB")
    with cluster, Client(cluster):
        for kind in ("str", "int"):
            meta = block(0, 1, kind)[:0]
            df = dd.from_map(block, range(BLOCKS), rows=rows // BLOCKS, kind=kind, meta=meta).persist()
            wait(df)
            ways = {
                "ours": lambda df=df: df.pipe(chash_repartition, "key", npartitions=npartitions),
                "p2p": lambda df=df: df.shuffle("key", npartitions=npartitions, shuffle_method="p2p"),
                "tasks": lambda df=df: df.shuffle("key", npartitions=npartitions, shuffle_method="tasks"),
            }
            best = best_of(ways, len(df), REPEATS)
            ratio = min(best["p2p"], best["tasks"]) / best["ours"]
            table.add_row(
                kind, *(f"{s:.2f}" for s in best.values()), f"{ratio:.1f}", f"{best['ours'] / rows * 1e9:.0f}"
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main(*(int(float(argument) * scale) for argument, scale in zip(sys.argv[1:], (10**6, 1), strict=False)))
