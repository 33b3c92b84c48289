"""Dask's expressions where they lose or change rows, corrected for frames that descend from placed ones.

Each says what is wrong in Dask; docs/dask-faults.md has code that shows it. `expressions` puts these in
the place of Dask's own.
"""

from __future__ import annotations

from typing import Any

from chash_partition._dask import (
    Concat,
    Expr,
    Projection,
    ResetIndex,
    SetIndex,
    SetPartition,
    SortValues,
    StackPartition,
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


class PlacedSort(CountsPartitions, SortValues):
    pass


class PlacedIndex(CountsPartitions, SetIndex):
    def _lower(self) -> Expr:
        lowered = super()._lower()
        return PlacedPartition(*lowered.operands) if type(lowered) is SetPartition else lowered


class PlacedPartition(CountsPartitions, SetPartition):
    """As `PlacedIndex` is lowered."""


class PlacedReset(Ours, ResetIndex):
    """Of a series with several levels in its index, Dask gives the values in place of a level."""

    def _known(self) -> Known | None:
        return known(ResetIndex(*self.operands))

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if self.frame.ndim == 1 or self.frame._meta.index.nlevels > 1:
            return None
        return super()._simplify_up(parent, dependents)


CORRECTED: dict[type[Expr], type[Expr]] = {
    Concat: PlacedConcat,
    SortValues: PlacedSort,
    SetIndex: PlacedIndex,
    ResetIndex: PlacedReset,
}
