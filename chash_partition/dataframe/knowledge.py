"""What is known of how the rows of an expression lie in its partitions.

`known` is the only place that knows it: a pure function of the expression tree, one rule for
each operation that keeps a placed frame placed. Whatever has no rule here is not known to be
placed, which costs a shuffle and is never wrong.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
from dask.tokenize import normalize_token

from chash_partition._dask import (
    AddPrefix,
    AddSuffix,
    Assign,
    AsType,
    Drop,
    DropDuplicates,
    DropnaFrame,
    DropnaSeries,
    ExplodeFrame,
    Expr,
    Fillna,
    Filter,
    Loc,
    MapPartitions,
    Merge,
    Projection,
    Query,
    RenameFrame,
    ResetIndex,
    Round,
    SemiMerge,
    ToFrame,
    groupby,
)
from chash_partition.dataframe.keys import keys_of
from chash_partition.layout import Layout

if TYPE_CHECKING:
    from chash_partition.dataframe.expressions import PersistedFrame

Rule = Callable[[Any, "Known"], "Known | None"]


@dataclass(frozen=True)
class Known:
    """Partition i of a frame holds exactly the rows of partition i of `layout`.

    Attributes
    ----------
    on : the key columns as this frame names them, in the order of `layout.on`; a level of the index
        is known by its name too, but no group-by or merge is spared its shuffle by that
    layout : the layout
    persisted : where the partitions are in memory, if the frame comes from a persisted one
    """

    on: tuple[Hashable, ...]
    layout: Layout
    persisted: PersistedFrame | None = None

    def spares(self, columns: object) -> bool:
        """Whether changing these columns leaves the key alone."""
        return isinstance(columns, (list, tuple, set)) and not set(self.on) & set(columns)


def known(expr: Expr) -> Known | None:
    """What is known of `expr`, or None.

    Parameters
    ----------
    expr : a Dask DataFrame expression, optimised or not

    Returns
    -------
    Known or None
    """
    own = OWN.get(type(expr)) or getattr(type(expr), "_known", None)
    facts = own(expr) if own is not None else _by_rule(expr)
    if facts is None or not expr.ndim:
        return None
    columns = columns_of(expr)
    levels = [name for name in expr._meta.index.names if name is not None]
    found = [columns.count(name) or levels.count(name) for name in facts.on]
    return facts if all(n == 1 for n in found) else None


def _by_rule(expr: Expr) -> Known | None:
    rule = RULES.get(type(expr))
    below = known(expr.frame) if rule is not None else None
    facts = rule(expr, below) if rule is not None and below is not None else None
    if below is None or facts is None:
        return None
    # A level of the index by the name of a key that is a column would be taken for it when that is gone.
    columns = columns_of(expr)
    index = _levels(expr.frame, below)
    if any(old not in index and new not in columns for old, new in zip(below.on, facts.on, strict=True)):
        return None
    # A column by the name of a level of the index that is a key would be taken for the key.
    return None if type(expr) is not ResetIndex and index & set(columns) else facts


def _levels(expr: Expr, facts: Known) -> set[Hashable]:
    """The keys that are levels of the index."""
    columns = columns_of(expr)
    return {name for name in facts.on if name not in columns}


def columns_of(expr: Expr) -> list[Hashable]:
    """The columns of a frame, or the name of a series."""
    return list(expr.columns) if expr.ndim == 2 else [expr._meta.name]


def by_columns(expr: Expr) -> Known | None:
    """What is known of `expr` if its key is columns alone."""
    facts = known(expr)
    return facts if facts is not None and not _levels(expr, facts) else None


def labels(columns: Any) -> list[Hashable]:
    """One label or a list of them, as a list."""
    return list(columns) if isinstance(columns, list) else [columns]


def sides_of(merge: Merge) -> tuple[Known, Known] | None:
    """What is known of both sides, if that lets partition i join partition i."""
    left, right = by_columns(merge.left), by_columns(merge.right)
    if left is None or right is None or not left.layout.same_partitions(right.layout):
        return None
    if left.layout.npartitions == 1 or len(left.on) != len(right.on):
        return None
    return (left, right) if set(zip(left.on, right.on, strict=True)) <= _pairs(merge) else None


def _pairs(merge: Merge) -> set[tuple[Hashable, Hashable]]:
    """The columns that are compared, left and right."""
    if merge.left_index or merge.right_index or merge.left_on is None or merge.right_on is None:
        return set()
    left, right = labels(merge.left_on), labels(merge.right_on)
    if any(isinstance(column, Expr) for column in (*left, *right)):
        return set()
    return set(zip(left, right, strict=True))


def known_of_merge(merge: Merge) -> Known | None:
    sides = sides_of(merge)
    if sides is None:
        return None
    left, right = sides
    if merge.how == "outer":
        # A row of one side alone has its key in that side's column only.
        return left if left.on == right.on else None
    kept, other, mates = (right, left, merge.left) if merge.how == "right" else (left, right, merge.right)
    # Where the other side has a column of that name that is not its key, a suffix was added.
    renamed = [a for a, b in zip(kept.on, other.on, strict=True) if a != b and a in mates.columns]
    return None if renamed else kept


def groups_meet(groups: Expr, facts: Known) -> bool:
    """Whether each group of a frame of which these facts are known lies in one partition, which alone
    reports it."""
    by = {column for column in groups.by if not isinstance(column, Expr)}
    if groups.frame.ndim < 2 or facts.layout.npartitions == 1 or not by.issuperset(facts.on):
        return False
    return not reports_all_categories(groups)


def reports_all_categories(groups: Expr) -> bool:
    """Whether each partition of the result may list categories that it has no rows of."""
    if "observed" in groups._parameters and groups.operand("observed") is True:
        return False
    meta = groups.frame._meta
    return any(
        isinstance(
            column._meta.dtype if isinstance(column, Expr) else meta[column].dtype, pd.CategoricalDtype
        )
        for column in groups.by
        if isinstance(column, Expr) or (meta.ndim == 2 and column in meta.columns)
    )


def _will_be_met(expr: Expr) -> bool:
    """Whether a `Claim` is below that will meet `expr`, or has met it: else it shuffles as in plain Dask."""
    # Asked of classes: of an expression, it could be a column by that name.
    if getattr(type(expr.frame), "tells", None) is not None and expr.frame.tells:
        return True
    return any(getattr(type(node), "climbs", False) for node in expr.walk())


def known_of_groups(groups: Expr) -> Known | None:
    """Partition i of the result has the groups of partition i, in a level of the index.

    That is so if the user wanted as many partitions as there are.
    """
    facts = by_columns(groups.frame)
    if facts is None or groups.operand("split_out") is not True or getattr(groups, "sort", False):
        return None
    if not groups_meet(groups, facts) or not _will_be_met(groups) or set(facts.on) & set(columns_of(groups)):
        return None
    return replace(facts, persisted=None)


def equals_meet(expr: Expr) -> Known | None:
    """What is known of the frame below, if that lets `drop_duplicates`, `unique` or `value_counts` look
    at each partition alone: the rows that they take for the same lie in one."""
    facts = by_columns(expr.frame)
    if facts is None or facts.layout.npartitions == 1 or expr.operand("split_out") is not True:
        return None
    if not _will_be_met(expr):
        return None
    subset = expr.operand("subset") if "subset" in expr._parameters else None
    compared = columns_of(expr.frame) if subset is None else labels(subset)
    return facts if set(facts.on) <= set(compared) else None


def _rows(expr: Expr, below: Known) -> Known | None:
    return below


def _filter(expr: Filter, below: Known) -> Known | None:
    # By a frame of truth values, pandas would put nulls in the place of values.
    return below if isinstance(expr.predicate, Expr) and expr.predicate.ndim == 1 else None


def _to_frame(expr: ToFrame, below: Known) -> Known | None:
    return _renamed(expr, below, lambda name: expr.columns[0])


def _loc(expr: Loc, below: Known) -> Known | None:
    return below if isinstance(expr.iindexer, Expr) and expr.operand("cindexer") is None else None


def _drop(expr: Drop, below: Known) -> Known | None:
    return below if below.spares(labels(expr.operand("columns"))) else None


def _assign(expr: Assign, below: Known) -> Known | None:
    return below if below.spares(list(expr.keys)) else None


def _fillna(expr: Fillna, below: Known) -> Known | None:
    value = expr.operand("value")
    return below if isinstance(value, Mapping) and below.spares(list(value)) else None


def _astype(expr: AsType, below: Known) -> Known | None:
    dtypes = expr.operand("dtypes")
    return below if isinstance(dtypes, Mapping) and below.spares(list(dtypes)) else None


def _rename(expr: RenameFrame, below: Known) -> Known | None:
    columns = expr.operand("columns")
    if isinstance(columns, Mapping):
        return _renamed(expr, below, lambda name: columns.get(name, name))
    return _renamed(expr, below, columns) if callable(columns) else None


def _round(expr: Round, below: Known) -> Known | None:
    decimals = expr.operand("decimals")
    return below if isinstance(decimals, Mapping) and below.spares(list(decimals)) else None


def _explode(expr: ExplodeFrame, below: Known) -> Known | None:
    return below if below.spares(labels(expr.operand("column"))) else None


def _mapped(expr: MapPartitions, below: Known) -> Known | None:
    keeps = isinstance(expr.func, KeepsKey) and expr.func.on == below.on
    return below if keeps and expr.npartitions == below.layout.npartitions else None


def _prefix(expr: AddPrefix, below: Known) -> Known | None:
    return _renamed(expr, below, lambda name: f"{expr.prefix}{name}")


def _suffix(expr: AddSuffix, below: Known) -> Known | None:
    return _renamed(expr, below, lambda name: f"{name}{expr.suffix}")


def _renamed(expr: Expr, below: Known, name: Callable[[Hashable], Hashable]) -> Known:
    levels = _levels(expr.frame, below)
    return replace(below, on=tuple(key if key in levels else name(key) for key in below.on))


class KeepsKey:
    """A function of a block that the caller says leaves each row in its partition; it is checked."""

    def __init__(self, function: Callable[..., pd.DataFrame], on: tuple[Hashable, ...], layout: Layout):
        self.function, self.on, self.layout = function, on, layout
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))
        with contextlib.suppress(TypeError, ValueError):  # some have none
            self.__signature__ = inspect.signature(function)  # Dask looks there for partition_info

    def __call__(self, block: pd.DataFrame, *args: Any, **kwargs: Any) -> pd.DataFrame:
        out = self.function(block, *args, **kwargs)
        layout = self.layout.rename(self.on)
        # A block's rows are all of one partition; one without rows does not tell which.
        before = set(layout.partition_of(keys_of(block.iloc[:1], self.on)).tolist())
        if not set(layout.partition_of(keys_of(out, self.on)).tolist()) <= before:
            where = f"of partition {before.pop()}" if before else "of a partition without rows"
            raise ValueError(
                f"{self.__name__} was said to keep the key {list(self.on)}, but {where} it made rows with "
                "keys of other partitions: leave out keeps_key=True, and repartition afterwards if need be"
            )
        return out

    def __dask_tokenize__(self) -> Any:
        return "KeepsKey", normalize_token(self.function), self.on, normalize_token(self.layout)


AGGREGATIONS = frozenset(
    getattr(groupby, name)
    for name in (
        "Sum", "Prod", "Min", "Max", "First", "Last", "Count", "Size", "IdxMin", "IdxMax", "Var", "Std",
        "Mean", "NUnique", "GroupbyAggregation",
    )
)  # fmt: skip

OWN: dict[type[Expr], Callable[[Any], Known | None]] = {
    Merge: known_of_merge,
    SemiMerge: known_of_merge,
    DropDuplicates: equals_meet,
    **dict.fromkeys(AGGREGATIONS, known_of_groups),
}

# Exact types: a subclass may do something else.
RULES: dict[type[Expr], Rule] = {
    Filter: _filter,
    DropnaFrame: _rows,
    DropnaSeries: _rows,
    Loc: _loc,
    Projection: _rows,
    ToFrame: _to_frame,
    Drop: _drop,
    Assign: _assign,
    Fillna: _fillna,
    AsType: _astype,
    RenameFrame: _rename,
    AddPrefix: _prefix,
    AddSuffix: _suffix,
    Query: _rows,
    ResetIndex: _rows,
    Round: _round,
    ExplodeFrame: _explode,
    MapPartitions: _mapped,
}
