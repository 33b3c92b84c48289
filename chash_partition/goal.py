"""Where partitions are to go: what is asked of a plan, and the placement that does it with the fewest moves.

Partitions of equal size have quotas and go where the ring says; fewest moves are then a matter of counting.
For unequal sizes, `solve` finds a placement and proves how good it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import pairwise
from math import ceil, floor, lcm
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chash_partition.layout import Layout, count, quotas, ring_of
from chash_partition.ring import each_node, integer, known_node, node_name
from chash_partition.solve import SMALL, Ints, Placed, Problem, attempts, least_bytes, place, solve

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Terms", "fewest_bytes", "fewest_moves", "levels", "owners_among", "read_sizes"]

MAX_BYTES = 2**53
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
        """The terms, checked against the layout and the nodes there will be."""
        names = {**layout.weights, **weights}
        last = layout.npartitions - 1
        terms = cls(
            None if sizes is None else read_sizes(sizes, range(layout.npartitions), layout.npartitions),
            read_tolerance(tolerance),
            tuple(sorted({integer("pinned partition", p, 0, last) for p in pinned})),
            tuple(sorted({known_node(name, weights) for name in each_node(draining)})),
            tuple(
                sorted(
                    (
                        known_node(name, names),
                        tuple(sorted({integer("banned partition", p, 0, last) for p in partitions})),
                    )
                    for name, partitions in (banned or {}).items()
                )
            ),
            tuple(
                sorted(
                    (known_node(name, names), integer(f"capacity of node {node_name(name)!r}", limit, 0))
                    for name, limit in (capacities or {}).items()
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
    lookup: Any = sizes.to_dict() if hasattr(sizes, "to_dict") else sizes
    if not isinstance(lookup, Mapping):
        if len(lookup) != npartitions:
            raise ValueError(f"needs a size for each of {npartitions} partitions, got {len(lookup)}")
        lookup = lookup.tolist() if isinstance(lookup, np.ndarray) else lookup
    read = []
    for p in partitions:
        if isinstance(lookup, Mapping) and p not in lookup:
            raise ValueError(f"partition {p} has no size")
        size = lookup[p]
        if isinstance(size, (float, np.floating)) and size.is_integer():  # as a Series with a gap holds them
            size = int(size)
        read.append(integer(f"size of partition {p}", size, 0))
    return tuple(read)


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
        low = most = high = quota = quotas(case.weights, total, held.tolist())
    else:
        low, high, most, quota = bands(case, held, total, limits)
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
        target = around_bans(case, target, low, high, most)
        return target, int(np.count_nonzero(target != owner)) * each
    return target, int(total - kept.sum()) * each


def bands(case: Case, held: Ints, total: int, limits: list[int] | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Least and most of each node within tolerance, the most that it can hold, its quota: in partitions."""
    least = np.bincount(case.owner[case.fixed & (case.owner >= 0)], minlength=len(held)).tolist()
    most = [min(total, limit) for limit in limits] if limits else [total] * len(held)
    if sum(most) < total:
        raise ValueError(
            f"{count(total, 'partition')} of {case.terms.each or 1:,} bytes do not fit into the capacities, "
            f"which hold {sum(most):,}: partition {int(np.flatnonzero(case.shared)[-1])} would be left over. "
            "Raise the capacities or add nodes"
        )
    share, t = levels(case.weights, total, least, most), case.terms.tolerance
    low = [max(a, min(floor(x), ceil((1 - t) * x))) for x, a in zip(share, least, strict=True)]
    high = [min(b, max(ceil(x), floor((1 + t) * x))) for x, b in zip(share, most, strict=True)]
    return np.array(low), np.array(high), np.array(most), quotas_within(share, held, low, high, total)


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


def around_bans(case: Case, start: Owners, low: Ints, high: Ints, most: Ints) -> Owners:
    """The placement of fewest moves that keeps bans and bounds, for equal sizes.

    Notes
    -----
    A flow of least cost over the nodes: first a way is found for what is banned where it is or too much
    there, then rounds of moves that save a move in sum are made until there is none (Klein, 1967), which
    proves that no placement within the bounds moves fewer. Where bounds and bans exclude each other, the most
    that a node may own is raised one by one.
    """
    n = len(case.weights)
    at, home = start.copy(), case.owner
    free = np.flatnonzero(~case.fixed)
    pattern = np.unique(case.banned[:, free], axis=1, return_inverse=True)[1].ravel()
    low, high = low.copy(), high.copy()
    load = np.bincount(at[at >= 0], minlength=n)
    for p in free[case.banned[at[free], free] > 0].tolist():
        may = np.flatnonzero(case.banned[:, p] == 0)
        node = may[np.argmin((load - high)[may])]
        load[at[p]] -= 1
        load[node] += 1
        at[p] = node

    def edges() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Least cost of moving one partition from node to node, and that partition."""
        cost, which = np.full((n, n), np.inf), np.full((n, n), -1)
        alike = np.unique(np.stack([at[free], home[free], pattern]), axis=1, return_index=True)[1]
        for p in free[np.sort(alike)].tolist():
            a, own = at[p], home[p]
            to = np.full(n, 1.0 if own == a else 0.0)
            if own >= 0 and own != a:
                to[own] = -1.0
            to[case.banned[:, p] > 0] = np.inf
            to[a] = np.inf
            better = to < cost[a]
            cost[a][better], which[a][better] = to[better], p
        return cost, which

    def shift(path: list[int], which: npt.NDArray[np.int64]) -> None:
        for a, b in pairwise(path):
            if a < n and b < n:
                at[which[a, b]] = b
                load[a] -= 1
                load[b] += 1

    def way(
        starts: npt.NDArray[np.bool_], ends: npt.NDArray[np.bool_], which: npt.NDArray[np.int64]
    ) -> list[int]:
        """The shortest way over nodes, empty if there is none."""
        came = {int(a): -1 for a in np.flatnonzero(starts)}
        queue = list(came)
        for a in queue:
            if ends[a]:
                path = [a]
                while came[path[-1]] >= 0:
                    path.append(came[path[-1]])
                return path[::-1]
            for b in np.flatnonzero(which[a] >= 0).tolist():
                if b not in came:
                    came[b] = a
                    queue.append(b)
        return []

    while (load > high).any():
        which = edges()[1]
        if path := way(load > high, load < high, which):
            shift(path, which)
        elif (high < most).any():
            high = np.minimum(high + 1, most)
        else:
            node = int(np.argmax(load - most))
            raise ValueError(
                f"found no node for partition {int(free[at[free] == node][0])}: bans and capacities leave no "
                "room. Lift a ban, raise a capacity or add nodes"
            )
    while (load < low).any():
        which = edges()[1]
        if path := way(load > low, load < low, which):
            shift(path, which)
        else:
            low = np.minimum(low, load)
    while True:
        cost, which = edges()
        # Node n stands for all that can own one more or one less.
        whole = np.full((n + 1, n + 1), np.inf)
        whole[:n, :n] = cost
        whole[:n, n][load < high] = 0
        whole[n, :n][load > low] = 0
        cycle = negative_cycle(whole)
        if not cycle:
            return at
        shift(cycle, which)


def negative_cycle(cost: npt.NDArray[np.float64]) -> list[int]:
    """A cycle of nodes whose costs add up to less than 0, its first node again at its end; empty if none.

    Bellman and Ford, all nodes being starts.
    """
    n = len(cost)
    distance, came = np.zeros(n), np.full(n, -1)
    for _ in range(n + 1):
        through = distance[:, None] + cost
        best = through.argmin(axis=0)
        reached = through[best, np.arange(n)]
        shorter = reached < distance
        if not shorter.any():
            return []
        distance = np.where(shorter, reached, distance)
        came = np.where(shorter, best, came)
    node = int(np.flatnonzero(shorter)[0])
    for _ in range(n):
        node = int(came[node])
    cycle = [node]
    while len(cycle) == 1 or cycle[-1] != node:
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
    most = [min(total, limit) for limit in case.limits() or [total] * len(least)]
    share = levels(case.weights, total, least.tolist(), most)
    t = case.terms.tolerance
    low = np.array([ceil((1 - t) * x) for x in share], dtype=np.int64)
    high = np.array([min(b, floor((1 + t) * x)) for x, b in zip(share, most, strict=True)], dtype=np.int64)
    banned = np.ascontiguousarray(case.banned[:, case.shared]) if case.banned.size else case.banned
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


def bytes_bound(case: Case, target: Owners) -> int:
    """The bound on the bytes of a plan to this placement, as `fewest_bytes` gives it."""
    problem, share, _ = problem_of(case)
    at = target[case.shared]
    load = problem.load(at)
    if (load < problem.low).any() or (load > problem.high).any():
        problem = no_higher(problem, share, peak(load, share), problem.load(at) + 2**53)
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
