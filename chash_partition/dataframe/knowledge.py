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
    Projection,
    RenameFrame,
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
    on : the key columns as this frame names them, in the order of `layout.on`
    layout : the layout
    persisted : where the partitions are in memory, if the frame comes from a persisted one
    """

    on: tuple[Hashable, ...]
    layout: Layout
    persisted: PersistedFrame | None = None

    def renamed(self, name: Callable[[Hashable], Hashable]) -> Known:
        return replace(self, on=tuple(map(name, self.on)))

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
    own = getattr(type(expr), "_known", None)
    if own is not None:
        facts = own(expr)
    else:
        rule = RULES.get(type(expr))
        below = known(expr.frame) if rule is not None else None
        facts = rule(expr, below) if rule is not None and below is not None else None
    if facts is None or expr.ndim != 2:
        return None
    columns = list(expr.columns)
    if any(columns.count(name) != 1 for name in facts.on):
        return None
    return facts


def _rows(expr: Expr, below: Known) -> Known | None:
    return below


def _projection(expr: Projection, below: Known) -> Known | None:
    return below if isinstance(expr.operand("columns"), list) else None


def _drop(expr: Drop, below: Known) -> Known | None:
    columns = expr.operand("columns")
    return below if below.spares(columns if isinstance(columns, (list, tuple)) else [columns]) else None


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
        return below.renamed(lambda name: columns.get(name, name))
    return below.renamed(columns) if callable(columns) else None


def _prefix(expr: AddPrefix, below: Known) -> Known | None:
    return below.renamed(lambda name: f"{expr.prefix}{name}")


def _suffix(expr: AddSuffix, below: Known) -> Known | None:
    return below.renamed(lambda name: f"{name}{expr.suffix}")


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
