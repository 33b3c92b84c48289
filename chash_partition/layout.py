"""The layout: which partition a key is in, and which node owns each partition.

Three levels, so that few things move when nodes change:

    key  --hash-->  one of P equal ranges of the hash space: a partition  --assignment-->  a node

A key never changes its partition; a partition changes its node only when a plan says so. P is fixed and much
larger than the number of nodes, so what moves is a few whole partitions and never single rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import lcm
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from chash_partition.hashing import hash_key, hash_keys, partition_ids
from chash_partition.ring import HashRing, integer, known_node, node_name, node_weights, some

__all__ = ["Layout"]

FORMAT = 1
MAX_PARTITIONS = 2**31 - 1
PLACEMENTS = ("bounded", "ring")
FIELDS = (
    "format", "id", "version", "on", "npartitions", "seed", "vnodes", "placement", "nodes", "assignment",
)  # fmt: skip
WEIGHT = re.compile(r"[0-9]+([./][0-9]+)?")  # no exponent: nobody gets to the end of 1e999999999


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """Key columns, number of partitions, nodes with weights, and the node of each partition. An immutable
    value.

    Make one with `Layout.create`, or read one with `Layout.from_json`.

    Attributes
    ----------
    id : str
        What layouts of one history share: equal for equal arguments of `create`, and kept by every plan.
    version : int
        From 0; a plan adds 1.
    on : tuple of column labels
    npartitions : int
    seed : int
        Seed of everything hashed: keys and tokens.
    vnodes : int
        Tokens of a node of weight 1 on the ring.
    placement : "bounded" or "ring"
    weights : read-only mapping of str to Fraction
        By name, sorted.
    assignment : read-only ndarray of int32, (npartitions,)
        Index into `nodes` of the owner of each partition. (Given to the constructor: into `weights` as
        given.)
    extra : str
        JSON object of fields that `from_json` did not know and `to_json` writes again.

    Examples
    --------
    >>> layout = Layout.create("user_id", 64, ["w0", "w1", "w2", "w3"])
    >>> layout
    Layout(on=user_id, 64 partitions on 4 nodes: 16 each, version 0)
    >>> layout.partition_of_key("alice"), layout.owner("alice")
    (28, 'w2')
    """

    id: str
    version: int
    on: tuple[Hashable, ...]
    npartitions: int
    seed: int
    vnodes: int
    placement: str
    weights: Mapping[str, Fraction]
    assignment: npt.NDArray[np.int32]
    extra: str = "{}"

    def __post_init__(self) -> None:
        """Check every field and make it read-only, whichever way the layout was made."""
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id must be a str that is not empty, got {self.id!r}")
        check_placement(self.placement)
        weights = node_weights(self.weights)
        npartitions = integer("npartitions", self.npartitions, 1, MAX_PARTITIONS)
        assignment = np.array(self.assignment)
        if assignment.shape != (npartitions,) or assignment.dtype.kind not in "ui":
            raise ValueError(
                f"assignment must be one integer for each of {npartitions} partitions, "
                f"got {assignment.dtype} of shape {assignment.shape}"
            )
        if assignment.min() < 0 or assignment.max() >= len(weights):
            p = int(np.argmax((assignment < 0) | (assignment >= len(weights))))
            raise ValueError(
                f"assignment of partition {p} is {assignment[p]}, and there are {len(weights)} nodes"
            )
        number = {name: i for i, name in enumerate(weights)}  # weights may have come in another order
        assignment = np.array([number[node_name(name)] for name in self.weights], dtype=np.int32)[assignment]
        assignment.flags.writeable = False
        for field, value in {
            "version": integer("version", self.version, 0),
            "on": column_labels(self.on),
            "npartitions": npartitions,
            "seed": integer("seed", self.seed, 0, 2**64 - 1),
            "vnodes": integer("vnodes", self.vnodes, 1),
            "weights": MappingProxyType(weights),
            "assignment": assignment,
        }.items():
            object.__setattr__(self, field, value)

    @classmethod
    def create(
        cls,
        on: Any,
        npartitions: int,
        nodes: Iterable[str | int] | Mapping[Any, Any],
        *,
        placement: str = "bounded",
        vnodes: int = 256,
        seed: int = 0,
    ) -> Layout:
        """A fresh layout. The same arguments give the same one, id included, on every machine.

        Parameters
        ----------
        on : column label, or list of them
        npartitions : int
            From 1 to 2^31 - 1.
        nodes : iterable of names, or mapping {name: weight}
            In any order.
        placement : "bounded" or "ring"
            "bounded": no node owns more than its quota; partitions in index order walk clockwise to the first
            node that has room. "ring": the node whose token is first at or after the partition's point.
        vnodes : int
            Tokens of a node of weight 1.
        seed : int
            From 0 up to 2^64.

        Raises
        ------
        ValueError
            Naming what is wrong, before anything is computed.

        Notes
        -----
        "bounded" is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018) at the
        tightest bound there is: each node has its weight's share of the partitions, rounded down or up. A
        fresh layout can be made again from its arguments. After a plan it has a history: pass it on, do not
        make it anew.

        Examples
        --------
        >>> Layout.create(["year", "tail"], 60, {"small": 1, "big": 2}).counts()
        {'big': 40, 'small': 20}
        """
        labels = column_labels(on)
        weights = node_weights(nodes)
        npartitions = integer("npartitions", npartitions, 1, MAX_PARTITIONS)
        seed, vnodes = integer("seed", seed, 0, 2**64 - 1), integer("vnodes", vnodes, 1)
        check_placement(placement)
        ring = ring_of(tuple(weights.items()), vnodes, seed)
        points = partition_points(npartitions)
        return cls(
            id=identity(
                labels, npartitions, seed, vnodes, placement, [(n, str(w)) for n, w in weights.items()]
            ),
            version=0,
            on=labels,
            npartitions=npartitions,
            seed=seed,
            vnodes=vnodes,
            placement=placement,
            weights=weights,
            assignment=(
                ring.owner_indices(points)
                if placement == "ring"
                else ring.fill(points, quotas(weights, npartitions))
            ),
        )

    # Nodes and the ring

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, sorted."""
        return tuple(self.weights)

    @property
    def ring(self) -> HashRing:
        """The ring of the layout's nodes."""
        return ring_of(tuple(self.weights.items()), self.vnodes, self.seed)

    @property
    def points(self) -> npt.NDArray[np.uint64]:
        """Each partition's point on the ring, the first hash in its range: uint64, (npartitions,)."""
        return partition_points(self.npartitions)

    def point(self, partition: int) -> int:
        """One partition's point on the ring.

        Examples
        --------
        >>> Layout.create("k", 4, ["a"]).point(1) == 2**62
        True
        """
        return -(-(self._partition(partition) << 32) // self.npartitions) << 32

    # Keys to partitions to nodes

    def partition_of(self, keys: Any) -> npt.NDArray[np.int32]:
        """Partition of each key.

        Parameters
        ----------
        keys : as `hash_keys` takes them
            A DataFrame or Table is reduced to the columns `on`, and must have them.

        Returns
        -------
        ndarray of int32, (n,)

        Raises
        ------
        ValueError
            If a frame or table lacks a column, or has it twice.

        Examples
        --------
        >>> Layout.create("user_id", 64, ["w0", "w1"]).partition_of(["alice", "bob", None]).tolist()
        [28, 36, 0]
        """
        return partition_ids(hash_keys(self._key_columns(keys), seed=self.seed), self.npartitions)

    def partition_of_key(self, key: object) -> int:
        """Partition of one key; of several columns, a tuple in their order.

        Raises
        ------
        ValueError
            If the tuple has not one value for each column.

        Examples
        --------
        >>> Layout.create("user_id", 64, ["w0", "w1"]).partition_of_key("alice")
        28
        """
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.on):
            raise ValueError(
                f"a key is {count(len(self.on), 'value')}, of {show_labels(self.on)}"
                f"{', in a tuple' if len(self.on) > 1 else ''}; got {key!r}"
            )
        hashed = hash_key(values if len(values) > 1 else values[0], self.seed)
        return (hashed >> 32) * self.npartitions >> 32

    def owners(self, keys: Any) -> npt.NDArray[np.object_]:
        """Node that owns each key: object, (n,). Keys as for `partition_of`.

        Examples
        --------
        >>> Layout.create("user_id", 64, ["w0", "w1"]).owners(["alice", "bob"]).tolist()
        ['w1', 'w0']
        """
        return np.array(self.nodes, dtype=object)[self.assignment[self.partition_of(keys)]]

    def owner(self, key: object) -> str:
        """Node that owns one key, as for `partition_of_key`.

        Examples
        --------
        >>> Layout.create("user_id", 64, ["w0", "w1"]).owner("alice")
        'w1'
        """
        return self.owner_of(self.partition_of_key(key))

    def owner_of(self, partition: int) -> str:
        """Node that owns one partition.

        Examples
        --------
        >>> Layout.create("user_id", 64, ["w0", "w1"]).owner_of(28)
        'w1'
        """
        return self.nodes[int(self.assignment[self._partition(partition)])]

    def partitions_of(self, node: str | int) -> npt.NDArray[np.int64]:
        """Partitions that one node owns: int64, ascending.

        Raises
        ------
        ValueError
            If the layout has no such node.

        Examples
        --------
        >>> Layout.create("user_id", 8, ["w0", "w1"]).partitions_of("w1").tolist()
        [1, 5, 6, 7]
        """
        return np.flatnonzero(self.assignment == self.nodes.index(known_node(node, self.weights)))

    def counts(self) -> dict[str, int]:
        """Number of partitions of every node, by name, of nodes with none too.

        Examples
        --------
        >>> Layout.create("user_id", 2, ["w0", "w1", "w2"]).counts()
        {'w0': 1, 'w1': 1, 'w2': 0}
        """
        held = np.bincount(self.assignment, minlength=len(self.weights))
        return dict(zip(self.weights, held.tolist(), strict=True))

    def same_partitions(self, other: Layout) -> bool:
        """Whether equal keys are in partitions of equal number in both. Who owns them does not matter.

        Examples
        --------
        >>> one = Layout.create("user_id", 64, ["w0"])
        >>> one.same_partitions(Layout.create("id", 64, ["a", "b"])), one.same_partitions(one.split(2))
        (True, False)
        """
        return (self.npartitions, self.seed) == (other.npartitions, other.seed)

    # New layouts from this one

    def rename(self, on: Any) -> Layout:
        """The same layout, by other column labels: of a frame whose key columns are called otherwise.

        Raises
        ------
        ValueError
            If there are not as many labels as before.

        Examples
        --------
        >>> Layout.create("user_id", 64, ["w0"]).rename("id").on
        ('id',)
        """
        labels = column_labels(on)
        if len(labels) != len(self.on):
            raise ValueError(
                f"the layout is on {len(self.on)} column(s), {show_labels(self.on)}: "
                f"cannot rename to {len(labels)}, {show_labels(labels)}"
            )
        return replace(self, on=labels)

    def split(self, k: int) -> Layout:
        """k partitions for each one: partition p becomes k*p up to k*p + k-1, all still on its node.

        The version is one more. The id is new, as partition numbers mean something else from here on, and
        nothing that knows a partition of this layout by number may mistake it for one of the new.

        Raises
        ------
        ValueError
            If k is less than 1, or there would be more than 2^31 - 1 partitions.

        Examples
        --------
        >>> layout = Layout.create("user_id", 8, ["w0", "w1"])
        >>> finer = layout.split(3)
        >>> finer.npartitions, finer.owner("alice") == layout.owner("alice")
        (24, True)
        """
        k = integer("k", k, 1, MAX_PARTITIONS // self.npartitions)
        return replace(
            self,
            id=identity(self.id, self.version, "split", k),
            version=self.version + 1,
            npartitions=self.npartitions * k,
            assignment=np.repeat(self.assignment, k),
        )

    def with_assignment(self, owners: Iterable[str | int], nodes: Any = None) -> Layout:
        """The same layout, id and version, with its partitions where they are said to be.

        Parameters
        ----------
        owners : iterable of names, (npartitions,)
            Owner of each partition, in order.
        nodes : iterable of names, or mapping {name: weight}, optional
            The nodes there are; by default those of this layout. Owners that are not among them are added,
            with the weight they have in this layout, or 1.

        Raises
        ------
        ValueError
            If there is not one owner for each partition.

        Examples
        --------
        >>> layout = Layout.create("user_id", 4, ["w0", "w1"])
        >>> layout.with_assignment(["w1", "w1", "w0", "w7"]).counts()
        {'w0': 1, 'w1': 2, 'w7': 1}
        """
        names = [node_name(owner) for owner in owners]
        if len(names) != self.npartitions:
            raise ValueError(f"needs one owner for each of {self.npartitions} partitions, got {len(names)}")
        given = dict(self.weights) if nodes is None else node_weights(nodes, self.weights)
        weights = node_weights({**node_weights(set(names), self.weights), **given})
        number = {name: i for i, name in enumerate(weights)}
        return replace(
            self, weights=weights, assignment=np.array([number[name] for name in names], dtype=np.int32)
        )

    # As text

    def to_json(self) -> str:
        """The layout as a JSON object, format 1.

        Raises
        ------
        ValueError
            If a column label is not a str.

        Notes
        -----
        Seed and weights are strings, as other readers of JSON make floats of numbers.

        Examples
        --------
        >>> print(Layout.create("user_id", 4, {"w0": 1, "w1": 0.5}).to_json())
        {"format": 1, "id": "...", "version": 0, "on": ["user_id"], "npartitions": 4, "seed": "0",
        "vnodes": 256, "placement": "bounded", "nodes": [["w0", "1"], ["w1", "1/2"]],
        "assignment": [0, 0, 0, 1]}
        """
        for label in self.on:
            if not isinstance(label, str):
                raise ValueError(
                    f"column label {label!r} is not a str, and JSON has no other: rename the column"
                )
        return json.dumps(
            {
                "format": FORMAT,
                "id": self.id,
                "version": self.version,
                "on": list(self.on),
                "npartitions": self.npartitions,
                "seed": str(self.seed),
                "vnodes": self.vnodes,
                "placement": self.placement,
                "nodes": [[name, str(weight)] for name, weight in self.weights.items()],
                "assignment": self.assignment.tolist(),
                **json.loads(self.extra),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Layout:
        """The layout that `to_json` wrote. Fields it does not know are kept for `to_json`.

        Raises
        ------
        ValueError
            If the text is not a layout, or one of a format other than 1, naming what is wrong.

        Examples
        --------
        >>> layout = Layout.create("user_id", 64, ["w0", "w1"])
        >>> Layout.from_json(layout.to_json()) == layout
        True
        """
        fields = read_object(text, "layout")
        if missing := [field for field in FIELDS if field not in fields]:
            raise ValueError(f"layout JSON lacks {', '.join(missing)}")
        nodes, seed = fields["nodes"], fields["seed"]
        pairs = is_list(nodes, list) and all(len(node) == 2 and is_list(node, str) for node in nodes)
        for field, right, shape in (
            (
                "nodes",
                pairs and all(WEIGHT.fullmatch(weight) for _, weight in nodes),
                "of [name, weight] strings",
            ),
            ("on", is_list(fields["on"], str), "of strings"),
            ("assignment", is_list(fields["assignment"], int), "of integers"),
        ):
            if not right:
                raise ValueError(f"{field} in layout JSON must be a list {shape}, got {fields[field]!r:.80}")
        if not isinstance(seed, str) or not re.fullmatch("[0-9]{1,20}", seed):
            raise ValueError(f"seed in layout JSON must be a string of digits, got {seed!r:.80}")
        node_weights([name for name, _ in nodes])  # a dict would hide a name given twice
        return cls(
            id=fields["id"],
            version=fields["version"],
            on=tuple(fields["on"]),
            npartitions=fields["npartitions"],
            seed=int(seed),
            vnodes=fields["vnodes"],
            placement=fields["placement"],
            weights=dict(nodes),
            assignment=np.array(fields["assignment"]),
            extra=json.dumps({field: value for field, value in fields.items() if field not in FIELDS}),
        )

    # A value

    def _value(self) -> tuple[object, ...]:
        """Everything but the assignment."""
        return (
            self.id, self.version, self.on, self.npartitions, self.seed, self.vnodes, self.placement,
            tuple((name, str(weight)) for name, weight in self.weights.items()), self.extra,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self._value() == other._value() and np.array_equal(self.assignment, other.assignment)

    def __hash__(self) -> int:
        return hash(self._value())

    def __dask_tokenize__(self) -> tuple[str, ...]:
        digest = blake2b(repr(self._value()).encode("utf-8", "surrogatepass"))
        digest.update(self.assignment.astype("<i4").tobytes())
        return "chash_partition.Layout", digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.id, self.version, self.on, self.npartitions, self.seed, self.vnodes, self.placement)
        return Layout, (*fields, dict(self.weights), self.assignment, self.extra)

    def __repr__(self) -> str:
        held = self.counts().values()
        each = f"{min(held):,}" if min(held) == max(held) else f"{min(held):,} to {max(held):,}"
        return (
            f"Layout(on={show_labels(self.on)}, {count(self.npartitions, 'partition')} "
            f"on {count(len(held), 'node')}: {each} each, version {self.version})"
        )

    # Checks

    def _partition(self, partition: object) -> int:
        return integer("partition", partition, 0, self.npartitions - 1)

    def _key_columns(self, keys: Any) -> Any:
        """The columns `on` of a frame or table, in that order; other keys as they are, if as many."""
        width = 1
        if isinstance(keys, (pd.DataFrame, pa.Table, pa.RecordBatch)):
            there = list(keys.columns if isinstance(keys, pd.DataFrame) else keys.schema.names)
            for label in self.on:
                if there.count(label) != 1:
                    raise ValueError(
                        f"the keys have {'more than one' if label in there else 'no'} column {label!r}, "
                        f"and the layout is on {show_labels(self.on)}: they have {show_labels(there)}. "
                        "For key columns of other names, use layout.rename([...])"
                    )
            columns = list(self.on)
            return keys[columns] if isinstance(keys, pd.DataFrame) else keys.select(columns)
        if isinstance(keys, pd.MultiIndex):
            width = keys.nlevels
        elif isinstance(keys, list):
            width = next((len(key) for key in keys if isinstance(key, tuple)), 1 if keys else len(self.on))
        if width != len(self.on):
            raise ValueError(f"keys are of {width} column(s), and the layout is on {show_labels(self.on)}")
        return keys


def quotas(
    weights: Mapping[str, Fraction], total: int, held: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """How many of `total` partitions each node is to own: its weight's share, rounded down or up.

    Parameters
    ----------
    weights : mapping of str to Fraction, (number of nodes,)
    total : int
    held : sequence of int, (number of nodes,), optional
        How many each node owns now. What is to be rounded up goes first to nodes that own more than their
        share rounded down, then by largest remainder, then by smaller name.

    Returns
    -------
    ndarray of int64, (number of nodes,)
        In the order of the names; their sum is `total`.

    Notes
    -----
    The method of largest remainders (Hamilton, 1792), exact in integers.

    Examples
    --------
    >>> from fractions import Fraction
    >>> weights = {"a": Fraction(1), "b": Fraction(1), "c": Fraction(1)}
    >>> quotas(weights, 16).tolist(), quotas(weights, 16, held=[5, 5, 6]).tolist()
    ([6, 5, 5], [5, 5, 6])
    """
    names = sorted(weights)
    scale = lcm(*(weight.denominator for weight in weights.values()))
    units = [int(weights[name] * scale) for name in names]
    floors, remainders = zip(
        *(divmod(total * unit, sum_) for sum_ in [sum(units)] for unit in units), strict=True
    )
    over = (
        [False] * len(names) if held is None else [h > floor for h, floor in zip(held, floors, strict=True)]
    )
    order = sorted(range(len(names)), key=lambda i: (not over[i], -remainders[i]))  # stable: then by name
    quota = np.array(floors, dtype=np.int64)
    quota[order[: total - sum(floors)]] += 1
    return quota


def partition_points(npartitions: int) -> npt.NDArray[np.uint64]:
    """The first hash of every partition's range: ceil(p * 2^32 / npartitions) << 32."""
    first = np.arange(npartitions, dtype=np.int64) << 32
    return (-(-first // npartitions) << 32).astype(np.uint64)


@lru_cache(maxsize=4)
def ring_of(weights: tuple[tuple[str, Fraction], ...], vnodes: int, seed: int) -> HashRing:
    """The ring of these nodes. Remembered: layouts and plans of the same nodes ask for it again and again."""
    return HashRing(dict(weights), vnodes=vnodes, seed=seed)


def identity(*what: object) -> str:
    """A name for what was given, the same in every process."""
    return blake2b(repr(what).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def check_placement(placement: object) -> None:
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(map(repr, PLACEMENTS))}, got {placement!r}")


def column_labels(on: Any) -> tuple[Hashable, ...]:
    """The labels in `on`: a list (or tuple) of them, or one."""
    labels = tuple(on) if isinstance(on, (list, tuple)) else (on,)
    if not labels or on is None:
        raise ValueError("on names no column: give the label of the key column, or a list of labels")
    for label in labels:
        if not isinstance(label, Hashable):
            raise ValueError(f"on must be a column label or a list of labels, got {on!r:.80}")
        if labels.count(label) > 1:
            raise ValueError(f"on names column {label!r} more than once")
    return labels


def show_labels(labels: Iterable[Hashable]) -> str:
    """Column labels for a message."""
    return some([label if isinstance(label, str) else repr(label) for label in labels])


def count(n: int, noun: str) -> str:
    """The number with its noun."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def read_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in the text, of format 1, or a ValueError that says what it should be."""
    try:
        fields = json.loads(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not the JSON of a {what}: {error}") from None
    if not isinstance(fields, dict) or "format" not in fields:
        raise ValueError(f"not the JSON of a {what}: it must be an object with a field format")
    if type(fields["format"]) is not int or fields["format"] != FORMAT:
        raise ValueError(f"{what} JSON is of format {fields['format']!r}; this version reads format {FORMAT}")
    return fields


def is_list(value: object, of: type) -> bool:
    """Whether the value is a list of exactly this type, which a bool is not for int."""
    return isinstance(value, list) and all(type(item) is of for item in value)
