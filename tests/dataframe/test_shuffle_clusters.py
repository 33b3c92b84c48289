"""The shuffle run in this process, with little memory, and for an asynchronous client."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
from distributed import Client, LocalCluster, wait
from faults import assert_no_trace

from chash_partition import chash_repartition


def block(i: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    frame = pd.DataFrame({"k": rng.integers(0, 10_000, rows), "row": i * rows + np.arange(rows)})
    return frame.assign(text=frame["row"].astype(str), **{f"x{j}": rng.normal(size=rows) for j in range(5)})


def blocks(n: int, rows: int) -> dd.DataFrame:
    return dd.from_map(block, range(n), rows=rows, meta=block(0, 1)[:0])


def assert_same(got: pd.DataFrame, n: int, rows: int) -> None:
    """The rows of all blocks, in any order."""
    expected = pd.concat([block(i, rows) for i in range(n)], ignore_index=True)
    got = got.sort_values("row").reset_index(drop=True)
    pd.testing.assert_frame_equal(got, expected.astype(got.dtypes))


NewCluster = Callable[..., LocalCluster]


def test_workers_in_one_process(new_cluster: NewCluster) -> None:
    with Client(new_cluster(3, processes=False, threads_per_worker=2)) as client:
        assert_same(blocks(6, 2_000).pipe(chash_repartition, on="k", npartitions=24).compute(), 6, 2_000)
        assert_no_trace(client)


async def used_asynchronously(address: str, n: int) -> None:
    """Partitions by the number of workers, each on its owner, and merges."""
    async with Client(address, asynchronous=True) as client:
        await client.wait_for_workers(n)
        placed = blocks(6, 500).pipe(chash_repartition, on="k")
        assert placed.npartitions == 16 * n
        assert_same(await client.compute(placed), 6, 500)
        persisted = client.persist(placed)
        await wait(persisted)
        workers = {*(await client.scheduler.identity(n_workers=-1))["workers"]}
        held = await client.who_has(persisted)
        assert {worker for holders in held.values() for worker in holders} == workers
        joined = placed.merge(blocks(6, 500).pipe(chash_repartition, on="k"), on=["k", "row"])
        assert len(await client.compute(joined)) == 6 * 500


def test_an_asynchronous_client(cluster: LocalCluster) -> None:
    asyncio.run(used_asynchronously(cluster.scheduler_address, 4))


def test_an_asynchronous_client_of_workers_in_this_process(new_cluster: NewCluster) -> None:
    asyncio.run(used_asynchronously(new_cluster(2, processes=False).scheduler_address, 2))


_attempts = itertools.count()


def _made(value: int) -> Fragile:
    if next(_attempts) == 0:
        raise MemoryError("no room for it")
    return Fragile(value)


class Fragile:
    """The first of them that is unpickled cannot be."""

    def __init__(self, value: int):
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.value,)


def fragile(i: int) -> pd.DataFrame:
    frame = pd.DataFrame({"k": range(i, 4000, 4), "text": [str(k) for k in range(i, 4000, 4)]})
    return frame.assign(o=pd.Series([Fragile(k) for k in frame["k"]], dtype=object))


def test_a_field_that_cannot_be_put_together_is_an_error_and_stays_one(new_cluster: NewCluster) -> None:
    global _attempts
    with (
        Client(new_cluster(1, processes=False, threads_per_worker=3)) as client,
        dask.config.set({"dataframe.convert-string": False}),
    ):
        plain = dd.from_map(fragile, range(4), meta=fragile(0)[:0])
        placed = plain.pipe(chash_repartition, on="k", npartitions=6)
        _attempts = itertools.count()
        with pytest.raises(MemoryError, match="no room for it"):
            client.compute(placed, retries=3).result()
        found = plain.pipe(chash_repartition, on="k", npartitions=7).compute().sort_values("k")
        assert found["k"].tolist() == list(range(4000))
        assert found["text"].tolist() == [str(k) for k in range(4000)]
        assert [o.value for o in found["o"]] == list(range(4000))


@pytest.mark.long
def test_more_than_the_workers_have_memory(new_cluster: NewCluster, tmp_path: Path) -> None:
    rows, n = 500_000, 60  # 2 GiB
    with Client(new_cluster(2, "1GiB", local_directory=str(tmp_path / "local"))):
        placed = blocks(n, rows).pipe(chash_repartition, on="k", npartitions=128)
        placed.to_parquet(str(tmp_path / "out"), write_index=False)
        left = [path.name for path in (tmp_path / "local").rglob("*chash*")]
    assert not left
    found = ds.dataset(tmp_path / "out").to_table(columns=["row"])["row"].to_numpy()
    assert np.array_equal(np.sort(found), np.arange(n * rows))
