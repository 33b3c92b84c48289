"""Blocks are split once, into the shares of groups of partitions."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed.utils import get_mp_context
from frames import assert_placed, assert_unchanged, blocks_of, shuffles, split
from test_repartition import CASES

from chash_partition import Layout, chash_repartition
from chash_partition.dataframe.blocks import GROUPS, groups_of, share_of, slots_of, split_block, stack
from chash_partition.dataframe.keys import keys_of

# Some groups have one, and some have two.
P = GROUPS * 5 // 4


@pytest.mark.parametrize("npartitions", [1, 2, 31, 32, 33, 100, 1000])
def test_groups_are_few_and_hold_each_partition_once(npartitions: int) -> None:
    groups = groups_of(range(npartitions))
    assert [p for group in groups for p in group] == list(range(npartitions))
    assert len(groups) == min(npartitions, GROUPS)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


KINDS_AND_FILES = [
    pytest.param(kind, file, marks=() if (number + turn) % 2 else pytest.mark.thorough)
    for number, kind in enumerate(CASES)
    for turn, file in enumerate([None, "a file"])
]


@pytest.mark.parametrize(("kind", "file"), KINDS_AND_FILES)
def test_what_is_split_is_stacked_again(
    kind: str, file: str | None, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    on, case = CASES[kind]
    on = on if isinstance(on, list) else [on]
    block = case()[1]
    before, meta = block.copy(), block.iloc[:0]
    groups = groups_of(range(P))
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        shares = split_block(block, meta, on, 5, slots_of(groups, P), file)
        # A file is read where its shares are sent on to another process.
        shares = [shares, pickle.loads(pickle.dumps(shares))][len(block) % 2]
    expected = Layout.create(on, P, ["a"], seed=5).partition_of(keys_of(block, on))
    for number, members in enumerate(groups):
        whole = stack(meta, share_of(shares, str(number)), None)
        for slot, partition in enumerate(pickle.loads(pickle.dumps(members))):
            assert_unchanged(whole.unpack(slot), block[expected == partition])
    assert_unchanged(block, before)
    assert not list(tmp_path.iterdir())
    del shares, whole


def test_a_value_that_cannot_be_a_key_is_named() -> None:
    values: Any = np.empty(3, dtype=object)
    values[:] = ["a", 1, {"not": "a key"}]
    frame = pd.DataFrame({"k": values})
    with pytest.raises(TypeError, match=r"'k'.*row 2"):
        split_block(frame, frame.iloc[:0], ["k"], 0, slots_of(groups_of(range(4)), 4), None)


def assert_same_rows_on(scheduler: str, engine: str, **options: Any) -> None:
    frame = pd.DataFrame({"k": np.arange(400) % 37, "s": np.arange(400).astype(str)})
    placed = split(frame, 5).pipe(chash_repartition, "k", npartitions=P, nodes=["a", "b"], engine=engine)
    found = placed.compute(scheduler=scheduler, **options).sort_index()
    pd.testing.assert_frame_equal(found, split(frame).compute())


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("engine", ["tasks", "auto"])
def test_threads_will_do(scheduler: str, engine: str) -> None:
    assert_same_rows_on(scheduler, engine)


@pytest.mark.parametrize("engine", ["tasks", "auto"])
def test_processes_will_do(engine: str, processes: ExitStack) -> None:
    # Forked from one that has imported what they need.
    pool = processes.enter_context(ProcessPoolExecutor(2, get_mp_context()))
    assert_same_rows_on("processes", engine, pool=pool)


@pytest.mark.parametrize("npartitions", [129, 32_769, 65_537, 200_000])
def test_partition_numbers_of_any_size(npartitions: int) -> None:
    frame = pd.DataFrame({"k": np.arange(400), "row": np.arange(400)})
    groups, meta = groups_of(range(npartitions)), frame[:0]
    shares = split_block(frame, meta, ["k"], 0, slots_of(groups, npartitions), None)
    expected = pd.Series(Layout.create("k", npartitions, ["a"]).partition_of(frame))
    for number, members in enumerate(groups):
        whole = stack(meta, share_of(shares, str(number)))
        for partition, rows in expected[expected.isin(members)].groupby(expected):
            assert whole.unpack(members.index(partition))["row"].tolist() == rows.index.tolist()
        assert whole.total == expected.isin(members).sum()


@pytest.mark.long
def test_more_partitions_than_an_int16_counts(local: None) -> None:
    frame = pd.DataFrame({"k": np.arange(50_000), "x": 1})
    placed = split(frame, 3).pipe(chash_repartition, "k", npartitions=33_000, nodes=["a", "b"])
    assert_placed(blocks_of(placed), placed.chash.layout)
    summed = placed.merge(placed, on="k").groupby("k").agg({"x_x": "sum"}, split_out=True)
    assert shuffles(summed) == ["TaskPlace"]
    assert len(summed) == 50_000
