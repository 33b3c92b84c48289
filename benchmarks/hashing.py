"""Key hashes a second against peers, in one run: int64 and strings of four lengths, one thread.

    python benchmarks/hashing.py [rows]

Peers: pandas' ``hash_pandas_object``, which Dask partitions by; polars-hash; DuckDB's ``hash()``; the
``xxhash`` binding, one call a value. Each figure is the best of several runs on data that is already in the
peer's own layout, so nobody pays for a conversion. polars-hash and DuckDB are optional (extra ``bench``).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")

import numpy as np
import pandas as pd
import pyarrow as pa
import xxhash
from rich.console import Console
from rich.table import Table

from chash_partition.hashing import hash_keys

Peer = Callable[[pa.Array], Callable[[], Any]]


def chash(array: pa.Array) -> Callable[[], Any]:
    return lambda: hash_keys(array)


def pandas(array: pa.Array) -> Callable[[], Any]:
    if pa.types.is_integer(array.type):
        series = pd.Series(array.to_numpy())
    else:
        series = pd.Series(array, dtype=pd.StringDtype("pyarrow"))
    return lambda: pd.util.hash_pandas_object(series, index=False)


def xxhash_loop(array: pa.Array) -> Callable[[], Any]:
    digest = xxhash.xxh64_intdigest
    if pa.types.is_integer(array.type):
        data = memoryview(array.to_numpy().tobytes()).cast("B")
        values: list[Any] = [data[i : i + 8] for i in range(0, len(data), 8)]
    else:
        values = array.cast(pa.large_binary()).to_pylist()
    return lambda: np.fromiter(map(digest, values), np.uint64, len(values))


def polars_hash(array: pa.Array) -> Callable[[], Any]:
    import polars as pl
    import polars_hash as plh

    if pa.types.is_integer(array.type):
        raise NotImplementedError("it hashes strings and binary only")
    frame = pl.DataFrame({"key": pl.from_arrow(array)})
    return lambda: frame.select(plh.col("key").nchash.xxhash64())


def duckdb_hash(array: pa.Array) -> Callable[[], Any]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    table = pa.table({"key": array})
    connection.register("arrow", table)
    connection.execute("create table keys as select * from arrow")
    # An aggregate reads every hash without making a result of five million rows.
    return lambda: connection.execute("select bit_xor(hash(key)) from keys").fetchall()


PEERS: dict[str, Peer] = {
    "chash-partition": chash,
    "pandas": pandas,
    "polars-hash": polars_hash,
    "DuckDB": duckdb_hash,
    "xxhash loop": xxhash_loop,
}


def columns(rows: int) -> dict[str, pa.Array]:
    """Distinct keys, so that nobody gains by hashing repeated values once."""
    numbers = np.random.default_rng(0).permutation(rows).astype(np.int64)
    digits = pd.Series(numbers).astype(str).str.zfill(8)
    strings = {
        f"string, {n} bytes": pa.array(digits.str.rjust(n, "k"), pa.large_string()) for n in (8, 14, 36, 100)
    }
    return {"int64": pa.array(numbers), **strings}


def best(runs: dict[str, Callable[[], Any]], budget: float = 3.0) -> dict[str, float]:
    """Shortest time of each; they take turns, so that what else the machine does strikes all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(40):
        for name, run in runs.items():
            if len(times[name]) < 3 or sum(times[name]) < budget:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: min(spent) for name, spent in times.items()}


def main(rows: int = 5_000_000) -> None:
    table = Table(
        "keys", *PEERS, title=f"Million key hashes a second, {rows:,} rows, and how many times as fast we are"
    )
    missing: dict[str, str] = {}
    for label, array in columns(rows).items():
        runs: dict[str, Callable[[], Any]] = {}
        for name, peer in PEERS.items():
            try:
                runs[name] = peer(array)
            except (ImportError, NotImplementedError) as error:
                missing[f"{name}, {label}"] = str(error)
        seconds = best(runs)
        ours = seconds["chash-partition"]
        cells = [
            "-"
            if name not in seconds
            else f"{rows / seconds[name] / 1e6:,.1f}"
            + ("" if name == "chash-partition" else f"  ({seconds[name] / ours:.1f}x)")
            for name in PEERS
        ]
        table.add_row(label, *cells)
    Console(width=120).print(table)
    for name, why in missing.items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
