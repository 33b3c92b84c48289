"""`map_partitions(keeps_key=True)` believes the caller, and checks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from frames import assert_placed, assert_same_rows, blocks_of, of_blocks, sample, split
from test_repartition import KEYS
from tiers import once

from chash_partition import chash_repartition


@once(kind=KEYS, where=["column", "index"])
def test_a_frame_of_any_key_stays_placed(kind: str, where: str, local: None) -> None:
    frame = pd.DataFrame({"k": KEYS[kind], "x": range(24)})
    frame = frame if where == "column" else frame.set_index("k")
    plain = of_blocks([frame.iloc[:9], frame.iloc[9:]])
    placed = plain.pipe(chash_repartition, "k", npartitions=7, nodes=["a"])
    kept = placed.chash.map_partitions(lambda block, n: block[block.x > n], 5, keeps_key=True)
    blocks = blocks_of(kept)
    assert_placed(blocks, kept.chash.layout)
    assert_same_rows(blocks, frame[frame.x > 5], index=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda block: block.assign(k=block.k + 1),
        lambda block: pd.concat([block, block.assign(k=7)]),
        lambda block: block if len(block) else pd.DataFrame({"k": [7], "x": [99]}),
    ],
    ids=["another key", "one key more", "rows of none"],
)
def test_rows_of_other_partitions_are_an_error(function: Any, local: None) -> None:
    placed = split(sample()[["k", "x"]]).pipe(chash_repartition, "k", npartitions=60, nodes=["a"])
    kept = placed.chash.map_partitions(function, keeps_key=True)
    with pytest.raises(ValueError, match=r"was said to keep the key \['k'\]"):
        kept.compute()
    with pytest.raises(ValueError, match="not placed"):
        _ = placed.chash.map_partitions(function).chash


def test_a_function_is_told_its_partition(local: None) -> None:
    def numbered(block: pd.DataFrame, partition_info: dict[str, int] | None = None) -> pd.DataFrame:
        return block.assign(n=-1 if partition_info is None else partition_info["number"])

    placed = split(sample()).pipe(chash_repartition, "k", npartitions=6, nodes=["a"])
    blocks = blocks_of(placed.chash.map_partitions(numbered, keeps_key=True))
    assert [set(block["n"]) <= {i} for i, block in enumerate(blocks)] == [True] * 6


def test_a_function_that_drops_the_key_is_refused_at_once(local: None) -> None:
    placed = split(sample()).pipe(chash_repartition, "k", npartitions=6, nodes=["a"])
    with pytest.raises(ValueError, match="without the key column 'k'"):
        placed.chash.map_partitions(lambda block: block[["x"]], keeps_key=True)


def test_more_partitions_than_the_layout_has_are_not_placed(local: None) -> None:
    one = split(sample()).pipe(chash_repartition, "k", npartitions=1, nodes=["a"])
    other = split(sample(), 3)
    mapped = one.chash.map_partitions(lambda a, b: a, other, keeps_key=True, align_dataframes=False)
    assert mapped.npartitions == 3
    with pytest.raises(ValueError, match="not placed"):
        _ = mapped.chash
