"""Joining TPC-H lineitem and orders that are in memory, placed by order key, against plain Dask.

Two worker processes of one thread; peers take turns in one run. Also printed: the bytes that the join
of the placed frames moved between workers.

    python benchmarks/join.py [scale factor]
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
from distributed import Client, LocalCluster, Worker, wait
from rich.console import Console
from rich.table import Table
from tpch import FILES, generate

from chash_partition import chash_repartition

COLUMNS = {
    "lineitem": ["l_orderkey", "l_partkey", "l_extendedprice", "l_shipdate"],
    "orders": ["o_orderkey", "o_custkey", "o_orderdate"],
}
REPEATS = 4


def read(path: str, columns: list[str]) -> pd.DataFrame:
    return pd.read_parquet(path, columns=columns)


def received(client: Client) -> int:
    def log(dask_worker: Worker) -> int:
        return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)

    return sum(client.run(log).values())


def main(scale: float = 1) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), scale)
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="10GiB"
        )
        with cluster, Client(cluster) as client:
            plain = {}
            for name, columns in COLUMNS.items():
                paths = [f"{folder}/{name}/{i:02}.parquet" for i in range(FILES)]
                meta = read(paths[0], columns)[:0]
                plain[name] = dd.from_map(read, paths, columns=columns, meta=meta).persist()
            lines = plain["lineitem"].pipe(chash_repartition, "l_orderkey", npartitions=64).chash.persist()
            layout = lines.chash.layout.rename("o_orderkey")
            orders = plain["orders"].pipe(chash_repartition, "o_orderkey", layout=layout).chash.persist()
            wait([lines, orders, *plain.values()])
            ways = {"placed": (lines, orders), "plain Dask": (plain["lineitem"], plain["orders"])}
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            moved = 0
            for _ in range(REPEATS):
                for way, (left, right) in ways.items():
                    before, start = received(client), time.perf_counter()
                    joined = left.merge(right, left_on="l_orderkey", right_on="o_orderkey").persist()
                    wait(joined)
                    seconds[way].append(time.perf_counter() - start)
                    moved += received(client) - before if way == "placed" else 0
                    assert len(joined) == len(left)
                    del joined
    best = {way: min(runs[1:]) for way, runs in seconds.items()}
    table = Table("placed, s", "plain Dask, s", "plain / placed", "bytes moved by the placed join")
    table.title = f"lineitem joined to orders, TPC-H at scale factor {scale:g}"
    ratio = best["plain Dask"] / best["placed"]
    table.add_row(f"{best['placed']:.2f}", f"{best['plain Dask']:.2f}", f"{ratio:.1f}", str(moved))
    Console(width=100).print(table)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
