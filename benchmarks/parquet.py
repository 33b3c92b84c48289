"""Shards on disk: writing them beside Dask's shuffle and to_parquet, and looking up one key.

TPC-H `lineitem`, two worker processes of one thread; peers take turns in one run.

    python benchmarks/parquet.py [scale factor] [shards]
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow.parquet as pq
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table
from tpch import generate

from chash_partition import ShardedDataset, chash_repartition

KEY = "l_orderkey"
REPEATS = 2
LOOKUPS = 12
ROW_GROUP = 2_000


def bytes_read() -> int:
    """Bytes that this process has read from files so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def timed(function: Callable[[], Any]) -> tuple[float, int, Any]:
    """Seconds, bytes read and what it returned."""
    before, start = bytes_read(), time.perf_counter()
    out = function()
    return time.perf_counter() - start, bytes_read() - before, out


def writing(source: str, folder: Path, shards: int) -> dict[str, float]:
    """Best seconds of each way to write the rows of a key into one of so many files."""
    df = dd.read_parquet(source)

    def theirs(method: str) -> Callable[[str], Any]:
        return lambda path: df.shuffle(KEY, npartitions=shards, shuffle_method=method).to_parquet(
            path, write_index=False
        )

    ways: dict[str, Callable[[str], Any]] = {
        "ours": lambda path: df.pipe(chash_repartition, KEY, npartitions=shards).chash.to_parquet(path),
        "p2p": theirs("p2p"),
        "tasks": theirs("tasks"),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    rows = len(df)
    for _ in range(REPEATS + 1):
        for way, write in ways.items():
            path = folder / way
            shutil.rmtree(path, ignore_errors=True)
            start = time.perf_counter()
            write(str(path))
            seconds[way].append(time.perf_counter() - start)
            files = list(path.rglob("*.parquet"))
            assert len(files) == shards
            assert sum(pq.read_metadata(file).num_rows for file in files) == rows
    return {way: min(runs[1:]) for way, runs in seconds.items()}


def looking_up(source: str, dataset: ShardedDataset) -> dict[str, tuple[float, float]]:
    """Median seconds and bytes of each way to find the rows of a key."""
    keys = pd.read_parquet(source, columns=[KEY])[KEY].drop_duplicates().sample(LOOKUPS, random_state=0)
    found: dict[str, list[tuple[float, int]]] = {"ours": [], "dd.read_parquet": []}
    with dask.config.set(scheduler="threads"):
        for key in keys.tolist():
            s, n, ours = timed(lambda key=key: dataset.lookup(key))
            found["ours"].append((s, n))
            s, n, theirs = timed(
                lambda key=key: dd.read_parquet(source, filters=[(KEY, "==", key)]).compute()
            )
            found["dd.read_parquet"].append((s, n))
            assert ours.num_rows == len(theirs) > 0
    return {
        way: (pd.Series([s for s, _ in runs]).median(), pd.Series([n for _, n in runs]).median())
        for way, runs in found.items()
    }


def main(scale: float = 1, shards: int = 64) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        generate(folder, scale)
        source = f"{folder}/lineitem"
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="10GiB"
        )
        with cluster, Client(cluster):
            written = writing(source, folder, shards)
            df = dd.read_parquet(source).pipe(chash_repartition, KEY, npartitions=shards)
            df.chash.to_parquet(f"{folder}/sorted", sort_within=KEY, row_group_size=ROW_GROUP)
            # The same rows in no order, as they are where the key is not when they came.
            whole = pd.read_parquet(source).sample(frac=1, random_state=0)
            files = len(list(Path(source).iterdir()))
            (folder / "mixed").mkdir()
            for i in range(files):
                whole.iloc[i::files].to_parquet(folder / "mixed" / f"{i:02}.parquet", index=False)
            del whole
        table = Table("ours", "p2p", "tasks", "better of Dask's / ours")
        table.title = f"lineitem, TPC-H at scale factor {scale:g}, written into {shards} files, s"
        ratio = min(written["p2p"], written["tasks"]) / written["ours"]
        table.add_row(*(f"{written[way]:.2f}" for way in ("ours", "p2p", "tasks")), f"{ratio:.1f}")
        console = Console(width=100)
        console.print(table)
        dataset = ShardedDataset(folder / "sorted")
        lookups = Table("unsharded rows", "way", "ms", "kB read", "dd.read_parquet / ours")
        lookups.title = "One order looked up, medians"
        for order, unsharded in (("by key, as TPC-H makes them", source), ("in no order", f"{folder}/mixed")):
            found = looking_up(unsharded, dataset)
            for way, (seconds, nbytes) in found.items():
                times = seconds / found["ours"][0]
                ratio_text = "" if way == "ours" else f"{times:.0f}"
                lookups.add_row(order, way, f"{seconds * 1000:.1f}", f"{nbytes / 1000:,.0f}", ratio_text)
        console.print(lookups)


if __name__ == "__main__":
    main(*(kind(argument) for argument, kind in zip(sys.argv[1:], (float, int), strict=False)))
