"""The private Dask classes this package builds on, all imported here.

Everything else imports them from this module, so that a Dask version that does not fit is
reported once, clearly.
"""

from __future__ import annotations

import dask

try:
    from dask._task_spec import Task, TaskRef
    from dask.dataframe.dask_expr._collection import DataFrame, new_collection
    from dask.dataframe.dask_expr._expr import (
        AddPrefix,
        AddSuffix,
        Assign,
        AsType,
        Blockwise,
        Drop,
        DropnaFrame,
        Elemwise,
        Expr,
        Fillna,
        Filter,
        Partitions,
        Projection,
        RenameFrame,
        determine_column_projection,
    )
    from dask.dataframe.dask_expr._groupby import GroupByBase, Median
    from dask.dataframe.dask_expr._merge import BlockwiseMerge, DropDuplicatesBlockwise, Merge, SemiMerge
    from dask.dataframe.dask_expr._shuffle import P2PShuffle, Shuffle
    from dask.dataframe.dask_expr.io.io import FromGraph
    from dask.dataframe.multi import merge_chunk
    from distributed.active_memory_manager import (
        ActiveMemoryManagerExtension,
        ActiveMemoryManagerPolicy,
        ReduceReplicas,
        Suggestion,
    )
    from distributed.shuffle._core import P2PBarrierTask
    from distributed.shuffle._shuffle import DataFrameShuffleSpec
except ImportError as error:  # pragma: no cover - depends on the installed Dask
    raise ImportError(
        f"chash-partition does not fit the installed dask {dask.__version__} ({error}). "
        "It is tested with dask 2025.7 and later: install a version in that range, e.g. "
        "`pip install 'dask[dataframe,distributed]>=2025.7'`, "
        "and report it if yours is in the range."
    ) from error

__all__ = [
    "ActiveMemoryManagerExtension",
    "ActiveMemoryManagerPolicy",
    "AddPrefix",
    "AddSuffix",
    "AsType",
    "Assign",
    "Blockwise",
    "BlockwiseMerge",
    "DataFrame",
    "DataFrameShuffleSpec",
    "Drop",
    "DropDuplicatesBlockwise",
    "DropnaFrame",
    "Elemwise",
    "Expr",
    "Fillna",
    "Filter",
    "FromGraph",
    "GroupByBase",
    "Median",
    "Merge",
    "P2PBarrierTask",
    "P2PShuffle",
    "Partitions",
    "Projection",
    "ReduceReplicas",
    "RenameFrame",
    "SemiMerge",
    "Shuffle",
    "Suggestion",
    "Task",
    "TaskRef",
    "determine_column_projection",
    "merge_chunk",
    "new_collection",
]
