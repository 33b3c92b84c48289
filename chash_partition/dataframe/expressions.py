"""The expressions of placed frames, and how they meet Dask's optimiser.

Dask has one way to say that a frame is partitioned by some columns, and group-bys and merges
alike believe it; merges then assume Dask's own hash. So a placed frame tells Dask nothing by
itself. Instead

- a `Claim` stands on top of every frame that descends from a placed one. During simplification
  it climbs over each parent to the root, so that below it the tree is what Dask would have made;
- on its way it meets every group-by and merge. It asks `known` what is true of the frame there,
  tells a group-by that equal keys meet (`Told`), turns a merge into a `PlacedMerge`, and hides
  what Dask would wrongly conclude from either.

A merge decides when it is lowered, from its sides as they then are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
from dask.dataframe import methods
from dask.utils import M

from chash_partition._dask import (
    Blockwise,
    BlockwiseMerge,
    DropDuplicates,
    Elemwise,
    Expr,
    Filter,
    FromGraph,
    GroupByBase,
    Index,
    Median,
    Merge,
    P2PBarrierTask,
    PartitionsFiltered,
    Projection,
    Repartition,
    SemiMerge,
    ShuffleId,
    Task,
    TaskRef,
    Unique,
    ValueCounts,
    barrier_key,
    determine_column_projection,
    groupby,
    merge_chunk,
    new_collection,
    p2p_barrier,
)
from chash_partition.cluster.plugin import PIN
from chash_partition.dataframe.blocks import groups_of, share_of, slots_of, split_block, stack
from chash_partition.dataframe.carriers import join, view
from chash_partition.dataframe.corrected import CORRECTED, Ours
from chash_partition.dataframe.knowledge import (
    Known,
    by_columns,
    equals_meet,
    groups_meet,
    known,
    known_of_merge,
    labels,
    reports_all_categories,
    sides_of,
)
from chash_partition.dataframe.shuffle import PlacedShuffleSpec, Stack, transfer, unpack
from chash_partition.hashing import hash_keys
from chash_partition.layout import Layout

Label = Hashable


class Claim(Ours):
    """Marks a frame as descending from a placed one; climbs to the root and vanishes there."""

    _parameters = ["frame"]
    climbs = True

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _divisions(self) -> tuple[Any, ...]:
        return self.frame.divisions

    def _known(self) -> Known | None:
        return known(self.frame)

    def _simplify_down(self) -> Expr | None:
        return self.frame if isinstance(self.frame, Claim) else None

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if not isinstance(parent, Expr) or isinstance(parent, Claim):
            return None
        if any(True for _ in self.frame.find_operations(Claim)) or self._is_awaited(parent):
            return None
        if type(parent) in OURS:
            return _of_the_same_meta(parent, OURS[type(parent)](*parent.operands))
        if _is_groupby(parent):
            return self._under_groupby(parent)
        if type(parent) in OF_EQUALS:
            if (alone := _by_partition(parent)) is not None:
                return Claim(alone.substitute(self, self.frame))
            return Claim(Told(parent.substitute(self, self.frame)))
        climbed = parent.substitute(self, self.frame)
        if climbed._name == parent._name:
            return None
        _of_the_same_meta(parent, climbed)
        return Claim(climbed) if _is_frame(climbed) else climbed

    def _is_awaited(self, parent: Expr) -> bool:
        """Whether something else below `parent` has yet to meet this claim, which would vanish there too."""
        below = (node for side in parent.dependencies() for node in side.walk())
        return any(
            (type(node) in OURS or type(node) in OF_EQUALS or _is_groupby(node))
            and any(claim._name == self._name for claim in node.find_operations(Claim))
            for node in below
        )

    def _under_groupby(self, parent: Expr) -> Expr:
        if (counts := _of_all_groups(parent)) is not None:
            return counts
        if "dropna" in parent._parameters and parent.operand("dropna") is None:
            # The same, but Dask's mean, var and std take None for False at their last step.
            parent = parent.substitute_parameters({"dropna": True})
        facts = by_columns(self.frame)
        if facts is None or not groups_meet(parent, facts):
            return Claim(
                _objects(Told(_one_list_of_categories(parent.substitute(self, self.frame))), parent.by)
            )
        grouped = parent.substitute(self, Told(self.frame, facts.on))
        # Dask gives the number of partitions that a shuffle would make; there is none.
        if "split_out" in grouped._parameters:
            split_out = grouped.operand("split_out")
            if type(split_out) is int and split_out > facts.layout.npartitions:
                grouped = grouped.substitute_parameters({"split_out": True})
        if isinstance(grouped, Median):
            grouped = grouped.substitute_parameters({"split_every": None})
        return Claim(_objects(Told(grouped), parent.by))

    def _lower(self) -> Expr:
        # Straight to what the frame becomes: a merge must decide before its sides are lowered.
        lowered = self.frame._lower()
        return self.frame if lowered is None else lowered


def _of_the_same_meta(old: Expr, new: Expr) -> Expr:
    """Metas of merges are most of what optimising takes."""
    if "_meta" in vars(old):
        vars(new).setdefault("_meta", old._meta)
    return new


def _is_frame(expr: Expr) -> bool:
    try:
        return bool(expr.ndim)
    except NotImplementedError:  # what hands a result over has no meta
        return False


def _is_groupby(expr: Expr) -> bool:
    return isinstance(expr, GroupByBase) and not isinstance(expr, Blockwise)


def _one_list_of_categories(groups: Expr) -> Expr:
    """The group-by in one partition, where several would each list all categories."""
    if not reports_all_categories(groups):
        return groups
    if "split_out" in groups._parameters:
        return groups.substitute_parameters({"split_out": 1})
    # The frame, and series that it is grouped by.
    whole = (Repartition(op, 1) if isinstance(op, Expr) and op.ndim else op for op in groups.operands)
    return type(groups)(*whole)


def _of_all_groups(parent: Expr) -> Expr | None:
    """`nunique`, of which Dask leaves out the null group and categories that have no rows."""
    if type(parent) is not groupby.NUnique or any(isinstance(column, Expr) for column in parent.by):
        return None
    by, value, dropna = list(parent.by), parent.operand("_slice"), parent.operand("dropna")
    if value in by or not (dropna is False or reports_all_categories(parent)):
        return None
    pairs = new_collection(parent.frame)[[*by, value]].drop_duplicates()
    groups = pairs.groupby(by, sort=parent.sort, observed=parent.operand("observed"), dropna=dropna)
    return groups[value].count(split_out=parent.operand("split_out")).expr


def _objects(groups: Expr, by: Sequence[Any]) -> Expr:
    """Groups by columns of objects, which they are in the result's index too."""
    frame = groups.frame.frame._meta
    names = [c for c in by if not isinstance(c, Expr) and c in frame and frame[c].dtype == object]
    return Objects(groups, names) if names else groups


OF_EQUALS = (DropDuplicates, Unique, ValueCounts)


def _by_partition(parent: Expr) -> Expr | None:
    """What looks for equal rows, partition by partition, if those that are equal lie in one."""
    if equals_meet(parent) is None:
        return None
    frame = parent.frame
    if type(parent) is DropDuplicates:
        return Distinct(frame, *map(parent.operand, Distinct._parameters[1:]))
    if type(parent) is Unique:
        return _mapped(parent, methods.unique, series_name=parent._meta.name)
    if parent.sort or _is_category(frame._meta.dtype):  # it counts those that are not there too
        return None
    counted = _mapped(parent, pd.Series.value_counts, sort=False, dropna=parent.dropna)
    if frame._meta.dtype == object:
        counted = Objects(counted, [frame._meta.name])
    return counted / parent.total_length if parent.normalize else counted


def _mapped(parent: Expr, function: Callable[..., Any], **kwargs: Any) -> Expr:
    frame = new_collection(parent.frame)
    return frame.map_partitions(function, **kwargs, meta=parent._meta, enforce_metadata=False).expr


class Told(Ours, Elemwise):
    """The frame itself, with all that Dask is told of its partitioning.

    That is: rows equal in `columns` are in one partition. Without columns: nothing, whatever
    the frame below claims. The claim names each column twice, {(k, k)}: a group-by, which tests
    sets, accepts it, and a merge, which looks for its own tuple of keys and would take it for
    Dask's hash, does not.
    """

    _parameters = ["frame", "columns", "checked"]
    _defaults = {"columns": (), "checked": False}

    @property
    def _projection_passthrough(self) -> bool:
        return not self.checked  # once lowered, nothing passes what is hidden below

    _filter_passthrough = _projection_passthrough

    @property
    def tells(self) -> bool:
        return bool(self.operand("columns"))

    @staticmethod
    def operation(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    @functools.cached_property
    def _args(self) -> list[Any]:
        return [self.frame]

    @property
    def columns(self) -> list[Label]:
        return self.frame.columns

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _known(self) -> Known | None:
        return known(self.frame)

    @functools.cached_property
    def unique_partition_mapping_columns_from_shuffle(self) -> set[tuple[Label, ...]]:
        columns = self.operand("columns")
        return {(*columns, *columns)} if columns else set()

    def _lower(self) -> Expr | None:
        if not self.tells or self.checked:
            return None
        facts = known(self.frame)
        if facts is None or not set(facts.on) <= set(self.operand("columns")):
            raise RuntimeError(
                f"the optimiser changed the partitioning below a group-by on {self.operand('columns')}; "
                "nothing was computed. Please report this with the code that led to it; "
                "`df.repartition(npartitions=df.npartitions + 1)` before the group-by avoids it"
            )
        return type(self)(self.frame, self.operand("columns"), True)


class Objects(Ours, Blockwise):
    """Levels of the index are of objects in each block.

    pandas makes of them whatever the groups of a block fit into, and Dask's hash of the same value differs
    between dtypes.
    """

    _parameters = ["frame", "names"]

    @staticmethod
    def operation(block: pd.DataFrame | pd.Series, names: list[Label]) -> pd.DataFrame | pd.Series:
        index: Any = block.index
        for name in names:
            if name not in index.names:
                continue
            if isinstance(index, pd.MultiIndex):
                level = index.names.index(name)
                index = index.set_levels(index.levels[level].astype(object), level=level)
            else:
                index = index.astype(object)
        return block.set_axis(index)

    def _known(self) -> Known | None:
        return known(self.frame)


class Distinct(Ours, Blockwise):
    """`drop_duplicates` partition by partition."""

    _parameters = ["frame", "subset", "keep", "ignore_index"]
    _keyword_only = ["subset", "keep", "ignore_index"]
    operation = M.drop_duplicates

    @functools.cached_property
    def _kwargs(self) -> dict[str, Any]:
        names = self._keyword_only if self.frame.ndim == 2 else self._keyword_only[1:]
        return {name: self.operand(name) for name in names}

    def _known(self) -> Known | None:
        return known(self.frame)

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if not isinstance(parent, Projection) or self.subset is None:
            return None
        wanted = {*labels(determine_column_projection(self, parent, dependents)), *labels(self.subset)}
        columns = [column for column in self.frame.columns if column in wanted]
        if len(columns) == len(self.frame.columns):
            return None
        return type(self)(self.frame[columns], *self.operands[1:])[parent.operand("columns")]


class Place(Ours):
    """Rows into the partitions of a layout. Abstract: lowered to the engine's own steps."""

    _parameters = ["frame", "on", "layout", "engine", "addresses"]
    _filter_passthrough = True

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return self.frame._meta

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.layout.npartitions + 1)

    def __str__(self) -> str:
        return f"Place({self.frame}, on={list(self.on)}, npartitions={self.layout.npartitions})"

    def _known(self) -> Known:
        return Known(self.on, self.layout)

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        if isinstance(parent, Filter):
            rows = parent.predicate.ndim == 1 and _rowwise(parent.predicate, self)
            if rows and self._filter_passthrough_available(parent, dependents):
                return self._filter_simplification(parent)
        elif isinstance(parent, Projection):
            wanted = {*labels(determine_column_projection(self, parent, dependents)), *self.on}
            columns = [column for column in self.frame.columns if column in wanted]
            if len(columns) < len(self.frame.columns):
                return type(self)(self.frame[columns], *self.operands[1:])[parent.operand("columns")]
        return None

    def _lower(self) -> Expr:
        return self.followed_by(None)

    def followed_by(self, then: Then | None) -> Expr:
        """The engine's steps, with what is done to each partition at once."""
        if self.engine == "p2p":
            return P2PPlace(self.frame, self.on, self.layout, self.addresses, then)
        return TaskPlace(self.frame, self.on, self.layout, self.engine == "disk", then)


class Then(Protocol):
    """What the task that makes a partition also does to it, so that nobody else ever sees that."""

    @property
    def meta(self) -> pd.DataFrame:
        """Of what it gives."""

    def task(self, name: Any, block: Any, partition: int) -> Task:
        """Of a task, or a reference to one, that gives the partition."""


def _rowwise(predicate: Expr, frame: Expr) -> bool:
    """Whether each row's verdict depends on that row of `frame` alone, wherever it lies."""
    if not isinstance(predicate, Expr) or predicate._name == frame._name:
        return True
    if not any(frame._name == node._name for node in predicate.walk()):
        return True
    return isinstance(predicate, Elemwise) and all(_rowwise(e, frame) for e in predicate.dependencies())


class Placing(Ours, PartitionsFiltered):
    """The steps of one engine; of some partitions only, where no more are wanted."""

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return self.frame._meta if self.then is None else self.then.meta

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.layout.npartitions + 1)

    def _output(self, i: int, partition: int, function: Any, *arguments: Any) -> Task:
        name = (self._name, i)
        if self.then is None:
            return Task(name, function, *arguments)
        return self.then.task(name, Task(None, function, *arguments), partition)

    @property
    def _funcname(self) -> str:
        return "chash-unpack" if self.then is None else "chash-write"  # names of tasks on the dashboard

    @property
    def _token(self) -> str:
        return self._name.split("-")[-1]


class TaskPlace(Placing):
    """Rows into partitions by tasks alone; see `blocks`."""

    _parameters = ["frame", "on", "layout", "disk", "then", "_partitions"]
    _defaults = {"then": None, "_partitions": None}

    def _layer(self) -> dict[Any, Any]:
        token, blocks, meta = self._token, range(self.frame.npartitions), self.frame._meta
        groups = groups_of(sorted(set(self._partitions)))
        slots = f"chash-slots-{token}"
        layer: dict[Any, Any] = {slots: Task(slots, slots_of, groups, self.layout.npartitions)}
        file = token if self.disk else None
        for i in blocks:
            name = (f"chash-split-{token}", i)
            block = TaskRef((self.frame._name, i))
            layer[name] = Task(
                name, split_block, block, meta, self.on, self.layout.seed, TaskRef(slots), file
            )
        places = {}
        for group, members in enumerate(groups):
            shares = [(f"chash-share-{token}", i, group) for i in blocks]
            for i, share in zip(blocks, shares, strict=True):
                layer[share] = Task(share, share_of, TaskRef((f"chash-split-{token}", i)), str(group))
            whole = (f"chash-stack-{token}", group)
            layer[whole] = Task(whole, stack, meta, *map(TaskRef, shares))
            places.update({partition: (whole, slot) for slot, partition in enumerate(members)})
        for i, partition in enumerate(self._partitions):
            whole, slot = places[partition]
            take = join if self.then is None else view
            layer[self._name, i] = self._output(i, partition, Stack.unpack, TaskRef(whole), slot, take)
        return layer


class P2PPlace(Placing):
    """Rows into partitions by our run in Dask's P2P machinery, each output landing on its owner."""

    _parameters = ["frame", "on", "layout", "addresses", "then", "_partitions"]
    _defaults = {"then": None, "_partitions": None}

    def _layer(self) -> dict[Any, Any]:
        token = self._token
        spec = PlacedShuffleSpec(
            id=ShuffleId(token),
            disk=True,
            meta=self.frame._meta,
            views=self.then is not None,
            on=self.on,
            parts_out=tuple(self._partitions) if self._filtered else self.layout.npartitions,
            layout=self.layout,
            addresses=dict(self.addresses),
        )
        layer: dict[Any, Any] = {}
        transfers = []
        for i in range(self.frame.npartitions):
            name = (f"chash-transfer-{token}", i)
            layer[name] = Task(name, transfer, TaskRef((self.frame._name, i)), spec.id, i)
            transfers.append(TaskRef(name))
        barrier = P2PBarrierTask(barrier_key(spec.id), p2p_barrier, spec.id, *transfers, spec=spec)
        layer[barrier.key] = barrier
        for i, partition in enumerate(self._partitions):
            layer[self._name, i] = self._output(i, partition, unpack, spec.id, partition, barrier.ref())
        return layer

    def __dask_annotations__(self) -> dict[str, dict[Any, object]]:
        # Otherwise most outputs are first tried on a worker that sends them on to another.
        addresses = dict(self.addresses)
        owners = [addresses.get(self.layout.owner_of(partition)) for partition in self._partitions]
        return on_workers(self._name, owners)


class PlacedMerge(Ours, Merge):
    """A merge with a placed frame below it.

    Where both sides are placed by one hash into one number of partitions, and the merge keys
    contain the placing keys pairwise, partition i joins partition i. Anywhere else it is
    Dask's merge, which is told nothing and from which nothing is concluded.
    """

    @property
    def unique_partition_mapping_columns_from_shuffle(self) -> set[tuple[Label, ...]]:
        return set()

    _known = known_of_merge

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr | None:
        on = [*labels(self.left_on), *labels(self.right_on)]
        if isinstance(parent, (Projection, Index)) and not any(isinstance(key, Expr) for key in on):
            return self._project(parent, set(on), dependents)
        # Dask takes a column for one with a suffix if there is one by such a name.
        columns = {*self.left.columns, *self.right.columns}
        suffixed = {f"{column}{suffix}" for column in columns for suffix in self.suffixes}
        if not all(self.suffixes) or columns & suffixed:
            return None
        return super()._simplify_up(parent, dependents)

    def _project(self, parent: Expr, keys: set[Label], dependents: Any) -> Expr | None:
        wanted = set(labels(determine_column_projection(self, parent, dependents)))
        # Both sides keep a column that both have: without its like it would get no suffix.
        sides = [
            [
                c
                for c in side.columns
                if c in keys or wanted & {c, *(f"{c}{end or ''}" for end in self.suffixes)}
            ]
            for side in (self.left, self.right)
        ]
        if sides == [list(self.left.columns), list(self.right.columns)]:
            return None
        merge = type(self)(self.left[sides[0]], self.right[sides[1]], *self.operands[2:])
        return type(parent)(merge, *parent.operands[1:])

    def _divisions(self) -> tuple[Any, ...]:
        sides = sides_of(self)
        return super()._divisions() if sides is None else (None,) * (sides[0].layout.npartitions + 1)

    def _lower(self) -> Expr:
        if sides_of(self) is None:
            merge: Expr = Merge(Told(self.left), Told(self.right), *self.operands[2:])
            if self.how == "leftsemi":  # broadcast, Dask's gives a row for each partition of the right
                merge = SemiMerge(*merge.operands).substitute_parameters({"broadcast": False})
            return Told(merge, (), True)
        right = Distinct(self.right, None, "first", False) if self.how == "leftsemi" else self.right
        return ColocatedMerge(self.left, right, **self.kwargs)


OURS: dict[type[Expr], type[Expr]] = {Merge: PlacedMerge, SemiMerge: PlacedMerge, **CORRECTED}


def _asked_first(theirs: type[Expr], ours: type[Expr]) -> None:
    """Of frames that descend from placed ones, our expression is asked what may pass it.

    Dask looks at parents first, so a filter would be below its merge before a `Claim` meets it.
    """
    simplify_up = theirs._simplify_up

    @functools.wraps(simplify_up)
    def ours_or_theirs(self: Expr, parent: Expr, dependents: Any) -> Expr | None:
        if type(self) is theirs and any(True for _ in self.find_operations(Claim)):
            return parent.substitute(self, ours(*self.operands))
        return simplify_up(self, parent, dependents)

    theirs._simplify_up = ours_or_theirs


for _theirs, _ours in OURS.items():
    _asked_first(_theirs, _ours)


class ColocatedMerge(Ours, BlockwiseMerge):
    """Partition i of the left with partition i of the right, in one task each."""

    @property
    def unique_partition_mapping_columns_from_shuffle(self) -> set[tuple[Label, ...]]:
        return set()

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.left.npartitions + 1)

    def _simplify_up(self, parent: Expr, dependents: Any) -> None:
        return None  # what may pass a merge has passed it

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _task(self, name: Any, index: int) -> Task:
        return Task(
            name,
            merge_partitions,
            self._blockwise_arg(self.left, index),
            self._blockwise_arg(self.right, index),
            result_meta=self._meta,
            **self.kwargs,
        )


def merge_partitions(
    left: pd.DataFrame, right: pd.DataFrame, *, result_meta: pd.DataFrame, **kwargs: Any
) -> pd.DataFrame:
    """Join two partitions; refuse numbers that pandas would join although they differ, or round."""
    pairs: list[tuple[Any, Any]] = list(
        zip(labels(kwargs["left_on"]), labels(kwargs["right_on"]), strict=True)
    )
    for left_on, right_on in pairs:
        _refuse_rounding(left[left_on], right[right_on])
    sides = [left, right]
    for pair in pairs:
        categories = [_is_category(side[name].dtype) for side, name in zip(sides, pair, strict=True)]
        if sum(categories) == 1:
            # Of a category and another dtype, pandas makes one or the other, as a block's rows happen to be.
            i = categories.index(True)
            sides[i] = sides[i].copy(deep=False)
            sides[i][pair[i]] = _plain(sides[i][pair[i]])
            meta: Any = [
                c for c in set(pair) & set(result_meta.columns) if _is_category(result_meta[c].dtype)
            ]
            result_meta = result_meta.astype(dict.fromkeys(meta, object))
    merged = merge_chunk(*sides, result_meta=result_meta, **kwargs)
    for left_on, right_on in pairs:
        if left[left_on].dtype != right[right_on].dtype:
            _check_unchanged(merged, left[left_on], right[right_on])
    return merged


def _refuse_rounding(left: pd.Series, right: pd.Series) -> None:
    """Raise if pandas would compare numbers in a dtype that does not tell all of them apart."""
    sides = [("left", left.name, _values(left)), ("right", right.name, _values(right))]
    bits = _exact_bits(*(column.dtype for _, _, column in sides))
    for side, name, column in sides if bits else []:
        present = [v for v in (column.min(), column.max()) if not pd.isna(v) and not np.isinf(v)]
        if beyond := [v for v in present if abs(int(v)) > 2**bits]:
            dtypes = " and ".join(str(column.dtype) for _, _, column in sides)
            raise ValueError(
                f"cannot join {left.name!r} to {right.name!r}: they are {dtypes}, and {name!r} of the {side} "
                f"frame holds {beyond[0]}, beyond 2**{bits}, where pandas would compare rounded numbers and "
                "join keys that differ. Give both columns one dtype first, e.g. with astype('int64')"
            )


def _exact_bits(left: Any, right: Any) -> int:
    """Up to which power of 2 pandas tells numbers of two dtypes apart; 0 if always."""
    kinds = {str(getattr(dtype, "kind", "O")): dtype for dtype in (left, right)}
    if kinds.keys() == {"i", "u"}:
        return 63 if kinds["u"].itemsize == 8 else 0
    return 53 if kinds.keys() in ({"i", "f"}, {"u", "f"}) else 0


def _check_unchanged(merged: pd.DataFrame, left: pd.Series, right: pd.Series) -> None:
    """Raise if a key came out as one that neither side has, and so may be of another partition."""
    null = np.zeros(
        1, dtype=np.uint64
    )  # the hash of a null, which an outer merge puts where a side has no row
    there = np.concatenate([hash_keys(left), hash_keys(right), null])
    columns: list[Any] = list(merged.columns)
    for name in {left.name, right.name}:
        if columns.count(name) != 1:
            continue
        changed = ~np.isin(hash_keys(merged[name]), there)
        if changed.any():
            raise ValueError(
                f"joining {left.name!r} to {right.name!r}, {left.dtype} and {right.dtype}, pandas changed "
                f"keys, such as to {merged[name][changed].iloc[0]!r}: give both columns one dtype first, "
                f"e.g. with astype('{left.dtype}')"
            )


def _plain(column: pd.Series) -> pd.Series:
    """The values of categories, in their own dtype, or in one of its kind that holds nulls."""
    dtype = column.cat.categories.dtype
    if column.isna().any() and dtype.kind in "iub":
        return column.astype(column.cat.categories.to_series().convert_dtypes().dtype)
    return column.astype(dtype)


def _values(column: pd.Series) -> pd.Series:
    if not _is_category(column.dtype):
        return column
    return pd.Series(column.cat.remove_unused_categories().cat.categories)


def _is_category(dtype: Any) -> bool:
    return isinstance(dtype, pd.CategoricalDtype)


class Pin(Ours):
    """Each partition handed to its owner: on a cluster it is computed or fetched there.

    The restriction is loose: where the owner is gone, another worker takes over and nothing
    hangs.
    """

    _parameters = ["frame", "owners"]  # owners: an address or None for each partition

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return self.frame._meta

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (len(self.owners) + 1)

    @property
    def _funcname(self) -> str:
        return PIN

    def _task(self, name: Any, index: int) -> Task:
        return Task(name, _same, TaskRef((self.frame._name, index)))

    def __dask_annotations__(self) -> dict[str, dict[Any, object]]:
        return on_workers(self._name, self.owners)


def on_workers(name: str, addresses: Sequence[str | None]) -> dict[str, dict[Any, object]]:
    """Annotations by which partition i is computed at the i-th address, if that is there."""
    pinned: dict[Any, object] = {(name, i): [address] for i, address in enumerate(addresses) if address}
    return {"workers": pinned, "allow_other_workers": dict.fromkeys(pinned, True)}


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


class PersistedFrame(Ours, FromGraph):
    """A placed frame in memory."""

    _parameters = [*FromGraph._parameters, "on", "layout"]

    def _known(self) -> Known:
        return Known(self.on, self.layout, self)

    @property
    def frame_name(self) -> str:
        """The name under which the scheduler keeps the partitions: key i is (frame_name, i)."""
        return str(self.operand("keys")[0][0])


def persisted(graph: FromGraph, on: Sequence[Label], layout: Layout) -> Claim:
    """The placed frame of what `client.persist` of a `Pin` returned."""
    keys = sorted(graph.operand("keys"), key=lambda key: key[1])
    # What reads it may be stolen, unlike a `Pin`.
    ours = {"keys": keys, "name_prefix": "chash-placed"}
    operands = [ours.get(name, graph.operand(name)) for name in FromGraph._parameters]
    return Claim(PersistedFrame(*operands, tuple(on), layout))
