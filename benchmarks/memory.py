"""Repartitioning data larger than the cluster's memory, Parquet to Parquet, beside Dask's P2P.

Two worker processes of one thread, limited to 1 GiB each. Printed: the time, the largest resident
memory of a worker, and how often one paused.

    python benchmarks/memory.py [GiB in memory] [output partitions]
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pyarrow.dataset as ds
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table

from chash_partition import chash_repartition

ROWS = 500_000  # a block
COLUMNS = 8


def block(i: int) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    numbers = {f"c{j}": rng.normal(size=ROWS) for j in range(COLUMNS - 2)}
    key = rng.integers(0, 10_000_000, ROWS)
    return pd.DataFrame({"key": key, "row": np.arange(ROWS) + i * ROWS, **numbers})


def peaks(pids: list[int], stop: threading.Event) -> dict[int, int]:
    """The largest resident memory of each process until `stop`, in bytes."""
    found = dict.fromkeys(pids, 0)
    processes = [psutil.Process(pid) for pid in pids]
    while not stop.wait(0.02):
        for process in processes:
            if process.is_running():
                found[process.pid] = max(found[process.pid], process.memory_info().rss)
    return found


def pauses(dask_scheduler: object) -> int:
    events = [e for worker in dask_scheduler.workers for _, e in dask_scheduler.get_events(worker)]
    return sum(event.get("action") == "worker-status-change" and "paused" in str(event) for event in events)


def main(gib: float = 6, npartitions: int = 128) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    blocks = int(gib * 2**30 / (ROWS * COLUMNS * 8)) + 1
    table = Table("way", "s", "peak RSS of each worker, MiB", "pauses", "rows")
    table.title = f"{blocks * ROWS * COLUMNS * 8 / 2**30:.1f} GiB, {blocks} into {npartitions} partitions"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as watch:
        Path(folder, "in").mkdir()
        for i in range(blocks):
            block(i).to_parquet(f"{folder}/in/{i:04}.parquet", index=False, compression=None)
        for way in ("ours", "shards", "p2p"):
            cluster = LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                memory_limit="1GiB",
                dashboard_address=":0",
                local_directory=f"{folder}/{way}-local",
            )
            with cluster, Client(cluster) as client:
                stop = threading.Event()
                found = watch.submit(peaks, list(client.run(os.getpid).values()), stop)
                start = time.perf_counter()
                df = dd.read_parquet(f"{folder}/in")
                if way == "p2p":
                    df = df.shuffle("key", npartitions=npartitions, shuffle_method="p2p")
                else:
                    df = df.pipe(chash_repartition, "key", npartitions=npartitions)
                if way == "shards":
                    df.chash.to_parquet(f"{folder}/{way}")
                else:
                    df.to_parquet(f"{folder}/{way}", write_index=False)
                seconds = time.perf_counter() - start
                stop.set()
                paused = client.run_on_scheduler(pauses)
            written = f"{folder}/{way}/data" if way == "shards" else f"{folder}/{way}"
            rows = ds.dataset(written).to_table(columns=["row"])["row"].to_numpy()
            whole = np.array_equal(np.sort(rows), np.arange(blocks * ROWS))
            memory = ", ".join(f"{peak / 2**20:.0f}" for peak in found.result().values())
            table.add_row(way, f"{seconds:.0f}", memory, str(paused), "all, once" if whole else "WRONG")
    Console(width=100).print(table)


if __name__ == "__main__":
    main(*(kind(argument) for argument, kind in zip(sys.argv[1:], (float, int), strict=False)))
