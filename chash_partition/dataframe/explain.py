"""Which shuffles a frame's plan has, and why."""

from __future__ import annotations

from typing import Any

from chash_partition._dask import (
    Blockwise,
    DropDuplicates,
    Expr,
    GroupByBase,
    Merge,
    Projection,
    SemiMerge,
    Shuffle,
    Unique,
    ValueCounts,
)
from chash_partition.dataframe.expressions import Claim, P2PPlace, Place, TaskPlace, Told
from chash_partition.dataframe.knowledge import (
    by_columns,
    equals_meet,
    groups_meet,
    known,
    labels,
    sides_of,
)

TRAVELS = ("Shuffle", "P2P", "BroadcastJoin")
OF_EQUALS = {DropDuplicates: "drop_duplicates", Unique: "unique", ValueCounts: "value_counts"}


def explain(df: Any) -> str:
    """Which shuffles the plan of a Dask collection has and why, in the order in which they run.

    ``df.chash.explain()`` prints it for a placed frame.

    Parameters
    ----------
    df : dask.dataframe.DataFrame or Series
        Placed or not, such as the result of a group-by or a merge.

    Returns
    -------
    str
        A line for each step that may shuffle, and how many do in all.

    Raises
    ------
    TypeError
        If `df` is no Dask DataFrame or Series.

    Examples
    --------
    >>> import pandas as pd, dask.dataframe as dd
    >>> from chash_partition import chash_repartition, explain
    >>> df = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "x": [1, 2, 3]}), npartitions=1)
    >>> print(explain(df.pipe(chash_repartition, on="k", npartitions=4).groupby("k")["x"].median()))
    shuffle: 1 blocks into 4 partitions by k, as chash_repartition was asked to
    no shuffle: group-by on k
    1 shuffle in all
    """
    expr = getattr(df, "expr", None)
    if not isinstance(expr, Expr):
        raise TypeError(f"df must be a Dask DataFrame or Series, not {type(df).__name__}")
    lines: list[str] = []
    seen: set[str] = set()
    for node in reversed(list(expr.walk())):
        if node._name not in seen and (line := _line(node)):
            lines.append(line)
        seen.add(node._name)
    return "\n".join([*lines, f"{_shuffles(expr)} in all"])


def _shuffles(expr: Expr) -> str:
    steps = {node._name: type(node) for node in expr.optimize(fuse=False).walk()}
    n = sum(
        kind in (P2PPlace, TaskPlace) or any(word in kind.__name__ for word in TRAVELS)
        for kind in steps.values()
    )
    return {0: "no shuffle", 1: "1 shuffle"}.get(n, f"{n} shuffles")


def _line(node: Expr) -> str | None:
    if isinstance(node, Place):
        to = f"{node.layout.npartitions} partitions by {_names(node.on)}"
        return f"shuffle: {node.frame.npartitions} blocks into {to}, as chash_repartition was asked to"
    if isinstance(node, (Merge, SemiMerge)):
        sides = (node.left_on, node.right_on)
        keys = ["the index" if side is None else _names(labels(side)) for side in sides]
        what = f"merge on {' = '.join(dict.fromkeys(keys))}"
        return f"no shuffle: {what}" if sides_of(node) else f"as in plain Dask: {what}; {_why_no_sides(node)}"
    if isinstance(node, GroupByBase) and not isinstance(node, Blockwise):
        what = f"group-by on {_names([_label(column) for column in node.by])}"
        facts = by_columns(node.frame)
        meet = facts is not None and groups_meet(node, facts)
        return f"no shuffle: {what}" if meet else f"as in plain Dask: {what}; {_why_no_rows(node)}"
    if type(node) in OF_EQUALS:
        what = OF_EQUALS[type(node)]
        return (
            f"no shuffle: {what}" if equals_meet(node) else f"as in plain Dask: {what}; {_why_no_rows(node)}"
        )
    if isinstance(node, Shuffle):
        return "shuffle: as the plan asks for"
    return None


def _why_no_sides(merge: Expr) -> str:
    facts_of = []
    for name, side in (("left", merge.left), ("right", merge.right)):
        facts = by_columns(side)
        if facts is None:
            return f"the {name} frame is not placed by a column: {why_not(side)}"
        if facts.layout.npartitions == 1:
            return f"the {name} frame has one partition"
        facts_of.append(facts)
    left, right = facts_of
    if not left.layout.same_partitions(right.layout):
        return (
            f"the frames have other partitions: {left.layout.npartitions} with seed {left.layout.seed} and "
            f"{right.layout.npartitions} with seed {right.layout.seed}; give one of them layout= of the other"
        )
    return f"the frames are placed by {_names(left.on)} and {_names(right.on)}, which the merge does not pair"


def _why_no_rows(node: Expr) -> str:
    frame = node.frame
    while by_columns(frame) is None and isinstance(frame, (Projection, Claim, Told)):
        frame = frame.frame  # Dask leaves out the key where it is not asked for
    facts = by_columns(frame)
    if facts is None:
        return f"the frame is not placed by a column: {why_not(frame)}"
    if facts.layout.npartitions == 1:
        return "the frame has one partition"
    here = f"it is placed by {_names(facts.on)}"
    if getattr(node, "split_out", True) is not True and type(node) in OF_EQUALS:
        return f"{here}, and split_out=True would leave each result where its rows are"
    return f"{here}, so what belongs together may lie, or be listed, in several partitions"


def why_not(expr: Expr) -> str:
    """What made a frame forget how it is placed, or that it never was."""
    if known(expr) is not None:
        return "its key is a level of the index, and reset_index() would make it a column"
    while True:
        below = [node for node in expr.dependencies() if isinstance(node, Expr)]
        if isinstance(expr, (Claim, Told)):
            expr = below[0]
            continue
        if any(known(node) is not None for node in below):
            step = f"`{type(expr).__name__}`"
            if "split_out" in expr._parameters and expr.operand("split_out") is not True:
                return f"{step} puts its result into other partitions, unless given split_out=True"
            return f"{step} may change the key or the partitions, or they are not known to be kept"
        if not below or not any(_descends(node) for node in below):
            return "it was not made by chash_repartition, or was persisted with df.persist()"
        expr = next(node for node in below if _descends(node))


def _descends(expr: Expr) -> bool:
    return any(known(node) is not None for node in expr.walk())


def _label(column: Any) -> Any:
    return column._meta.name if isinstance(column, Expr) else column


def _names(columns: Any) -> str:
    return ", ".join(map(str, columns))
