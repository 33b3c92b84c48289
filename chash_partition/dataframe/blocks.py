"""What the task engine does to a block: tag its rows with their partitions, and undo it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pandas as pd

from chash_partition.hashing import hash_keys, partition_ids

# Dask's task shuffle takes a column of this name for ready-made partition numbers.
PARTITION = "_partitions"


def tag(block: pd.DataFrame, on: Sequence[Hashable], npartitions: int, seed: int) -> pd.DataFrame:
    """The block with a column of partition numbers, its own columns labelled by position.

    Any labels may be used, even such as no engine can carry, and none can clash with ours.
    """
    ids = partition_ids(hash_keys(block[list(on)], seed=seed), npartitions)
    out = block.copy(deep=False)
    out.columns = pd.Index([f"c{i}" for i in range(block.shape[1])], dtype=object)
    out[PARTITION] = ids
    return out


def untag(block: pd.DataFrame, meta: pd.DataFrame) -> pd.DataFrame:
    """The block as it was before `tag`."""
    out = block.drop(columns=PARTITION, errors="ignore")
    for i, dtype in enumerate(meta.dtypes):
        # Blocks with other categories were joined as their values.
        if isinstance(dtype, pd.CategoricalDtype) and not isinstance(out.dtypes.iloc[i], pd.CategoricalDtype):
            out[out.columns[i]] = out.iloc[:, i].astype(pd.CategoricalDtype(ordered=dtype.ordered))
    out.columns = meta.columns
    if meta.index.dtype == object and meta.index.nlevels == 1:
        out.index = out.index.astype(object)  # some of its values may be of one kind
    out.index.names = meta.index.names
    return out
