"""The shuffle run on clusters of other kinds: workers in one process, and with little memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
from distributed import Client, LocalCluster

from chash_partition import chash_repartition


def block(i: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    frame = pd.DataFrame({"k": rng.integers(0, 10_000, rows), "row": i * rows + np.arange(rows)})
    return frame.assign(text=frame["row"].astype(str), **{f"x{j}": rng.normal(size=rows) for j in range(5)})


def blocks(n: int, rows: int) -> dd.DataFrame:
    return dd.from_map(block, range(n), rows=rows, meta=block(0, 1)[:0])


def test_workers_in_one_process() -> None:
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=2, processes=False, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster),
    ):
        placed = blocks(6, 2_000).pipe(chash_repartition, on="k", npartitions=24)
        got = placed.compute().sort_values("row").reset_index(drop=True)
        pd.testing.assert_frame_equal(got, blocks(6, 2_000).compute().reset_index(drop=True))


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


def test_a_field_that_cannot_be_put_together_is_an_error_and_stays_one() -> None:
    global _attempts
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster) as client,
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
def test_more_than_the_workers_have_memory(tmp_path: Path) -> None:
    rows, n = 500_000, 60  # 2 GiB
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="1GiB",
            dashboard_address=":0",
            local_directory=str(tmp_path / "local"),
        ) as cluster,
        Client(cluster),
    ):
        placed = blocks(n, rows).pipe(chash_repartition, on="k", npartitions=128)
        placed.to_parquet(str(tmp_path / "out"), write_index=False)
        left = [path.name for path in (tmp_path / "local").rglob("*chash*")]
    assert not left
    found = ds.dataset(tmp_path / "out").to_table(columns=["row"])["row"].to_numpy()
    assert np.array_equal(np.sort(found), np.arange(n * rows))
