"""What is done to one block of a frame: tag its rows with their partitions, and undo it."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from chash_partition.hashing import hash_keys, partition_ids

# Dask's task shuffle takes a column of this name for ready-made partition numbers.
PARTITION = "_partitions"


def packed_columns(meta: pd.DataFrame) -> tuple[int, ...]:
    """Positions of the columns that Arrow cannot carry unchanged; they travel pickled."""
    return tuple(i for i, dtype in enumerate(meta.dtypes) if not _travels(dtype))


def _travels(dtype: Any) -> bool:
    if isinstance(dtype, np.dtype):
        return dtype.kind in "biufmM"
    if isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype, pd.SparseDtype)):
        return False
    return isinstance(dtype, (pd.CategoricalDtype, pd.DatetimeTZDtype, pd.ArrowDtype, pd.StringDtype)) or (
        hasattr(dtype, "numpy_dtype") and dtype.numpy_dtype.kind in "biuf"
    )


def tag(
    block: pd.DataFrame, on: Sequence[Hashable], npartitions: int, seed: int, packed: Sequence[int]
) -> pd.DataFrame:
    """The block with a column of partition numbers, its own columns labelled by position.

    Any labels may be used, even such as no engine can carry, and none can clash with ours.
    """
    ids = partition_ids(hash_keys(block[list(on)], seed=seed), npartitions)
    out = block.copy(deep=False)
    out.columns = pd.Index([f"c{i}" for i in range(block.shape[1])], dtype=object)
    for i in packed:
        out[f"c{i}"] = pd.Series(
            [pickle.dumps(value, protocol=5) for value in block.iloc[:, i]],
            index=out.index,
            dtype=object,
        )
    out[PARTITION] = ids
    return out


def untag(block: pd.DataFrame, meta: pd.DataFrame, packed: Sequence[int]) -> pd.DataFrame:
    """The block as it was before `tag`."""
    out = block.drop(columns=PARTITION, errors="ignore")
    for i in packed:
        values = np.empty(len(out), dtype=object)
        for row, value in enumerate(out[f"c{i}"]):
            values[row] = pickle.loads(value)
        column = pd.Series(values, index=out.index, dtype=object)
        out[f"c{i}"] = column.astype(meta.dtypes.iloc[i])
    out.columns = meta.columns
    out.index.names = meta.index.names
    return out
