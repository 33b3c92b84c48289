"""The private Dask classes this package builds on, all imported here.

Everything else imports them from this module, so that a Dask version that does not fit is
reported once, clearly.
"""

from __future__ import annotations

import dask

try:
    from dask._task_spec import Task, TaskRef
    from dask.dataframe.dask_expr import _groupby as groupby
    from dask.dataframe.dask_expr._collection import DataFrame, new_collection
    from dask.dataframe.dask_expr._concat import Concat, StackPartition
    from dask.dataframe.dask_expr._expr import (
        AddPrefix,
        AddSuffix,
        Assign,
        AsType,
        Blockwise,
        Clip,
        Drop,
        DropnaFrame,
        DropnaSeries,
        Elemwise,
        ExplodeFrame,
        Expr,
        Fillna,
        Filter,
        Index,
        Isin,
        MapPartitions,
        Mask,
        MethodOperatorAlign,
        OpAlignPartitions,
        Partitions,
        PartitionsFiltered,
        Projection,
        Query,
        RenameFrame,
        Replace,
        ResetIndex,
        Round,
        Sample,
        ToFrame,
        UFuncAlign,
        UFuncElemwise,
        Where,
        determine_column_projection,
    )
    from dask.dataframe.dask_expr._groupby import GroupByBase, Median
    from dask.dataframe.dask_expr._indexing import Loc
    from dask.dataframe.dask_expr._merge import BlockwiseMerge, Merge, SemiMerge
    from dask.dataframe.dask_expr._reductions import (
        DropDuplicates,
        NFirst,
        NLargest,
        NLast,
        NSmallest,
        Unique,
        ValueCounts,
    )
    from dask.dataframe.dask_expr._repartition import Repartition
    from dask.dataframe.dask_expr._shuffle import RearrangeByColumn, SetIndex, SetPartition, SortValues
    from dask.dataframe.dask_expr._shuffle import ShuffleBase as Shuffle
    from dask.dataframe.dask_expr.io.io import BlockwiseIO, FromGraph
    from dask.dataframe.multi import merge_chunk
    from distributed.active_memory_manager import (
        ActiveMemoryManagerExtension,
        ActiveMemoryManagerPolicy,
        ReduceReplicas,
        Suggestion,
    )
    from distributed.exceptions import Reschedule
    from distributed.metrics import context_meter
    from distributed.protocol import to_serialize
    from distributed.shuffle._core import (
        P2PBarrierTask,
        ShuffleId,
        ShuffleRun,
        ShuffleSpec,
        barrier_key,
        get_worker_plugin,
        p2p_barrier,
    )
    from distributed.shuffle._exceptions import P2POutOfDiskError, ShuffleClosedError
    from distributed.shuffle._limiter import ResourceLimiter
    from distributed.stealing import fast_tasks
    from distributed.utils_comm import retry
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
    "BlockwiseIO",
    "BlockwiseMerge",
    "Clip",
    "Concat",
    "DataFrame",
    "Drop",
    "DropDuplicates",
    "DropnaFrame",
    "DropnaSeries",
    "Elemwise",
    "ExplodeFrame",
    "Expr",
    "Fillna",
    "Filter",
    "FromGraph",
    "GroupByBase",
    "Index",
    "Isin",
    "Loc",
    "MapPartitions",
    "Mask",
    "Median",
    "Merge",
    "MethodOperatorAlign",
    "NFirst",
    "NLargest",
    "NLast",
    "NSmallest",
    "OpAlignPartitions",
    "P2PBarrierTask",
    "P2POutOfDiskError",
    "Partitions",
    "PartitionsFiltered",
    "Projection",
    "Query",
    "RearrangeByColumn",
    "ReduceReplicas",
    "RenameFrame",
    "Repartition",
    "Replace",
    "Reschedule",
    "ResetIndex",
    "ResourceLimiter",
    "Round",
    "Sample",
    "SemiMerge",
    "SetIndex",
    "SetPartition",
    "Shuffle",
    "ShuffleClosedError",
    "ShuffleId",
    "ShuffleRun",
    "ShuffleSpec",
    "SortValues",
    "StackPartition",
    "Suggestion",
    "Task",
    "TaskRef",
    "ToFrame",
    "UFuncAlign",
    "UFuncElemwise",
    "Unique",
    "ValueCounts",
    "Where",
    "barrier_key",
    "context_meter",
    "determine_column_projection",
    "fast_tasks",
    "get_worker_plugin",
    "groupby",
    "merge_chunk",
    "new_collection",
    "p2p_barrier",
    "retry",
    "to_serialize",
]
