"""Repartitioning TPC-H tables from Parquet into memory, against Dask's own shuffles in one run.

`lineitem` by `l_orderkey` and `orders` by `o_custkey`, on two worker processes of one thread each.
DuckDB makes the tables; rows are compared with its own.

    python benchmarks/tpch.py [scale factor] [output partitions]
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

import dask.dataframe as dd
import duckdb
from distributed import Client, LocalCluster
from repartition import best_of
from rich.console import Console
from rich.table import Table

from chash_partition import chash_repartition

KEYS = {"lineitem": "l_orderkey", "orders": "o_custkey", "customer": "c_custkey"}
FILES = 16
REPEATS = 3


def generate(folder: Path, scale: float = 1) -> None:
    """The tables as `<folder>/<table>/<number>.parquet`."""
    import duckdb_extension_tpch

    [extension] = Path(duckdb_extension_tpch.__path__[0]).rglob("tpch.duckdb_extension")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.load_extension(str(extension))
        connection.execute(f"CALL dbgen(sf={scale})")
        for table in KEYS:
            (folder / table).mkdir(parents=True)
            [(rows,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
            for i in range(FILES):
                first, last = i * rows // FILES, (i + 1) * rows // FILES
                connection.execute(
                    f"COPY (SELECT * FROM {table} LIMIT {last - first} OFFSET {first}) "
                    f"TO '{folder / table / f'{i:02}.parquet'}' (FORMAT parquet)"
                )


def main(scale: float = 1, npartitions: int = 64) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    table = Table("table", "ours", "p2p", "tasks", "better of Dask's / ours", "reading alone")
    table.title = f"TPC-H at scale factor {scale:g}, Parquet into {npartitions} partitions in memory, s"
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), scale)
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="10GiB"
        )
        with cluster, Client(cluster):
            for name in ("lineitem", "orders"):
                key, df = KEYS[name], dd.read_parquet(f"{folder}/{name}")
                ways = {
                    "ours": lambda df=df, key=key: df.pipe(chash_repartition, key, npartitions=npartitions),
                    "p2p": lambda df=df, key=key: df.shuffle(
                        key, npartitions=npartitions, shuffle_method="p2p"
                    ),
                    "tasks": lambda df=df, key=key: df.shuffle(
                        key, npartitions=npartitions, shuffle_method="tasks"
                    ),
                    "reading": lambda df=df: df,
                }
                best = best_of(ways, len(df), REPEATS)
                ratio = min(best["p2p"], best["tasks"]) / best["ours"]
                table.add_row(
                    name,
                    *(f"{best[way]:.2f}" for way in ("ours", "p2p", "tasks")),
                    f"{ratio:.1f}",
                    f"{best['reading']:.2f}",
                )
    Console(width=100).print(table)


if __name__ == "__main__":
    main(*(kind(argument) for argument, kind in zip(sys.argv[1:], (float, int), strict=False)))
