"""Where partitions are to go: what is asked of a plan, and the placement that does it with the fewest moves.

Partitions of equal size have quotas and go where the ring says; fewest moves are then a matter of counting.
For unequal sizes, `solve` finds a placement and proves how good it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import pairwise
from math import ceil, floor, lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chash_partition.layout import Layout, count, quotas, ring_of
from chash_partition.ring import integer, known_node, node_name, some
from chash_partition.solve import SMALL, Ints, Placed, Problem, attempts, least_bytes, place, solve

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Terms", "bands", "fewest_bytes", "fewest_moves", "levels", "owners_among", "read_sizes", "within"]

MAX_BYTES = 2**53
GAIN = 200  # where nodes cannot be within tolerance, a largest load lower by less than a 200th is none
Owners = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Terms:
    """What was asked of a plan besides its nodes. An immutable value.

    Attributes
    ----------
    sizes : tuple of int, (npartitions,), or None
    tolerance : Fraction
    pinned : tuple of int
    draining : tuple of str
    banned : tuple of (str, tuple of int)
        Node, and the partitions that it may not take.
    capacities : tuple of (str, int)
        Node, and the bytes that it can hold.
    """

    sizes: tuple[int, ...] | None = None
    tolerance: Fraction = Fraction(0)
    pinned: tuple[int, ...] = ()
    draining: tuple[str, ...] = ()
    banned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    capacities: tuple[tuple[str, int], ...] = ()

    @property
    def each(self) -> int | None:
        """The size of every partition, if it is one: 1 if unknown; None if they differ."""
        if self.sizes is None:
            return 1
        return self.sizes[0] if min(self.sizes) == max(self.sizes) else None

    @property
    def counted(self) -> tuple[int, ...] | None:
        """Sizes, if they count; None if they are not known, or all 0, so that partitions do."""
        return self.sizes if self.sizes and any(self.sizes) else None

    @classmethod
    def read(
        cls,
        layout: Layout,
        weights: Mapping[str, Fraction],
        *,
        sizes: Any,
        tolerance: Any,
        pinned: Iterable[int],
        draining: Iterable[str | int],
        banned: Mapping[Any, Iterable[int]] | None,
        capacities: Mapping[Any, int] | None,
    ) -> Terms:
        """The terms, checked against the layout and the nodes there will be.

        Bans and capacities may name a node that left by a plan on these terms, so that it can be made again.
        """
        names = {**layout.weights, **weights, **dict.fromkeys(left_by_plan(layout))}
        last = layout.npartitions - 1
        terms = cls(
            None if sizes is None else read_sizes(sizes, range(layout.npartitions), layout.npartitions),
            read_tolerance(tolerance),
            tuple(sorted({integer("pinned partition", p, 0, last) for p in several("pinned", pinned)})),
            tuple(sorted({known_node(name, weights) for name in several("draining", draining, "names")})),
            tuple(
                sorted(
                    (
                        known_node(name, names),
                        tuple(
                            sorted(
                                {
                                    integer("banned partition", p, 0, last)
                                    for p in several(f"banned of node {node_name(name)!r}", partitions)
                                }
                            )
                        ),
                    )
                    for name, partitions in mapping("banned", banned).items()
                )
            ),
            tuple(
                sorted(
                    (
                        known_node(name, names),
                        integer(f"capacity of node {node_name(name)!r}", as_whole(limit), 0),
                    )
                    for name, limit in mapping("capacities", capacities).items()
                )
            ),
        )
        terms.check(layout, weights)
        return terms

    def to_fields(self) -> dict[str, Any]:
        """As JSON fields: 64-bit numbers are strings, and what was not asked is not there."""
        fields: dict[str, Any] = {
            "sizes": None if self.sizes is None else [str(size) for size in self.sizes],
            "tolerance": str(self.tolerance) if self.tolerance else None,
            "pinned": list(self.pinned),
            "draining": list(self.draining),
            "banned": {name: list(partitions) for name, partitions in self.banned},
            "capacities": {name: str(limit) for name, limit in self.capacities},
        }
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_fields(cls, fields: Any, layout: Layout, weights: Mapping[str, Fraction]) -> Terms:
        """The terms that `to_fields` gave."""
        known = ("sizes", "tolerance", "pinned", "draining", "banned", "capacities")
        if not isinstance(fields, dict) or not set(fields) <= set(known):
            raise ValueError(f"terms in plan JSON must be an object of {', '.join(known)}")
        try:
            sizes = fields.get("sizes")
            return cls.read(
                layout,
                weights,
                sizes=None if sizes is None else [int(size) for size in sizes],
                tolerance=fields.get("tolerance", 0),
                pinned=fields.get("pinned", ()),
                draining=fields.get("draining", ()),
                banned=fields.get("banned"),
                capacities={name: int(limit) for name, limit in fields.get("capacities", {}).items()},
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"terms in plan JSON cannot be read: {error}") from None

    def naming(self, names: Collection[str]) -> list[str]:
        """Nodes that bans and capacities name, but for these."""
        return sorted({name for name, _ in (*self.banned, *self.capacities)} - set(names))

    def check(self, layout: Layout, weights: Mapping[str, Fraction]) -> None:
        """Refuse what cannot be, before any work."""
        if layout.placement == "ring":
            for what in ("tolerance", "pinned", "draining", "banned", "capacities"):
                if getattr(self, what):
                    raise ValueError(
                        f"{what} needs placement 'bounded': with placement 'ring' the ring alone decides "
                        "where a partition is. Leave it out"
                    )
        active = [name for name in weights if name not in self.draining]
        if not active:
            raise ValueError("all nodes are draining: name at least one that takes partitions")
        for p in self.pinned:
            if layout.owner_of(p) not in weights:
                raise ValueError(
                    f"partition {p} is pinned to node {layout.owner_of(p)!r}, which leaves: keep the node, "
                    "draining if it is to lose all others, or unpin the partition"
                )
        if self.capacities and self.sizes is None:
            raise ValueError("capacities are in bytes, and the sizes of partitions are not known: give sizes")
        if self.sizes is not None and self.each is None and sum(self.sizes) > MAX_BYTES:
            raise ValueError(
                f"the sizes add up to {sum(self.sizes)}, more than 2^53: give them in a larger unit"
            )
        if self.banned or self.capacities:
            self._check_places(layout, active)

    def _check_places(self, layout: Layout, active: Sequence[str]) -> None:
        """Each partition must have a node that may and can take it, and each node room for its pins."""
        limit = dict(self.capacities)
        pinned: dict[str, int] = {}
        sizes = self.sizes or (0,) * layout.npartitions
        barred: dict[int, set[str]] = {}
        for name, partitions in self.banned:
            for p in partitions:
                barred.setdefault(p, set()).add(name)
        for p in self.pinned:
            owner = layout.owner_of(p)
            if owner in barred.get(p, ()):
                raise ValueError(
                    f"partition {p} is pinned to node {owner!r} and banned from it: drop one of the two"
                )
            pinned[owner] = pinned.get(owner, 0) + sizes[p]
            if owner in limit and pinned[owner] > limit[owner]:
                raise ValueError(
                    f"node {owner!r} has a capacity of {limit[owner]:,} bytes, and the partitions pinned to "
                    f"it, up to {p}, have {pinned[owner]:,}: raise the capacity or unpin some"
                )
        free = set(range(layout.npartitions)) - set(self.pinned)
        room = {name: limit[name] - pinned.get(name, 0) for name in active if name in limit}
        largest = max(room.values(), default=0) if len(room) == len(active) else sum(sizes)
        for p in sorted(free):
            if p in barred or sizes[p] > largest:
                may = [name for name in active if name not in barred.get(p, ())]
                if not may:
                    raise ValueError(
                        f"partition {p} is banned from every node that takes partitions: lift one of the bans"
                    )
                if all(name in room and room[name] < sizes[p] for name in may):
                    raise ValueError(
                        f"partition {p} has {sizes[p]:,} bytes, and no node that may take it has the "
                        f"capacity: the largest is {max(room[name] for name in may):,} bytes. Raise one"
                    )
        if len(room) == len(active) and sum(room.values()) < sum(sizes[p] for p in free):
            raise ValueError(
                f"partitions of {sum(sizes[p] for p in free):,} bytes do not fit into nodes with room for "
                f"{sum(room.values()):,}: raise the capacities or add nodes"
            )


NOTE = "rest_of_plan"  # in a layout: what the plan leads to that made it, and what of that is left


def note_of(layout: Layout) -> dict[str, Any]:
    """The note of the plan that made this layout; empty if there is none."""
    note = json.loads(layout.extra).get(NOTE)
    return note if isinstance(note, dict) else {}


def left_by_plan(layout: Layout) -> list[str]:
    """Nodes that the plan's terms name that made this layout, and that are no more."""
    left = note_of(layout).get("left", [])
    return [name for name in left if isinstance(name, str)] if isinstance(left, list) else []


def read_tolerance(tolerance: Any) -> Fraction:
    try:
        exact = Fraction(str(tolerance))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(-1)
    if isinstance(tolerance, bool) or not 0 <= exact < 1:
        raise ValueError(
            f"tolerance must be a number from 0 and less than 1, as 0.05 for 5 %, got {tolerance!r}"
        )
    return exact


def read_sizes(
    sizes: Sequence[int] | Mapping[int, int] | pd.Series[Any], partitions: Iterable[int], npartitions: int
) -> tuple[int, ...]:
    """The sizes of these partitions, given as a sequence of all or as a mapping or Series by partition."""
    lookup: Any = sizes
    if hasattr(sizes, "to_dict"):
        lookup = sizes.to_dict()
        if len(lookup) != len(sizes):
            raise ValueError("sizes has a partition twice in its index: give each one size")
    if isinstance(lookup, Mapping):
        for p in lookup:
            integer("partition in sizes", as_whole(p), 0, npartitions - 1)
    else:
        if not isinstance(lookup, (Sequence, np.ndarray)) or isinstance(lookup, (str, bytes)):
            raise ValueError(
                f"sizes must be a list of one for each partition, or a mapping or Series by partition, got "
                f"{type(lookup).__name__}"
            )
        if len(lookup) != npartitions:
            raise ValueError(f"needs a size for each of {npartitions} partitions, got {len(lookup)}")
        lookup = lookup.tolist() if isinstance(lookup, np.ndarray) else lookup
    read = []
    for p in partitions:
        if isinstance(lookup, Mapping) and p not in lookup:
            raise ValueError(f"partition {p} has no size")
        read.append(integer(f"size of partition {p}", as_whole(lookup[p]), 0))
    return tuple(read)


def as_whole(number: Any) -> Any:
    """A float that is an integer as an int, as a Series with a gap and 1e9 are; all else as it is."""
    if isinstance(number, (float, np.floating)) and number.is_integer():
        return int(number)
    return number


def several(what: str, given: Any, of: str = "partitions") -> Iterable[Any]:
    """What was given, if it is several and not the letters of one."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ValueError(f"{what} must be a list of {of}, got {given!r}")
    return given


def mapping(what: str, given: Any) -> Mapping[Any, Any]:
    """What was given by node; empty if None."""
    given = {} if given is None else given.to_dict() if hasattr(given, "to_dict") else given
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a mapping by node, as {{'w1': ...}}, got {given!r}")
    return given


def owners_among(layout: Layout, names: Iterable[str]) -> Owners:
    """Owner of each partition as an index into these names, sorted; -1 if it is none of them."""
    number = {name: i for i, name in enumerate(sorted(names))}
    return np.array([number.get(name, -1) for name in layout.nodes], dtype=np.int32)[layout.assignment]


@dataclass(frozen=True)
class Case:
    """A layout under terms, as arrays.

    Attributes
    ----------
    weights : dict
        Of the nodes that take partitions, sorted by name: other arrays count them so.
    owner : ndarray of int32, (npartitions,)
        -1 if the partition must go, or is pinned to a node that drains.
    fixed : ndarray of bool, (npartitions,)
        Pinned.
    banned : ndarray of uint8, (nodes, npartitions), or empty
    """

    layout: Layout
    terms: Terms
    weights: dict[str, Fraction]
    owner: Owners
    fixed: npt.NDArray[np.bool_]
    banned: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, layout: Layout, weights: Mapping[str, Fraction], terms: Terms) -> Case:
        active = {name: weights[name] for name in sorted(weights) if name not in terms.draining}
        owner = owners_among(layout, active)
        fixed = np.zeros(layout.npartitions, bool)
        fixed[list(terms.pinned)] = True
        banned = np.zeros((len(active), layout.npartitions) if terms.banned else (0, 0), np.uint8)
        for name, partitions in terms.banned:
            if name in active:
                banned[list(active).index(name), list(partitions)] = 1
        if banned.size:
            owner = np.where((owner >= 0) & (banned[owner, np.arange(len(owner))] > 0), np.int32(-1), owner)
        return cls(layout, terms, active, owner, fixed, banned)

    @property
    def by_bytes(self) -> bool:
        """Whether partitions have different sizes, and a choice of where to go."""
        return self.terms.each is None and self.layout.placement != "ring"

    @property
    def shared(self) -> npt.NDArray[np.bool_]:
        """Which partitions count: all but those pinned to a node that drains."""
        return ~(self.fixed & (self.owner < 0))

    def limits(self, each: int = 1) -> list[int] | None:
        """Capacities of the nodes in partitions of one size, or in bytes; None if there are none."""
        if not self.terms.capacities or not each:
            return None
        limit, beyond = dict(self.terms.capacities), sum(self.terms.sizes or ())
        return [limit.get(name, beyond) // each for name in self.weights]


def levels(
    weights: Mapping[str, Fraction], total: int, least: Sequence[int], most: Sequence[int]
) -> list[Fraction]:
    """Each node's share by weight; one that must own more or can own less sets the others' share.

    Parameters
    ----------
    weights : mapping of str to Fraction, (nodes,)
    total : int
        To share; from the sum of `least` to that of `most`.
    least, most : sequences of int, (nodes,)

    Returns
    -------
    list of Fraction, (nodes,)
        level * weight, but no less than `least` and no more than `most`, at the one level where they add up.

    Examples
    --------
    >>> weights = dict.fromkeys("abc", Fraction(1))
    >>> [str(share) for share in levels(weights, 12, [0, 0, 0], [12, 12, 2])]
    ['5', '5', '2']
    """
    weight = list(weights.values())

    def clamped(level: Fraction) -> list[Fraction]:
        return [
            min(max(level * w, Fraction(a)), Fraction(b)) for w, a, b in zip(weight, least, most, strict=True)
        ]

    def at(level: Fraction) -> Fraction:
        return sum(clamped(level), Fraction(0))

    turns = sorted(
        {Fraction(a) / w for w, a in zip(weight, least, strict=True)}
        | {Fraction(b) / w for w, b in zip(weight, most, strict=True)}
    )
    low, high = 0, len(turns) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(turns[middle]) >= total else (middle + 1, high)
    level = turns[low]  # the first turn at or above the level
    rising = [w for w, a, b in zip(weight, least, most, strict=True) if a < level * w <= b]
    if rising:
        level -= (at(level) - total) / sum(rising)
    return clamped(level)


def bands(
    weights: Mapping[str, Fraction],
    total: int,
    least: Sequence[int],
    most: Sequence[int],
    tolerance: Fraction,
    whole: bool = True,
) -> tuple[list[Fraction], list[int], list[int]]:
    """Each node's share, and the least and most that it is to own, by weight and tolerance.

    Parameters
    ----------
    weights : mapping of str to Fraction, (nodes,)
    total : int
        To share; from the sum of `least` to that of `most`.
    least, most : sequences of int, (nodes,)
        What each node must own and can hold.
    tolerance : Fraction
    whole : bool
        Whether a node may always own its share rounded down or up.

    Notes
    -----
    A node that `least` or `most` keep out of its band owns what it must or can, and sets the share of the
    others. Only if there is then no way to share the total, all `least` and `most` set shares.

    Examples
    --------
    >>> weights, tenth = dict.fromkeys("abc", Fraction(1)), Fraction(1, 10)
    >>> bands(weights, 90, [31, 0, 0], [90, 90, 90], tenth)[1:]
    ([31, 27, 27], [33, 33, 33])
    >>> bands(weights, 90, [50, 0, 0], [90, 90, 90], tenth)[1:]
    ([50, 18, 18], [50, 22, 22])
    """
    stuck = [False] * len(weights)
    while True:
        share = levels(
            weights,
            total,
            [a if s else 0 for a, s in zip(least, stuck, strict=True)],
            [b if s else total for b, s in zip(most, stuck, strict=True)],
        )
        low = [ceil((1 - tolerance) * x) for x in share]
        high = [floor((1 + tolerance) * x) for x in share]
        if whole:
            low = [min(a, floor(x)) for a, x in zip(low, share, strict=True)]
            high = [max(b, ceil(x)) for b, x in zip(high, share, strict=True)]
        out = [
            not s and (a > h or b < w) for s, a, b, w, h in zip(stuck, least, most, low, high, strict=True)
        ]
        if any(out):
            stuck = [s or o for s, o in zip(stuck, out, strict=True)]
            continue
        # Whoever must own more than its band is not to own still more.
        high = [a if s and a == x else h for s, a, x, h in zip(stuck, least, share, high, strict=True)]
        low = [max(a, w) for a, w in zip(least, low, strict=True)]
        high = [min(b, h) for b, h in zip(most, high, strict=True)]
        if all(stuck) or sum(low) <= total <= sum(high):
            return share, low, high
        stuck = [True] * len(weights)


# Equal sizes


def fewest_moves(case: Case) -> tuple[Owners, int]:
    """The owner of each partition (-1: stays on a node that drains), and the fewest moves, for equal sizes.

    In bytes, if sizes are known.
    """
    layout, owner = case.layout, case.owner
    ring = ring_of(tuple(case.weights.items()), layout.vnodes, layout.seed)
    if layout.placement == "ring":
        owners = ring.owner_indices(layout.points)
        gone = np.flatnonzero(owners != owner).tolist()
        return owners, len(gone) if case.terms.sizes is None else sum(case.terms.sizes[p] for p in gone)
    each = 1 if case.terms.each is None else case.terms.each
    here = owner >= 0
    held = np.bincount(owner[here], minlength=len(case.weights))
    total = int(np.count_nonzero(case.shared))
    limits = case.limits(each)
    plain = not (case.terms.tolerance or case.terms.pinned or case.banned.size or limits)
    if plain:
        least = most = quota = quotas(case.weights, total, held.tolist())
    else:
        least, most = room_of(case, len(held), total, limits)
        between = bands(case.weights, total, least.tolist(), most.tolist(), case.terms.tolerance)
        quota = quotas_within(between[0], held, *between[1:], total)
    kept = np.minimum(held, quota)

    # The partitions of nodes over their quota, each node's in the order in which it gives them up.
    spare = np.flatnonzero(here & (held > quota)[owner] & ~case.fixed)
    steps = ring.steps_to(layout.points[spare], held < quota) if len(spare) else spare
    spare = spare[np.lexsort((spare, steps, owner[spare]))]
    of_node = owner[spare]
    rank = np.arange(len(spare)) - np.searchsorted(of_node, of_node)
    moving = ~here & case.shared
    moving[spare[rank < (held - quota)[of_node]]] = True

    target = owner.copy()
    target[moving] = ring.fill(layout.points[moving], quota - kept)
    if case.banned.size and case.banned[target[moving], np.flatnonzero(moving)].any():
        target = around_bans(case, target, least, most)
        return target, int(np.count_nonzero(target != owner)) * each
    return target, int(total - kept.sum()) * each


def room_of(case: Case, nnodes: int, total: int, limits: list[int] | None) -> tuple[Ints, Ints]:
    """Least that each node must own, because of pins, and the most that it can hold: in partitions."""
    least = np.bincount(case.owner[case.fixed & (case.owner >= 0)], minlength=nnodes)
    most = [min(total, limit) for limit in limits] if limits else [total] * nnodes
    if sum(most) < total:
        raise ValueError(
            f"{count(total, 'partition')} of {case.terms.each or 1:,} bytes do not fit into the capacities, "
            f"which hold {sum(most):,}: partition {int(np.flatnonzero(case.shared)[-1])} would be left over. "
            "Raise the capacities or add nodes"
        )
    return least, np.array(most)


def quotas_within(
    share: Sequence[Fraction], held: Ints, low: Sequence[int], high: Sequence[int], total: int
) -> Ints:
    """Quotas within bounds that add up to the total and let most partitions stay.

    A node within its bounds keeps what it owns. What is then too few or too many goes, one by one, to the
    node furthest below its share, or from the one furthest above.
    """
    scale = lcm(*(x.denominator for x in share))
    quota = np.clip(held, low, high)
    missing = total - int(quota.sum())
    sign = 1 if missing > 0 else -1
    bound = high if sign > 0 else low
    # Furthest first; among equals, the smaller name rises first and falls last.
    heap = [
        (-sign * (int(x * scale) - int(q) * scale), sign * i)
        for i, (x, q) in enumerate(zip(share, quota.tolist(), strict=True))
        if q != bound[i]
    ]
    heapify(heap)
    for _ in range(abs(missing)):
        far, i = heap[0]
        node = abs(i)
        quota[node] += sign
        # A node at its bound is out of the way: behind all others.
        heapreplace(heap, (far + scale if quota[node] != bound[node] else 1 << 200, i))
    return quota


# Bans, for equal sizes


class Pools(NamedTuple):
    """Partitions of equal size that are not pinned, by which nodes may have them: a pool for each such set.

    Attributes
    ----------
    may : ndarray of bool, (pools, nodes)
    own : ndarray of int64, (pools, nodes)
        How many of each pool are at home on each node.
    size : ndarray of int64, (pools,)
        How many there are in all.
    """

    may: npt.NDArray[np.bool_]
    own: Ints
    size: Ints

    def confined(self, nodes: npt.NDArray[np.bool_]) -> int:
        """How many partitions no other nodes may have."""
        return int(self.size[~self.may[:, ~nodes].any(axis=1)].sum())


class Group(NamedTuple):
    """Nodes that share so many partitions, and whether it is the fewest or the most that they can have."""

    nodes: Ints
    total: int
    fewest: bool = False
    most: bool = False


def around_bans(case: Case, start: Owners, least: Ints, most: Ints) -> Owners:
    """The placement of fewest moves that keeps bans and bounds, for equal sizes.

    Notes
    -----
    A flow of least cost from nodes through pools to nodes: first a way is found for what is banned where it
    is or too much there, then rounds of moves that save a move in sum are made until there is none (Klein,
    1967), which proves that no placement within the bounds moves fewer.
    """
    n, home = len(case.weights), case.owner
    ring = ring_of(tuple(case.weights.items()), case.layout.vnodes, case.layout.seed)
    free = np.flatnonzero(~case.fixed)
    rows = np.flatnonzero(case.banned.any(axis=1))
    barred, pool = np.unique(case.banned[np.ix_(rows, free)], axis=1, return_inverse=True)
    pool, k = pool.ravel(), barred.shape[1]
    may = np.ones((k, n), bool)
    may[:, rows] = barred.T == 0

    def counted(chosen: npt.NDArray[np.bool_], at: Owners) -> Ints:
        return np.bincount(pool[chosen] * n + at[free][chosen], minlength=k * n).reshape(k, n)

    pools = Pools(may, counted(home[free] >= 0, home), np.bincount(pool, minlength=k))
    low, high = bands_around_bans(case, pools, least, most)
    kept = counted(home[free] == start[free], home)
    came = counted(home[free] != start[free], start)
    for i, j in zip(*np.nonzero(came * ~may), strict=True):  # to any that may, and from there where it must
        came[i, np.argmax(may[i])] += came[i, j]
        came[i, j] = 0
    kept, came = cheapest(pools, kept, came, least, low, high)

    # Which of each node's, as without bans, and where to, by the ring.
    mine = np.flatnonzero(home[free] >= 0)
    steps = ring.steps_to(case.layout.points[free[mine]], came.sum(axis=0) > 0) if came.any() else mine * 0
    mine = mine[np.lexsort((mine, steps, home[free[mine]], pool[mine]))]
    key = pool[mine] * n + home[free[mine]]
    rank = np.arange(len(mine)) - np.searchsorted(key, key)
    moving = home[free] < 0
    moving[mine[rank < (pools.own - kept).ravel()[key]]] = True
    target = home.copy()
    for i in range(k):
        chosen = free[moving & (pool == i)]
        target[chosen] = ring.fill(case.layout.points[chosen], came[i])
    return target


def bands_around_bans(case: Case, pools: Pools, least: Ints, most: Ints) -> tuple[Ints, Ints]:
    """Least and most of each node, such that bans can be kept.

    Notes
    -----
    Where bands and bans exclude each other there are nodes that must own more than their bands allow,
    because too much may be nowhere else, or less, because too little may be there (Hall, 1935). These then
    own no more, or less, than they must, and share it by weight, as the others do the rest. All that depends
    on bans and pins, and on nothing of where other partitions are: a plan made again is the same.
    """
    n, weight = len(case.weights), list(case.weights.items())
    total = int(pools.size.sum() + least.sum())
    groups = [Group(np.arange(n), total)]
    free = np.zeros((2, n), bool)  # nodes that, because of capacities, no band holds from below or above
    at = np.zeros_like(pools.own)
    while True:
        low, high = np.zeros(n, np.int64), np.zeros(n, np.int64)
        for nodes, share_of, fewest, greatest in groups:
            share, below, above = bands(
                dict(weight[i] for i in nodes), share_of, least[nodes].tolist(), most[nodes].tolist(),
                case.terms.tolerance,
            )  # fmt: skip
            low[nodes] = np.maximum(below, list(map(floor, share))) if greatest else below
            high[nodes] = np.minimum(above, list(map(ceil, share))) if fewest else above
        low, high = np.where(free[0], least, low), np.where(free[1], most, high)
        if not at.any():
            at = filled(pools, least, low, high)
        at, bad, over = settled(pools.may, at, least, low, high)
        if not bad.any():
            return low, high
        parts = divided(groups, bad if over else ~bad, over, pools, (least, most), (low, high))
        if parts:
            groups = parts
        elif free[int(over)][bad].all():
            raise ValueError(
                f"found no node for some of {int((at.sum(axis=0) + least)[bad].sum()):,} partitions: bans "
                f"allow no others than {some(weight[i][0] for i in np.flatnonzero(bad))}, which have "
                f"the capacity for {int(most[bad].sum()):,}. Lift a ban, raise a capacity or add nodes"
            )
        else:
            free[int(over)] |= bad


def divided(
    groups: Sequence[Group], first: npt.NDArray[np.bool_], over: bool, pools: Pools,
    can: tuple[Ints, Ints], bounds: tuple[Ints, Ints],
) -> list[Group]:  # fmt: skip
    """The groups, that one divided whose bounds cannot be kept; none if there is no such.

    What is confined to the first of its nodes, and to the groups before, is theirs, and no more.
    """
    before, given = np.zeros(len(first), bool), 0
    for i, group in enumerate(groups):
        inside = first[group.nodes]
        a, b = group.nodes[inside], group.nodes[~inside]
        before[a] = True
        if len(a) and len(b):
            (least, most), (low, high) = can, bounds
            needed = pools.confined(before) + int(least[before].sum()) - given
            if needed > high[a].sum() if over else group.total - needed < low[b].sum():
                needed = max(needed, int(least[a].sum()), group.total - int(most[b].sum()))
                needed = min(needed, int(most[a].sum()), group.total - int(least[b].sum()))
                pair = (
                    Group(a, needed, group.fewest or over, group.most),
                    Group(b, group.total - needed, group.fewest, group.most or not over),
                )
                return [*groups[:i], *pair, *groups[i + 1 :]]
        before[b] = True
        given += group.total
    return []


def filled(pools: Pools, least: Ints, low: Ints, high: Ints) -> Ints:
    """How many of each pool on each node: a start, within bounds as far as that is easy."""
    at, load = np.zeros_like(pools.own), least.copy()
    left = pools.size.copy()
    for bound in (low, high):
        for i in np.argsort(pools.may.sum(axis=1), kind="stable").tolist():
            room = np.where(pools.may[i], np.maximum(bound - load, 0), 0)
            take = np.diff(np.minimum(np.cumsum(room), left[i]), prepend=0)
            at[i] += take
            load += take
            left[i] -= take.sum()
    np.add.at(at, (np.arange(len(left)), pools.may.argmax(axis=1)), left)
    return at


def settled(
    may: npt.NDArray[np.bool_], at: Ints, least: Ints, low: Ints, high: Ints
) -> tuple[Ints, npt.NDArray[np.bool_], bool]:
    """The numbers within bounds; where that cannot be, the nodes that own too much (True), or too little."""
    at = at.copy()
    while True:
        load = at.sum(axis=0) + least
        over = bool((load > high).any())
        if over:
            path, seen = way(at > 0, may, load > high, load < high)
            amount = min(load[path[0]] - high[path[0]], high[path[-1]] - load[path[-1]]) if path else 0
        elif (load < low).any():
            path, seen = way(may, at > 0, load < low, load > low)
            path = path[::-1]
            amount = min(load[path[0]] - low[path[0]], low[path[-1]] - load[path[-1]]) if path else 0
        else:
            return at, np.zeros(len(load), bool), False
        if not path:
            return at, seen, over
        hops = [path[i : i + 3] for i in range(0, len(path) - 1, 2)]
        amount = min(amount, *(at[pool, a] for a, pool, _ in hops))
        for a, pool, b in hops:
            at[pool, a] -= amount
            at[pool, b] += amount


def way(
    out: npt.NDArray[np.bool_],
    into: npt.NDArray[np.bool_],
    starts: npt.NDArray[np.bool_],
    ends: npt.NDArray[np.bool_],
) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """The shortest way from a start to an end, nodes and pools in turn; empty if none. And nodes reached.

    From a node into a pool where `out` (pools, nodes), from a pool to a node where `into`.
    """
    node_from, pool_from = np.where(starts, -1, -2), np.full(len(out), -1)
    nodes = np.flatnonzero(starts)
    while len(nodes):
        if ends[nodes].any():
            path = [int(nodes[ends[nodes].argmax()])]
            while node_from[path[-1]] >= 0:
                pool = int(node_from[path[-1]])
                path += [pool, int(pool_from[pool])]
            return path[::-1], node_from > -2
        step = out[:, nodes] & (pool_from < 0)[:, None]
        pools = np.flatnonzero(step.any(axis=1))
        pool_from[pools] = nodes[step[pools].argmax(axis=1)]
        step = into[pools] & (node_from == -2)
        nodes = np.flatnonzero(step.any(axis=0))
        if len(nodes):
            node_from[nodes] = pools[step[:, nodes].argmax(axis=0)]
    return [], node_from > -2


def cheapest(pools: Pools, kept: Ints, came: Ints, least: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """How many of each pool stay on each node, and come to it: within bounds, with as many that stay as can.

    Bounds must be such that they can be kept.
    """
    at = settled(pools.may, kept + came, least, low, high)[0]
    kept = np.minimum(at, pools.own)
    came = at - kept
    n, k = len(low), len(pools.size)
    while True:
        load = at.sum(axis=0) + least
        # Vertices: nodes, pools, and one for all that can own one more or one less.
        give = np.where(came > 0, 0, np.where(kept > 0, 1, FAR))
        take = np.where(kept < pools.own, -1, np.where(pools.may, 0, FAR))
        cycle = negative_cycle(give, take, load < high, load > low)
        if not cycle:
            return kept, came
        steps = list(pairwise(cycle))
        amount = FAR
        for a, b in steps:
            if a < n <= b < n + k:
                amount = min(amount, int(came[b - n, a] or kept[b - n, a]))
            elif b < n <= a < n + k:
                amount = min(amount, int((pools.own - kept)[a - n, b]) or FAR)
            else:
                amount = min(amount, int(high[a] - load[a] if a < n else load[b] - low[b]))
        for a, b in steps:
            if a < n <= b < n + k:
                (came if came[b - n, a] else kept)[b - n, a] -= amount
        for a, b in steps:
            if b < n <= a < n + k:
                back = min(amount, int((pools.own - kept)[a - n, b]))
                (kept if back == amount else came)[a - n, b] += amount
        at = kept + came


FAR = 1 << 40  # the cost of what cannot be


def negative_cycle(
    give: Ints, take: Ints, more: npt.NDArray[np.bool_], less: npt.NDArray[np.bool_]
) -> list[int]:
    """A cycle of vertices whose costs add up to less than 0, its first again at its end; empty if none.

    Vertices are nodes, then pools, then one for all. Costs are from nodes to pools, `give`, and back, `take`;
    0 from nodes with `more` to the last vertex, and from there to nodes with `less`. Bellman and Ford, all
    vertices being starts.
    """
    k, n = give.shape
    far = np.zeros(n + k + 1, np.int64)
    came = np.full(n + k + 2, n + k + 1)  # the last stands for none
    to_last, from_last = np.where(more, 0, FAR), np.where(less, 0, FAR)
    while True:
        nodes, pools, last = far[:n], far[n : n + k], far[-1]
        into_pools = nodes + give
        into_nodes = np.vstack([pools[:, None] + take, (last + from_last)[None]])
        into_last = nodes + to_last
        best = np.concatenate(
            [into_nodes.argmin(axis=0) + n, into_pools.argmin(axis=1), [into_last.argmin()]]
        )
        through = np.concatenate([into_nodes.min(axis=0), into_pools.min(axis=1), [into_last.min()]])
        shorter = through < far
        if not shorter.any():
            return []
        far = np.where(shorter, through, far)
        came[:-1] = np.where(shorter, best, came[:-1])
        # Whoever has no end of ancestors has a cycle among them.
        old = came
        for _ in range((n + k + 1).bit_length()):
            old = old[old]
        if (old[:-1] != n + k + 1).any():
            vertex = int(old[old != n + k + 1][0])
            cycle = [vertex, int(came[vertex])]
            while cycle[-1] != vertex:
                cycle.append(int(came[cycle[-1]]))
            return cycle[::-1]


# Unequal sizes


def problem_of(case: Case) -> tuple[Problem, list[Fraction], Ints]:
    """The problem of the partitions that count, the shares of the nodes, and the most bytes each can hold."""
    sizes = np.array(case.terms.sizes, dtype=np.int64)[case.shared]
    home, fixed = case.owner[case.shared], case.fixed[case.shared]
    total = int(sizes.sum())
    least = np.zeros(len(case.weights), np.int64)
    np.add.at(least, home[fixed], sizes[fixed])
    banned = np.ascontiguousarray(case.banned[:, case.shared]) if case.banned.size else case.banned
    if banned.size:  # what only one node may have is as good as pinned to it
        alone = ~fixed & (banned.sum(axis=0, dtype=np.int64) == len(least) - 1)
        np.add.at(least, banned[:, alone].argmin(axis=0), sizes[alone])
    most = [min(total, limit) for limit in case.limits() or [total] * len(least)]
    share, *bounds = bands(case.weights, total, least.tolist(), most, case.terms.tolerance, whole=False)
    low, high = (np.array(bound, dtype=np.int64) for bound in bounds)
    ring = ring_of(tuple(case.weights.items()), case.layout.vnodes, case.layout.seed)
    liked = ring.owner_indices(case.layout.points)[case.shared]
    return Problem(sizes, home, fixed, low, high, banned, liked), share, np.array(most, dtype=np.int64)


def fewest_bytes(case: Case) -> tuple[Owners, int]:
    """As `fewest_moves`, and a bound on the bytes, for partitions of any size."""
    problem, share, most = problem_of(case)
    target = case.owner.copy()
    if possible(problem):
        placed, bound = solve(problem)
        if not placed.outside:
            target[case.shared] = placed.at
            return target, bound
    placed, bound = lowest(problem, share, most)
    load = problem.load(problem.home)
    if (problem.home >= 0).all() and (load <= most).all() and not placed.outside:
        # Not worth a move: it would be so again and again.
        now, best = peak(load, share), peak(problem.load(placed.at), share)
        if now * GAIN < max(best, Fraction(1)) * (GAIN + 1):
            return target, 0
    if placed.outside:
        load = problem.load(placed.at)
        node = int(np.argmax(load - most))
        inside = np.flatnonzero(case.shared)[(placed.at == node) & ~problem.fixed]
        raise ValueError(
            f"found no placement within the capacities: partition {int(inside[0])} on node "
            f"{list(case.weights)[node]!r} would be {int(load[node] - most[node]):,} bytes too much. "
            "Raise a capacity or add nodes"
        )
    target[case.shared] = placed.at
    return target, bound


def within(case: Case, target: Owners) -> bool:
    """Whether a placement by bytes has all nodes within their bands."""
    problem = problem_of(case)[0]
    load = problem.load(target[case.shared])
    return bool((load >= problem.low).all() and (load <= problem.high).all())


def bytes_bound(case: Case, target: Owners) -> int:
    """The bound on the bytes of a plan to this placement, as `fewest_bytes` gives it."""
    problem, share, _ = problem_of(case)
    at = target[case.shared]
    if not within(case, target):
        load = problem.load(at)
        problem = no_higher(problem, share, peak(load, share), load + 2**53)
    return least_bytes(problem, int(problem.size[at != problem.home].sum()))


def possible(problem: Problem) -> bool:
    """Whether bounds can be met, as far as is plain to see."""
    load = np.zeros(len(problem.low), np.int64)
    np.add.at(load, problem.home[problem.fixed], problem.size[problem.fixed])
    free = ~problem.fixed
    fits = not free.any() or int(problem.size[free].max()) <= int((problem.high - load).max())
    enough = int(np.count_nonzero(problem.size[free])) >= int(np.count_nonzero(load < problem.low))
    return fits and enough and bool((problem.low <= problem.high).all())


def peak(load: Ints, share: Sequence[Fraction]) -> Fraction:
    """Largest load in shares."""
    return max(
        (Fraction(held) / x for held, x in zip(load.tolist(), share, strict=True) if x), default=Fraction(1)
    )


def no_higher(problem: Problem, share: Sequence[Fraction], level: Fraction, most: Ints) -> Problem:
    """The problem in which no node may own more than `level` shares, or its capacity; any may own less."""
    high = [min(floor(level * x), b) for x, b in zip(share, most.tolist(), strict=True)]
    return problem._replace(low=np.zeros_like(problem.low), high=np.array(high, dtype=np.int64))


def lowest(problem: Problem, share: Sequence[Fraction], most: Ints) -> tuple[Placed, int]:
    """A placement whose largest load, in shares, is as low as was found, and of these one of few bytes.

    Notes
    -----
    No load is lower than 1 share, nor than the largest partition on the node of the largest share. From
    there, a bisection searches for the lowest level that can be met from where the partitions are. Placing
    them anew, largest first and each on the node that it fills least (Graham, 1969), may get lower; as it
    moves nearly all, that counts only if it is by a 200th or more, or can be met with fewer bytes as well.
    """
    free = ~problem.fixed
    low = Fraction(1)
    if free.any():
        low = max(low, Fraction(int(problem.size[free].max())) / max(share))

    def at_level(level: Fraction, turn: int = 0) -> tuple[Fraction, Placed]:
        """What a search for this level finds, and the level that it is at; beyond all where one is over."""
        goal = no_higher(problem, share, level, most)
        tries = attempts(problem) if len(attempts(problem)) > 3 else (turn,)
        found = place(goal, any_will_do=True, attempt=tries[0])
        for attempt in tries[1:]:
            if found.outside:
                found = min(found, place(goal, any_will_do=True, attempt=attempt), key=Placed.rank)
        load = problem.load(found.at)
        return (beyond if (load > most).any() else max(peak(load, share), Fraction(1))), found

    beyond = Fraction(2**60)
    high, best = at_level(low)
    lost = low  # the highest level at which none was found
    for turn in range(1, 6 if len(problem.size) > SMALL else 15):
        if lost >= high or high == beyond:
            break
        level = Fraction(round((lost + high) / 2 * 2**40), 2**40)
        found, placed = at_level(level, turn)
        if found < high:
            high, best = found, placed
        if placed.outside:
            lost = level
    anew = afresh(problem, share, most)
    load = problem.load(anew)
    fresh = beyond if (load > most).any() else max(peak(load, share), Fraction(1))
    if fresh < high:
        found, placed = at_level(fresh)
        if placed.outside and fresh * 200 < high * 199:
            found, placed = fresh, Placed(anew, 0, 0)
        if found < high:
            high, best = found, placed
    if high == beyond:
        return best, 0
    return solve(no_higher(problem, share, high, most), best.at)


def afresh(problem: Problem, share: Sequence[Fraction], most: Ints) -> Owners:
    """The pinned at home, all others where their node is then least full, largest first."""
    unit = np.array([float(x) for x in share])
    at = np.where(problem.fixed, problem.home, np.int32(-1))
    load = problem.load(at)
    free = np.flatnonzero(~problem.fixed)
    for p in free[np.argsort(-problem.size[free], kind="stable")].tolist():
        new = load + problem.size[p]
        fill = np.where((unit > 0) & (new <= most), new / np.maximum(unit, 1), np.inf)
        if problem.banned.size:
            fill[problem.banned[:, p] > 0] = np.inf
            if np.isinf(fill).all():
                fill[problem.banned[:, p] == 0] = 0
        node = at[p] = np.argmin(fill)
        load[node] += problem.size[p]
    return at
