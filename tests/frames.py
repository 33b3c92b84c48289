"""Frames to place, and how the tests compare and look into them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

from chash_partition import Layout
from chash_partition.dataframe.keys import keys_of


def sample(rows: int = 120, keys: int = 23, seed: int = 0) -> pd.DataFrame:
    """Integers throughout, so that sums are exact in any order; `row` is unique."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "k": rng.integers(0, keys, rows),
            "j": rng.integers(0, 4, rows),
            "x": rng.integers(-50, 50, rows),
            "y": rng.integers(0, 1000, rows),
            "row": np.arange(rows) + 1000 * seed,
        }
    )


def split(frame: pd.DataFrame, npartitions: int = 3) -> dd.DataFrame:
    """A plain Dask frame of the rows in their order, in about as many blocks."""
    return dd.from_pandas(frame, npartitions=npartitions, sort=False)


def of_blocks(blocks: list[pd.DataFrame], meta: pd.DataFrame | None = None) -> dd.DataFrame:
    """A plain Dask frame of exactly these blocks."""
    return dd.from_map(lambda block: block, blocks, meta=blocks[0].iloc[:0] if meta is None else meta)


def blocks_of(frame: dd.DataFrame) -> list[pd.DataFrame]:
    """The partitions, computed together."""
    return list(dask.compute(*frame.to_delayed()))


def _canonical(value: Any) -> Hashable:
    """Equal for what pandas holds equal: nulls are one, and 1 is 1.0."""
    if isinstance(value, (list, dict, tuple, set, np.ndarray)):
        return repr(value)
    if pd.isna(value):
        return None
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return value


def _exact(value: Any) -> Hashable:
    return type(value).__qualname__, repr(value)


def row_counts(frame: pd.DataFrame | pd.Series, index: bool = False) -> Counter[tuple[Hashable, ...]]:
    """How often each row is there, in values as pandas compares them."""
    return _counts(frame, index, _canonical)


def _counts(frame: pd.DataFrame | pd.Series, index: bool, form: Any) -> Counter[tuple[Hashable, ...]]:
    frame = frame.to_frame() if isinstance(frame, pd.Series) else frame
    columns = [list(frame.iloc[:, i]) for i in range(frame.shape[1])]
    if index:
        columns.insert(0, list(frame.index))
    return Counter(zip(*(map(form, column) for column in columns), strict=True))


def assert_same_rows(got: Any, expected: Any, index: bool = False) -> None:
    """The same columns and multiset of rows, in any order and of any dtype. `got` may be a list of blocks."""
    blocks, expected = (
        [_framed(block) for block in (got if isinstance(got, list) else [got])],
        _framed(expected),
    )
    for block in blocks:
        assert list(block.columns) == list(expected.columns)
    ours = sum((row_counts(block, index) for block in blocks), Counter())
    theirs = row_counts(expected, index)
    assert ours == theirs, (
        f"too many: {(ours - theirs).most_common(5)}, missing: {(theirs - ours).most_common(5)}"
    )


def _framed(frame: Any) -> pd.DataFrame:
    return frame.to_frame() if isinstance(frame, pd.Series) else frame


def assert_unchanged(got: pd.DataFrame | list[pd.DataFrame], expected: pd.DataFrame) -> None:
    """The very same rows: columns, dtypes, index and the type of each value too; in any order.

    Of a list of blocks, each has those columns and dtypes. (pandas 2 puts them together with
    other nulls than they have.)
    """
    blocks = got if isinstance(got, list) else [got]
    for block in blocks:
        assert list(block.columns) == list(expected.columns)
        assert block.columns.names == expected.columns.names
        assert block.index.names == expected.index.names
        assert _kind(block.index) is _kind(expected.index)
        assert block.index.dtype == expected.index.dtype
        for ours, theirs in zip(block.dtypes, expected.dtypes, strict=True):
            assert_same_dtype(ours, theirs)
    rows = sum((_counts(block, True, _exact) for block in blocks), Counter())
    assert rows == _counts(expected, True, _exact)


def assert_same_dtype(ours: Any, theirs: Any) -> None:
    """Categories without an order may differ between blocks, in what they are but not in type."""
    if not isinstance(theirs, pd.CategoricalDtype):
        assert ours == theirs
        return
    assert isinstance(ours, pd.CategoricalDtype)
    assert ours.ordered == theirs.ordered
    assert ours.categories.dtype == theirs.categories.dtype
    if theirs.ordered:
        assert list(ours.categories) == list(theirs.categories)


def _kind(index: pd.Index) -> type[pd.Index]:
    return pd.Index if isinstance(index, pd.RangeIndex) else type(index)


def assert_placed(blocks: list[pd.DataFrame], layout: Layout, on: Iterable[Hashable] | None = None) -> None:
    """Partition i holds nothing but rows of partition i."""
    assert len(blocks) == layout.npartitions
    if on is not None:
        layout = layout.rename(list(on))
    for i, block in enumerate(blocks):
        assert set(layout.partition_of(keys_of(block, layout.on)).tolist()) <= {i}


TRAVELS = ("Shuffle", "P2P", "TaskPlace", "BroadcastJoin")


def shuffles(frame: Any) -> list[str]:
    """The class of each step in which rows travel, in the optimised expression."""
    nodes = {node._name: type(node).__name__ for node in frame.optimize(fuse=False).expr.walk()}
    return sorted(name for name in nodes.values() if any(word in name for word in TRAVELS))
