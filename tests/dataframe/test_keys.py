"""Keys may be columns, or levels of the index; either way equal keys meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from frames import assert_placed, assert_same_rows, blocks_of, of_blocks, sample, split

from chash_partition import chash_repartition
from chash_partition.dataframe.keys import keys_of

FRAME = sample().set_index("k").drop(columns="j")
P = 5


def place(frame: pd.DataFrame, on: Any = "k", **options: Any) -> dd.DataFrame:
    return split(frame).pipe(chash_repartition, on, npartitions=P, nodes=["a", "b"], **options)


@pytest.mark.parametrize("on", [["k"], ["k", "j"], [3, "k"], [1, 0], ["j", ("a", 1)]])
def test_keys_of_columns_and_levels(on: list[Any]) -> None:
    columns = pd.DataFrame(sample()[["k", "j"][: len(on)]].to_numpy())
    columns.columns = pd.Index(on, dtype=object, tupleize_cols=False)
    for index in (on, on[:1], on[-1:]):
        found = keys_of(columns.set_index(index), on)
        pd.testing.assert_frame_equal(found.reset_index(drop=True), columns)


KEEP: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda df: df,
    "filtered": lambda df: df[df.x > 0],
    "projected": lambda df: df[["y", "row"]],
    "assigned": lambda df: df.assign(z=df.x + 1),
    "dropped": lambda df: df.drop(columns="x"),
    "renamed": lambda df: df.rename(columns={"x": "z", "k": "q"}),
    "prefixed": lambda df: df.add_prefix("p_"),
    "suffixed": lambda df: df.add_suffix("_s"),
}


@pytest.mark.parametrize("how", KEEP)
def test_a_key_in_the_index_is_kept_by(how: str, local: None) -> None:
    placed, expected = KEEP[how](place(FRAME)), KEEP[how](FRAME)
    assert placed.chash.layout.on == ("k",)
    assert_placed(blocks_of(placed), placed.chash.layout)
    assert_placed(blocks_of(placed.chash.persist()), placed.chash.layout)
    assert_same_rows(placed.compute(), expected, index=True)
    assert_same_rows(placed.chash.lookup(7), expected[expected.index == 7], index=True)


LOSE: dict[str, Callable[[Any], Any]] = {
    "a column of its name": lambda df: df.assign(k=df.x),
    "a column renamed to it": lambda df: df.rename(columns={"x": "k"}),
    "a prefix that makes it": lambda df: df[["y"]].rename(columns={"y": ""}).add_prefix("k"),
    "no index": lambda df: df.reset_index(drop=True),
    "another index": lambda df: df.set_index("x"),
}


@pytest.mark.filterwarnings("ignore:Passing more than 2 positional")  # Dask 2025.7 with the newest numpy
@pytest.mark.parametrize("how", LOSE)
def test_a_key_in_the_index_is_lost_by(how: str, local: None) -> None:
    placed = LOSE[how](place(FRAME))
    with pytest.raises(ValueError, match="not placed"):
        _ = placed.chash
    assert_same_rows(placed.compute(), LOSE[how](FRAME))


def test_work_by_a_key_in_the_index_is_right(local: None) -> None:
    placed, other = place(FRAME), sample(seed=1)[["k", "j"]].rename(columns={"j": "w"})
    assert_same_rows(
        placed.groupby("k").agg({"x": "sum"}).compute(), FRAME.groupby("k").agg({"x": "sum"}), index=True
    )
    assert_same_rows(
        placed.reset_index().groupby("k").x.sum().compute(), FRAME.groupby("k").x.sum(), index=True
    )
    for right in (split(other), place(other), place(other.set_index("k"))):
        plain = other if "k" in right.columns else other.set_index("k")
        assert_same_rows(placed.merge(right, on="k").compute(), FRAME.merge(plain, on="k"))
        assert_same_rows(
            placed.merge(right, on="k", how="outer").compute(), FRAME.merge(plain, on="k", how="outer")
        )


def test_chash_merge_by_a_key_in_the_index_says_what_to_do(local: None) -> None:
    with pytest.raises(ValueError, match=r"'k'.*index.*reset_index"):
        place(FRAME).chash.merge(sample())
    assert place(FRAME).reset_index().chash.merge(sample()).chash.layout.on == ("k",)


def test_a_key_that_is_nowhere_or_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'q' is neither a column .*'x'.* nor a level .*'k'"):
        place(FRAME, "q")
    twice = sample().set_index(["j", "k"]).rename_axis(["k", "k"])
    plain = dd.from_map(lambda block: block, [twice], meta=twice[:0])
    with pytest.raises(ValueError, match=r"'k' names 2 levels"):
        chash_repartition(plain, "k")


@pytest.mark.parametrize("names", [["k"], ["k", "j"]])
def test_a_level_is_not_taken_for_a_column_that_is_gone(names: list[Any], local: None) -> None:
    frame = sample().rename(columns={"k": names[0]})
    levels = [pd.Index(np.arange(120) % (5 + i), name=name) for i, name in enumerate(names)]
    index = levels[0] if len(levels) == 1 else pd.MultiIndex.from_arrays(levels)
    plain = of_blocks([frame.set_index(index)[:50], frame.set_index(index)[50:]])
    placed = plain.pipe(chash_repartition, names[0], npartitions=P, nodes=["a"])
    assert placed.chash.layout.on == (names[0],)
    for df in (placed[["x"]], placed[placed.x > 0][["x"]], placed.drop_duplicates()[["x"]]):
        with pytest.raises(ValueError, match="not placed"):
            _ = df.chash


def test_a_column_comes_before_a_level(local: None) -> None:
    frame = sample().set_index(pd.Index(np.arange(120) % 7, name="k"))
    placed = place(frame)
    assert_placed(blocks_of(placed), placed.chash.layout)
    assert_same_rows(placed.chash.lookup(3), frame[frame["k"] == 3], index=True)
