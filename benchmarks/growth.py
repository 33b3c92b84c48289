"""How the time of a repartition grows with rows and with output partitions.

On two worker processes of one thread each, string keys, from memory to memory, the best of several
runs. Beside it the floor: the same repartition of next to no rows, so what Dask itself takes for that
many partitions.

    python benchmarks/growth.py
"""

from __future__ import annotations

import logging
import os

import dask.dataframe as dd
from distributed import Client, LocalCluster, wait
from repartition import BLOCKS, best_of, block
from rich.console import Console
from rich.table import Table

from chash_partition import chash_repartition

REPEATS = 5


def seconds(frame: dd.DataFrame, npartitions: int) -> float:
    ways = {"ours": lambda: frame.pipe(chash_repartition, "key", npartitions=npartitions)}
    return best_of(ways, len(frame), REPEATS)["ours"]


def main() -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    table = Table("million rows", "partitions", "s", "ns a row", "floor, s", title=f"from {BLOCKS} blocks")
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="11GiB")
    with cluster, Client(cluster):
        few = dd.from_map(block, range(BLOCKS), rows=1, kind="str", meta=block(0, 1, "str")[:0]).persist()
        for millions in (1, 4, 8, 16):
            meta = block(0, 1, "str")[:0]
            rows = millions * 10**6 // BLOCKS
            df = dd.from_map(block, range(BLOCKS), rows=rows, kind="str", meta=meta).persist()
            wait(df)
            for npartitions in (16, 64, 256, 1024) if millions == 8 else (64,):
                ours, floor = (seconds(frame, npartitions) for frame in (df, few))
                row = (millions, npartitions, f"{ours:.2f}", f"{ours / millions * 1000:.0f}", f"{floor:.2f}")
                table.add_row(*map(str, row))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
