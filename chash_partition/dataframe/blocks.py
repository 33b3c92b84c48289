"""The engine of tasks: one split of each block, on any Dask scheduler.

A block is split once, into the shares of some groups of partitions; a group's shares of all blocks
are stacked; each partition is unpacked from the stack of its group. So there are blocks times
groups tasks in between, not blocks times partitions.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Sequence
from itertools import pairwise

import dask.config
import pandas as pd

from chash_partition.dataframe.shuffle import BlockShare, Slots, SpillFile, Stack, check_block, split

GROUPS = 32

_files: weakref.WeakValueDictionary[str, SpillFile] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def groups_of(partitions: Sequence[int]) -> list[list[int]]:
    """The partitions, next to each other, in as many groups as there are or `GROUPS`."""
    n = min(len(partitions), GROUPS)
    edges = [i * len(partitions) // n for i in range(n + 1)]
    return [list(partitions[a:b]) for a, b in pairwise(edges)]


def slots_of(groups: list[list[int]], npartitions: int) -> Slots:
    return Slots.of({p: str(group) for group, members in enumerate(groups) for p in members}, npartitions)


def split_block(
    block: pd.DataFrame,
    meta: pd.DataFrame,
    on: Sequence[Hashable],
    seed: int,
    slots: Slots,
    file: str | None,
) -> dict[str, BlockShare]:
    """Each group's share of a block; on disk, in the file of that name in this process, if one is given."""
    check_block(block, meta)
    shares = split(block, on, seed, slots)
    if file is None:
        return shares
    with _lock:
        spill = _files.get(file) or SpillFile(dask.config.get("temporary-directory", None))
        _files[file] = spill
    return {group: spill.put(share) for group, share in shares.items()}


def share_of(shares: dict[str, BlockShare], group: str) -> BlockShare | None:
    return shares.get(group)


def stack(meta: pd.DataFrame, *shares: BlockShare | None) -> Stack:
    return Stack([share for share in shares if share is not None], meta)
