"""Dask's expressions where they lose or change rows, corrected for frames that descend from placed ones.

Each says what is wrong in Dask; docs/dask-faults.md has code that shows it. `expressions` puts these in
the place of Dask's own.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
from dask.utils import random_state_data

from chash_partition._dask import (
    Clip,
    Concat,
    Expr,
    Fillna,
    Isin,
    Mask,
    MethodOperatorAlign,
    NFirst,
    NLargest,
    NLast,
    NSmallest,
    OpAlignPartitions,
    Projection,
    RearrangeByColumn,
    Repartition,
    Replace,
    ResetIndex,
    Round,
    Sample,
    SetIndex,
    SetPartition,
    SortValues,
    StackPartition,
    UFuncAlign,
    UFuncElemwise,
    Where,
    determine_column_projection,
)
from chash_partition.dataframe.knowledge import Known, columns_of, known, labels


class Ours(Expr):
    """What all expressions of this package share.

    Dask 2025.7 asks any expression that is not of its own modules for a graph, only to see that
    it has one, also above expressions that have none before they are lowered.
    """

    def __dask_graph__(self) -> dict[Any, Any]:
        try:
            return super().__dask_graph__()
        except NotImplementedError:
            return {}


class KeepsRows(Ours):
    """Of frames one after the other, Dask leaves out those with none of the columns wanted, rows and all."""

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if not isinstance(parent, Projection):
            return None
        wanted = set(labels(determine_column_projection(self, parent, dependents)))
        if not all(wanted & set(columns_of(frame)) for frame in self._frames):
            return None
        return super()._simplify_up(parent, dependents)


class PlacedConcat(KeepsRows, Concat):
    def _lower(self) -> Expr:
        lowered = super()._lower()
        return PlacedStack(*lowered.operands) if type(lowered) is StackPartition else lowered


class PlacedStack(KeepsRows, StackPartition):
    """As `PlacedConcat` is lowered: Dask simplifies once more after that."""


class CountsPartitions(Ours):
    """Dask says that there are as many partitions as were asked for, and drops any more that it makes."""

    @property
    def npartitions(self) -> int:
        return len(self.divisions) - 1

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        made = super()._simplify_up(parent, dependents)
        # The first rows of sorted ones are made here, where no `Claim` may be left below to tell of them.
        for node in list(made.find_operations(NFirst)) if made is not None else []:
            if type(node) in CORRECTED:
                made = made.substitute(node, CORRECTED[type(node)](*node.operands))
        return made


class PlacedSort(CountsPartitions, SortValues):
    pass


class PlacedIndex(CountsPartitions, SetIndex):
    def _lower(self) -> Expr:
        lowered = super()._lower()
        return PlacedPartition(*lowered.operands) if type(lowered) is SetPartition else lowered


class PlacedPartition(CountsPartitions, SetPartition):
    """As `PlacedIndex` is lowered."""


class PlacedSample(Ours, Sample):
    """Dask draws a state for each partition, and a sort below may find other divisions when it is lowered:
    they are estimated from rows chosen at random, by the name of the expression.
    """

    @functools.cached_property
    def state_data(self) -> list[Any]:
        states: list[Any] = self.operand("state_data")
        if (more := self.frame.npartitions - len(states)) > 0:
            states = [*states, *random_state_data(more, np.random.RandomState(states[-1]))]
        return states


class PlacedReset(Ours, ResetIndex):
    """Of a series with several levels in its index, Dask gives the values in place of a level.

    And levels of objects stay so: pandas makes of them whatever the rows of a block fit into, and Dask's
    hash of the same value differs between dtypes.
    """

    @staticmethod
    def operation(block: Any, **kwargs: Any) -> Any:
        out = block.reset_index(**kwargs)
        for i in range(0 if kwargs["drop"] else block.index.nlevels):
            if block.index.get_level_values(i).dtype == object:
                out.isetitem(i, out.iloc[:, i].astype(object))
        return out

    def _known(self) -> Known | None:
        return known(ResetIndex(*self.operands))

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if self.frame.ndim == 1 or self.frame._meta.index.nlevels > 1:
            return None
        return super()._simplify_up(parent, dependents)


class AlignsRows(Ours):
    """Dask pairs partition i with partition i of an unrelated frame if divisions are not known."""

    def _lower(self) -> Expr:
        sides = (self.frame, self.other)
        npartitions = max(side.npartitions for side in sides)
        if npartitions == 1 or all(side.known_divisions for side in sides):
            return super()._lower()
        by_rows = "axis" in self._parameters and self.operand("axis") in (0, "index")
        if self.frame.ndim != self.other.ndim and not by_rows:  # by labels of columns, of which all need all
            frame, other = (side if side.ndim > 1 else Repartition(side, new_partitions=1) for side in sides)
            return self._op(frame, self.op, other, *self.operands[3:])
        frame, other = (RearrangeByColumn(side, None, npartitions, index_shuffle=True) for side in sides)
        return self._op(frame, self.op, other, *self.operands[3:])


class PlacedOperator(AlignsRows, OpAlignPartitions):
    pass


class PlacedMethod(AlignsRows, MethodOperatorAlign):
    pass


class PlacedUFunc(Ours, UFuncAlign):
    """As `AlignsRows`, of any number of frames."""

    def _lower(self) -> Expr:
        frames = [isinstance(arg, Expr) and arg.ndim > 0 for arg in self.args]
        sides = list(itertools.compress(self.args, frames))
        npartitions = max(side.npartitions for side in sides)
        if npartitions == 1 or all(side.known_divisions for side in sides):
            return super()._lower()
        args = [
            RearrangeByColumn(arg, None, npartitions, index_shuffle=True) if is_frame else arg
            for arg, is_frame in zip(self.args, frames, strict=True)
        ]
        return UFuncElemwise(args[frames.index(True)], self.func, self._meta, False, self.kwargs, *args)


class PlacedClip(Ours, Clip):
    """Dask pairs partition i with partition i of bounds from an unrelated frame."""

    @staticmethod
    def operation(block: Any, lower: Any, upper: Any, **kwargs: Any) -> Any:
        for bound in (lower, upper):
            if getattr(bound, "ndim", 0) == block.ndim and not block.index.equals(bound.index):
                raise ValueError(
                    "clip was given bounds from a frame whose partitions are other ones: merge that frame "
                    "first, then clip by columns of the result"
                )
        return block.clip(lower, upper, **kwargs)


class TakesColumns(Ours):
    """Where arguments say something for each column, Dask gives them to the one column that is wanted as a
    series, to which they are about its labels. So that column stays a frame.

    And it leaves out the columns that rows are ordered by, before they are ordered.
    """

    @property
    def _needed(self) -> list[Any]:
        """Columns without which it cannot be done."""
        return []

    def _known(self) -> Known | None:
        return known(type(self).__bases__[1](*self.operands))

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if not isinstance(parent, Projection) or self.frame.ndim == 1:
            return super()._simplify_up(parent, dependents)
        wanted = {*labels(determine_column_projection(self, parent, dependents)), *self._needed}
        there = columns_of(self.frame)
        kept = [name for name in there if name in wanted]
        if not kept or len(kept) == len(there):
            return None
        return parent.substitute(self, type(self)(self.frame[kept], *self.operands[1:]))


class PlacedFillna(TakesColumns, Fillna):
    pass


class PlacedIsin(TakesColumns, Isin):
    pass


class PlacedMask(TakesColumns, Mask):
    pass


class PlacedReplace(TakesColumns, Replace):
    pass


class PlacedRound(TakesColumns, Round):
    pass


class PlacedWhere(TakesColumns, Where):
    pass


class OrdersRows(TakesColumns):
    @property
    def _needed(self) -> list[Any]:
        return labels(self.operand("_columns"))


class PlacedLargest(OrdersRows, NLargest):
    pass


class PlacedSmallest(OrdersRows, NSmallest):
    pass


class PlacedFirst(OrdersRows, NFirst):
    pass


class PlacedLast(OrdersRows, NLast):
    pass


CORRECTED: dict[type[Expr], type[Expr]] = {
    Concat: PlacedConcat,
    SortValues: PlacedSort,
    SetIndex: PlacedIndex,
    ResetIndex: PlacedReset,
    Sample: PlacedSample,
    OpAlignPartitions: PlacedOperator,
    MethodOperatorAlign: PlacedMethod,
    UFuncAlign: PlacedUFunc,
    Clip: PlacedClip,
    Fillna: PlacedFillna,
    Isin: PlacedIsin,
    Mask: PlacedMask,
    Replace: PlacedReplace,
    Round: PlacedRound,
    Where: PlacedWhere,
    NLargest: PlacedLargest,
    NSmallest: PlacedSmallest,
    NFirst: PlacedFirst,
    NLast: PlacedLast,
}
