"""What is known of how the rows of an expression lie in its partitions.

`known` is the only place that knows it: a pure function of the expression tree, one rule for
each operation that keeps a placed frame placed. Whatever has no rule here is not known to be
placed, which costs a shuffle and is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chash_partition._dask import (
    AddPrefix,
    AddSuffix,
    Assign,
    AsType,
    Drop,
    DropnaFrame,
    Expr,
    Fillna,
    Filter,
    Merge,
    Projection,
    RenameFrame,
    SemiMerge,
)
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
    own = known_of_merge if type(expr) in (Merge, SemiMerge) else getattr(type(expr), "_known", None)
    facts = own(expr) if own is not None else _by_rule(expr)
    if facts is None or expr.ndim != 2:
        return None
    columns, levels = list(expr.columns), list(expr._meta.index.names)
    found = [columns.count(name) or levels.count(name) for name in facts.on]
    return facts if all(n == 1 for n in found) else None


def _by_rule(expr: Expr) -> Known | None:
    rule = RULES.get(type(expr))
    below = known(expr.frame) if rule is not None else None
    facts = rule(expr, below) if rule is not None and below is not None else None
    if below is None or facts is None:
        return None
    # A column by the name of a level of the index that is a key would be taken for the key.
    return None if any(name in expr.columns for name in _levels(expr.frame, below)) else facts


def _levels(expr: Expr, facts: Known) -> set[Hashable]:
    """The keys that are levels of the index."""
    return {name for name in facts.on if name not in expr.columns}


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


def _rows(expr: Expr, below: Known) -> Known | None:
    return below


def _projection(expr: Projection, below: Known) -> Known | None:
    return below if isinstance(expr.operand("columns"), list) else None


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


def _prefix(expr: AddPrefix, below: Known) -> Known | None:
    return _renamed(expr, below, lambda name: f"{expr.prefix}{name}")


def _suffix(expr: AddSuffix, below: Known) -> Known | None:
    return _renamed(expr, below, lambda name: f"{name}{expr.suffix}")


def _renamed(expr: Expr, below: Known, name: Callable[[Hashable], Hashable]) -> Known:
    levels = _levels(expr.frame, below)
    return replace(below, on=tuple(key if key in levels else name(key) for key in below.on))


# Exact types: a subclass may do something else.
RULES: dict[type[Expr], Rule] = {
    Filter: _rows,
    DropnaFrame: _rows,
    Projection: _projection,
    Drop: _drop,
    Assign: _assign,
    Fillna: _fillna,
    AsType: _astype,
    RenameFrame: _rename,
    AddPrefix: _prefix,
    AddSuffix: _suffix,
}
