"""Plans: the fewest partitions that can move when nodes change, and why no fewer can.

Every node is to own its weight's share of the partitions, rounded down or up: its quota. A node can keep no
more than its quota, so it must give up what it owns beyond, and nobody can do with fewer moves than the sum
of that. A plan makes exactly these moves. Which partitions go, and where to, follows the ring of the new
nodes, so there is one plan only, whoever computes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chash_partition import report
from chash_partition.goal import (
    NOTE,
    Case,
    Terms,
    bytes_bound,
    fewest_bytes,
    fewest_moves,
    note_of,
    owners_among,
    read_sizes,
    within,
)
from chash_partition.layout import FORMAT, Layout, count, identity, read_object
from chash_partition.ring import integer, known_node, node_weights
from chash_partition.waves import Estimate, by_relief, estimate, in_waves, waves_within

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Move", "RebalancePlan", "plan_rebalance"]


NO_TERMS = Terms()


class Move(NamedTuple):
    """One partition goes from the node that owns it to another.

    Attributes
    ----------
    partition : int
    source, target : str
        Names of nodes.
    nbytes : int
        Its size; 0 if unknown.

    Examples
    --------
    >>> Move(5, "w1", "w4").target
    'w4'
    """

    partition: int
    source: str
    target: str
    nbytes: int = 0


class Load(NamedTuple):
    """What a node owns before and after a plan, and its share: bytes, or partitions if sizes are unknown."""

    before: int
    after: int
    share: Fraction


def plan_rebalance(
    layout: Layout,
    nodes: Iterable[str | int] | Mapping[Any, Any],
    *,
    sizes: Sequence[int] | Mapping[int, int] | pd.Series[Any] | None = None,
    tolerance: float | Fraction = 0.0,
    max_moves: int | None = None,
    max_bytes: int | None = None,
    pinned: Iterable[int] = (),
    draining: Iterable[str | int] = (),
    banned: Mapping[Any, Iterable[int]] | None = None,
    capacities: Mapping[Any, int] | None = None,
) -> RebalancePlan:
    """The plan with the fewest moves from a layout to a balanced one on these nodes.

    Parameters
    ----------
    layout : Layout
        As it is now, balanced or not.
    nodes : iterable of names, or mapping {name: weight}
        All nodes there will be, in any order. Without weights, a node keeps the weight it has in the layout,
        and a new one gets 1.
    sizes : sequence of int, (npartitions,), or Series or mapping by partition, optional
        Bytes, or rows: then bytes count and not partitions. Give a tolerance with them, as 0.05: without one
        it is 0, which sizes that differ can hardly ever meet, and the plan is slow and moves more.
    tolerance : float
        How far a node may be above or below its share: 0.05 is 5 %. Nodes within are left alone. Of equal
        sizes, a node may always own its share rounded down or up.
    max_moves, max_bytes : int, optional
        Budgets: as many of the plan's moves as they allow, so ordered that imbalance falls fastest. The same
        call on `after` goes on with the rest of the same plan.
    pinned : iterable of int
        Partitions that stay where they are.
    draining : iterable of names
        Nodes, of `nodes`, that take nothing and lose all that is not pinned. They stay known.
    banned : mapping {name: partitions}, optional
        Partitions that a node may not have. It may have left, by a plan on these terms.
    capacities : mapping {name: bytes}, optional
        The most that a node can hold, in the end and on the way. Needs sizes.

    Returns
    -------
    RebalancePlan
        Equal for equal arguments, in every process.

    Raises
    ------
    ValueError
        As `Layout.create`, for nodes; for a partition that has no place, named; for terms that exclude each
        other; for a move that is larger than `max_bytes`.

    Notes
    -----
    For partitions of equal size and placement "bounded":

    1. Quotas: each node's weight's share of the partitions, rounded down. What remains is given, one for
       each, to nodes that own more than that first, then by largest remainder, then by smaller name. With a
       tolerance, a node within it keeps what it owns, as far as the total allows. A node that pins, bans or
       capacity keep out of its band sets the share of the others.
    2. A node that owns more than its quota gives up those partitions with the fewest tokens, on the ring of
       the new nodes, between their point and the first token of a node that owns less than its quota; of
       equal ones, the lower index. All partitions of nodes that leave are given up.
    3. What was given up is placed in index order, each at the first node with room clockwise from its point.
       Where bans forbid that, a flow of least cost finds the fewest moves.

    For partitions of unequal size (`solve.place`, `solve.least_bytes`): a search for the placement that moves
    the fewest bytes such that every node is within tolerance, and a bound that is proved. Where none is found
    within tolerance, the largest load, in shares, is made as low as is found first and bytes are saved
    second; the plan says so when printed. A layout within a 200th of that is left as it is.

    A layout with placement "ring" has no quotas: each partition goes to the owner of its point on the ring of
    the new nodes, and exactly those whose owner is then another must move.

    Time is O(P log P + T log T) for P partitions of equal size and T tokens. For unequal sizes the steps are
    limited: a second or two for up to 100,000 partitions, more where no placement within the tolerance is
    found.

    Examples
    --------
    >>> layout = Layout.create("user_id", 64, ["w0", "w1", "w2", "w3"])
    >>> plan = plan_rebalance(layout, ["w0", "w1", "w2", "w3", "w4"])
    >>> plan
    RebalancePlan(12 of 64 partitions move, 4 -> 5 nodes, version 0 -> 1)
    >>> len(plan.moves) == plan.lower_bound
    True
    >>> plan.moves[0]
    Move(partition=5, source='w1', target='w4', nbytes=0)

    By bytes, and five at a time:

    >>> sizes = [100 + p for p in range(64)]
    >>> plan = plan_rebalance(layout, ["w0", "w1", "w2"], sizes=sizes, tolerance=0.05, max_moves=5)
    >>> len(plan.moves), len(plan.rest)
    (5, 11)
    """
    if not isinstance(layout, Layout):
        raise ValueError(f"layout must be a Layout, got {type(layout).__name__}: see Layout.create")
    weights = node_weights(nodes, layout.weights)
    terms = Terms.read(
        layout, weights, sizes=sizes, tolerance=tolerance, pinned=pinned, draining=draining, banned=banned,
        capacities=capacities,
    )  # fmt: skip
    budgets = read_budgets(max_moves, max_bytes, terms)
    case = Case.of(layout, weights, terms)
    begun = rest_of_plan(case, weights)
    if case.by_bytes:
        target, bound = fewest_bytes(case) if begun is None else (begun, bytes_bound(case, begun))
    else:
        target, bound = fewest_moves(case)
        target = target if begun is None else begun
    # From indices into the nodes that take partitions; -1 is what stays on one that does not.
    number = {name: i for i, name in enumerate(weights)}
    to_all = np.array([number[name] for name in case.weights], dtype=np.int32)
    owners = np.where(target < 0, owners_among(layout, weights), to_all[target])
    after = replace(layout, version=layout.version + 1, weights=weights, assignment=owners)
    done = case.by_bytes and not within(case, target)
    after = replace(
        after, extra=extra_with(layout, note_for(after, terms) if done or terms.naming(weights) else None)
    )
    moves = moves_between(layout, after)
    if terms.sizes is not None:
        moves = tuple(move._replace(nbytes=terms.sizes[move.partition]) for move in moves)
    return within_budget(RebalancePlan(layout, after, moves, bound, terms), *budgets)


@dataclass(frozen=True, repr=False)
class RebalancePlan:
    """The moves that turn one layout into the next. An immutable value; `print` explains it.

    Attributes
    ----------
    before, after : Layout
        Of one id; the version of `after` is one more.
    moves : tuple of Move
        In partition order.
    lower_bound : int
        How few moves can reach balance on the new nodes: the number of partitions less the most that can
        stay, which is the sum over the nodes of the smaller of what each owns and its quota. With placement
        "ring", the number of partitions whose point has another owner on the ring of the new nodes. If the
        plan was made with sizes, bytes in place of partitions: as few as is proved, see `gap`.
    terms : Terms
        What was asked of the plan besides nodes: sizes, tolerance, pinned, draining, banned, capacities.
    rest : tuple of Move
        The moves of the whole plan that this part of it leaves for later; empty if it is the whole.
    leaving : tuple of str
        Nodes that are to leave with the rest.

    Examples
    --------
    >>> layout = Layout.create("user_id", 8, ["w0", "w1"])
    >>> print(plan_rebalance(layout, ["w0", "w1", "w2"]))
    2 of 8 partitions move; 2 -> 3 nodes; version 0 -> 1.
    Imbalance (the most that a node owns of its share): 1.5 -> 1.12.
    <BLANKLINE>
    from  to  partitions
    w0    w2           1
    w1    w2           1
    <BLANKLINE>
    node    weight  share  owned  stay  come  owns
    w0           1   2.67      4     3     0     3
    w1           1   2.67      4     3     0     3
    w2     joins 1   2.67      0     0     2     2
    total            8.00      8     6     2     8
    <BLANKLINE>
    ...
    """

    before: Layout
    after: Layout
    moves: tuple[Move, ...]
    lower_bound: int
    terms: Terms = NO_TERMS
    rest: tuple[Move, ...] = ()
    leaving: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that move, as far as known."""
        return sum(move.nbytes for move in self.moves)

    @property
    def cost(self) -> int:
        """What `lower_bound` bounds: partitions, or bytes if made with sizes, of the whole plan."""
        moving = chain(self.moves, self.rest)
        if self.terms.sizes is None:
            return len(self.moves) + len(self.rest)
        return sum(self.terms.sizes[move.partition] for move in moving)

    @property
    def gap(self) -> float:
        """How far the whole plan's cost is above `lower_bound`, as a share of it: 0.0 is proved optimal."""
        if self.cost == self.lower_bound:
            return 0.0
        return self.cost / self.lower_bound - 1 if self.lower_bound else inf

    @cached_property
    def loads(self) -> dict[str, Load]:
        """For each node before or after: what it owns before, what after, and its share.

        In bytes if the plan was made with sizes, else in partitions. A node that leaves or drains has a share
        of 0, and partitions pinned to one that drains are in no share.
        """
        names = sorted({*self.before.nodes, *self.after.nodes})
        held = [self._held(layout, names) for layout in (self.before, self.after)]
        weights = self.active
        size = self.terms.counted or (1,) * self.before.npartitions
        stuck = sum(size[p] for p in self.terms.pinned if self.before.owner_of(p) not in weights)
        unit = (sum(size) - stuck) / sum(weights.values(), Fraction(0))
        return {
            name: Load(old, new, unit * weights.get(name, 0))
            for name, old, new in zip(names, *held, strict=True)
        }

    @property
    def active(self) -> dict[str, Fraction]:
        """Weights of the nodes that take partitions."""
        return {
            name: weight
            for name, weight in self.after.weights.items()
            if name not in self.terms.draining and name not in self.leaving
        }

    def _held(self, layout: Layout, names: Sequence[str]) -> list[int]:
        owner = owners_among(layout, names)
        if self.terms.counted is None:
            return list(map(int, np.bincount(owner, minlength=len(names))))
        held = [0] * len(names)
        for node, size in zip(owner.tolist(), self.terms.counted, strict=True):
            held[node] += size
        return held

    @cached_property
    def imbalance_before(self) -> float:
        """Largest ratio of what a node owns to its share, before the moves.

        In bytes if the plan was made with sizes, else in partitions. Shares are those of the new nodes, by
        weight, before as after the moves, so the two can be compared: 1.0 is perfect, and 1.25 says that some
        node owns a quarter too much. A node that is to leave has no share, so owning anything makes it inf;
        but what is pinned to a node that drains is not counted.
        """
        return self._imbalance(0)

    @cached_property
    def imbalance_after(self) -> float:
        """As `imbalance_before`, after the moves."""
        return self._imbalance(1)

    def _imbalance(self, when: int) -> float:
        size = self.terms.counted or (1,) * self.before.npartitions
        pins = Counter[str]()
        for p in self.terms.pinned:
            pins[self.before.owner_of(p)] += size[p]
        ratios = []
        for name, load in self.loads.items():
            if load.share:
                ratios.append(as_float(load[when] / load.share))
            elif load[when] > pins[name]:
                ratios.append(inf)
        return max(ratios, default=1.0)

    # In which order

    def waves(self, concurrency: int = 1) -> tuple[tuple[Move, ...], ...]:
        """The moves in the fewest waves in which no node sends or receives more than so many at once.

        Parameters
        ----------
        concurrency : int
            How many partitions a node sends at once at most, and also receives; 1 by default, as for
            `estimate`.

        Returns
        -------
        tuple of tuples of Move
            As many waves as the largest number of partitions that any node sends or receives, divided by
            `concurrency` and rounded up; where capacities allow no such order, more. Then a partition may go
            in two hops, to make way for another.

        Raises
        ------
        ValueError
            If moves block each other because of capacities, naming them.

        Notes
        -----
        Colours of the edges of a bipartite multigraph: König, 1916.

        Examples
        --------
        >>> plan = plan_rebalance(Layout.create("user_id", 64, ["w0", "w1", "w2", "w3"]), ["w0", "w1", "w2"])
        >>> [len(wave) for wave in plan.waves(2)]  # w3 sends 16
        [2, 2, 2, 2, 2, 2, 2, 2]
        """
        concurrency = integer("concurrency", concurrency, 1)
        if not self.terms.capacities:
            return in_waves(self.moves, concurrency)
        load = {name: load.before for name, load in self.loads.items()}
        # A partition may make way to a node that takes partitions, and this one.
        barred: dict[str, Collection[int]] = {name: set(banned) for name, banned in self.terms.banned}
        for name in load.keys() - self.active.keys():
            barred[name] = range(self.before.npartitions)
        return waves_within(self.moves, concurrency, load, dict(self.terms.capacities), barred)

    def estimate(self, bandwidth: float, concurrency: int = 1) -> Estimate:
        """How long the moves take, wave after wave, and what no order could beat.

        Parameters
        ----------
        bandwidth : float
            Bytes a second that a node can send, and at the same time receive.
        concurrency : int
            As for `waves`.

        Returns
        -------
        Estimate
            seconds, lower_bound. A wave ends when its last partition is there.

        Raises
        ------
        ValueError
            If sizes are not known; as `waves`.

        Examples
        --------
        >>> plan = plan_rebalance(Layout.create("user_id", 64, ["w0", "w1", "w2", "w3"]), ["w0", "w1", "w2"])
        >>> plan.with_sizes([2**20] * 64).estimate(bandwidth=2**20)
        Estimate(seconds=16.0, lower_bound=16.0)
        """
        if isinstance(bandwidth, bool) or not isinstance(bandwidth, Real) or not 0 < bandwidth < inf:
            raise ValueError(f"bandwidth must be a number of bytes a second above 0, got {bandwidth!r}")
        if self.moves and not self.nbytes and self.terms.sizes is None:
            raise ValueError("the sizes of the partitions are not known: use plan.with_sizes(sizes)")
        return estimate(self.waves(concurrency), self.moves, float(bandwidth))

    # Other plans from this one

    def with_sizes(self, sizes: Sequence[int] | Mapping[int, int] | pd.Series[Any]) -> RebalancePlan:
        """The same plan, with the bytes of each move.

        Parameters
        ----------
        sizes : sequence of int, (npartitions,), or Series or mapping indexed by partition

        Raises
        ------
        ValueError
            If a moving partition has no size, or one that is not an integer of at least 0; if the plan was
            made with other sizes.

        Examples
        --------
        >>> plan = plan_rebalance(Layout.create("user_id", 4, ["w0"]), ["w0", "w1"])
        >>> plan.with_sizes([100, 200, 300, 400]).nbytes
        600
        """
        moving = [move.partition for move in (*self.moves, *self.rest)]
        size = dict(zip(moving, read_sizes(sizes, moving, self.before.npartitions), strict=True))
        if self.terms.sizes is not None:
            for p, nbytes in size.items():
                if nbytes != self.terms.sizes[p]:
                    raise ValueError(
                        f"this plan was made with sizes, of which partition {p} has "
                        f"{self.terms.sizes[p]:,} and not {nbytes:,}: make a new plan with the new sizes"
                    )
        moves, rest = (
            tuple(move._replace(nbytes=size[move.partition]) for move in listed)
            for listed in (self.moves, self.rest)
        )
        return replace(self, moves=moves, rest=rest)

    def restricted_to(self, partitions: Iterable[int]) -> RebalancePlan:
        """The plan of which only these partitions move: all others stay where they are.

        A node that was to leave and still owns some is then among the nodes of `after`, with its old weight.
        The other moves are in `rest`, and `lower_bound` stays that of the whole plan.

        Raises
        ------
        ValueError
            If one of the partitions does not move in this plan.

        Examples
        --------
        >>> plan = plan_rebalance(Layout.create("user_id", 4, ["w0"]), ["w1"])
        >>> part = plan.restricted_to([0, 2])
        >>> part.after.counts()
        {'w0': 2, 'w1': 2}
        """
        wanted = {integer("partition", partition, 0) for partition in partitions}
        moves = tuple(move for move in self.moves if move.partition in wanted)
        if len(moves) < len(wanted):
            lacking = min(wanted - {move.partition for move in moves})
            raise ValueError(f"partition {lacking} does not move in this plan")
        owners = np.array(self.before.nodes, dtype=object)[self.before.assignment]
        owners[[move.partition for move in moves]] = [move.target for move in moves]
        owning = set(owners)
        staying = {name: weight for name, weight in self.before.weights.items() if name in owning}
        after = self.after.with_assignment(owners, {**staying, **self.after.weights})
        rest = tuple(move for move in self.moves if move.partition not in wanted)
        return replace(
            self,
            after=after,
            moves=moves,
            rest=tuple(sorted({*self.rest, *rest})),
            leaving=tuple(n for n in staying if n not in self.after.weights or n in self.leaving),
        )

    # As data

    def to_pandas(self) -> pd.DataFrame:
        """The moves as a table: columns partition, source, target, nbytes.

        Examples
        --------
        >>> plan_rebalance(Layout.create("user_id", 4, ["w0"]), ["w0", "w1"]).to_pandas()
           partition source target  nbytes
        0          1     w0     w1       0
        1          3     w0     w1       0
        """
        import pandas as pd

        partition, source, target, nbytes = zip(*self.moves, strict=True) if self.moves else ((), (), (), ())
        return pd.DataFrame(
            {
                "partition": np.array(partition, dtype=np.int64),
                "source": pd.Series(source, dtype=str),
                "target": pd.Series(target, dtype=str),
                "nbytes": np.array(nbytes, dtype=np.int64 if max(nbytes, default=0) < 2**63 else object),
            }
        )

    def to_json(self) -> str:
        """The plan as a JSON object, both layouts included.

        Raises
        ------
        ValueError
            As `Layout.to_json`.

        Examples
        --------
        >>> plan = plan_rebalance(Layout.create("user_id", 64, ["w0"]), ["w0", "w1"])
        >>> RebalancePlan.from_json(plan.to_json()) == plan
        True
        """
        return json.dumps(
            {
                "format": FORMAT,
                "before": json.loads(self.before.to_json()),
                "after": json.loads(self.after.to_json()),
                "lower_bound": self.lower_bound,
                "moves": [[*move[:3], str(move.nbytes)] for move in self.moves],
                **({"rest": [[*move[:3], str(move.nbytes)] for move in self.rest]} if self.rest else {}),
                **({"leaving": list(self.leaving)} if self.leaving else {}),
                **({"terms": self.terms.to_fields()} if self.terms != NO_TERMS else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, layout: Layout | None = None) -> RebalancePlan:
        """The plan that `to_json` wrote.

        Parameters
        ----------
        text : str or bytes
        layout : Layout, optional
            The layout that the plan must start from.

        Raises
        ------
        ValueError
            If the text is not a plan, its moves do not turn its one layout into its other, or it is for
            another layout than the one given.

        Examples
        --------
        >>> layout = Layout.create("user_id", 64, ["w0"])
        >>> text = plan_rebalance(layout, ["w0", "w1"]).to_json()
        >>> RebalancePlan.from_json(text, layout.split(2))
        Traceback (most recent call last):
            ...
        ValueError: this plan is for layout ... at version 0, not for layout ... at version 1: make a new one
        """
        fields = read_object(text, "plan")
        if missing := [field for field in ("before", "after", "lower_bound", "moves") if field not in fields]:
            raise ValueError(f"plan JSON lacks {', '.join(missing)}")
        before, after = (Layout.from_json(json.dumps(fields[field])) for field in ("before", "after"))
        same = ("id", "on", "npartitions", "seed", "vnodes", "placement")
        if after.version != before.version + 1 or any(getattr(before, f) != getattr(after, f) for f in same):
            raise ValueError("the layouts in plan JSON are not one and the next version of the same")
        if layout is not None and layout != before:
            if (layout.id, layout.version) == (before.id, before.version):
                raise ValueError(
                    "this plan is for other owners or nodes than those of the layout, though id and version "
                    "are the same: make a new one"
                )
            raise ValueError(
                f"this plan is for layout {before.id} at version {before.version}, not for layout "
                f"{layout.id} at version {layout.version}: make a new one"
            )
        listed = read_moves(fields["moves"], "moves")
        if [move[:3] for move in listed] != [move[:3] for move in moves_between(before, after)]:
            raise ValueError("the moves in plan JSON do not turn its layout before into its layout after")
        rest = read_moves(fields.get("rest", []), "rest")
        for p, source, _, _ in rest:
            if p >= after.npartitions or after.owner_of(p) != source:
                raise ValueError("the rest in plan JSON does not start from its layout after")
        leaving = fields.get("leaving", [])
        if not isinstance(leaving, list):
            raise ValueError(f"leaving in plan JSON must be a list of names, got {leaving!r}")
        plan = cls(
            before,
            after,
            listed,
            integer("lower_bound in plan JSON", fields["lower_bound"], 0),
            Terms.from_fields(fields.get("terms", {}), before, after.weights),
            rest,
            tuple(known_node(name, after.weights) for name in leaving),
        )
        check_moves(plan)
        return plan

    # For people

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the plan: nodes as bars before and after, moves as bands between them.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed; it comes with the extra "viz".
        """
        from chash_partition.picture import draw

        return draw(self, ax)

    def __repr__(self) -> str:
        nodes = f"{len(self.before.nodes):,} -> {count(len(self.after.nodes), 'node')}"
        return (
            f"RebalancePlan({len(self.moves):,} of {count(self.before.npartitions, 'partition')} move, "
            f"{nodes}, version {self.before.version} -> {self.after.version})"
        )

    def __str__(self) -> str:
        return report.as_text(self)

    def _repr_html_(self) -> str:
        return report.as_html(self)


def as_float(x: Fraction) -> float:
    """The number as a float; inf where that is too large for one, as shares of tiny weights make it."""
    try:
        return float(x)
    except OverflowError:
        return inf


def moves_between(before: Layout, after: Layout) -> tuple[Move, ...]:
    """The moves that turn one layout into another, in partition order, of unknown size."""
    changed = np.flatnonzero(owners_among(before, after.weights) != after.assignment)
    sources = np.array(before.nodes, dtype=object)[before.assignment[changed]]
    targets = np.array(after.nodes, dtype=object)[after.assignment[changed]]
    return tuple(map(Move, changed.tolist(), sources.tolist(), targets.tolist()))


# Parts of plans


def read_budgets(max_moves: int | None, max_bytes: int | None, terms: Terms) -> tuple[int | None, int | None]:
    if max_moves is not None:
        max_moves = integer("max_moves", max_moves, 0)
    if max_bytes is not None:
        max_bytes = integer("max_bytes", max_bytes, 0)
        if terms.sizes is None:
            raise ValueError("max_bytes needs the sizes of partitions: give sizes, or use max_moves")
    return max_moves, max_bytes


def within_budget(plan: RebalancePlan, max_moves: int | None, max_bytes: int | None) -> RebalancePlan:
    """As many of the plan's moves as the budgets allow, those first that relieve most.

    What remains is noted in the layout after, so that the next plan on the same terms goes on with it: it
    could find another as good, but then a partition might move twice.
    """
    if max_moves is None and max_bytes is None:
        return plan
    sizes = plan.terms.counted or (1,) * plan.before.npartitions
    for move in plan.moves:
        if max_bytes is not None and move.nbytes > max_bytes:
            raise ValueError(
                f"partition {move.partition} moves and has {move.nbytes:,} bytes, more than max_bytes="
                f"{max_bytes:,}: allow at least as many, or pin it"
            )
    capacity = dict(plan.terms.capacities)
    held = {name: load.before for name, load in plan.loads.items()}
    share = {name: as_float(load.share) for name, load in plan.loads.items()}
    ordered = by_relief(plan.moves, sizes, held, share, capacity)
    # A node that is beyond its capacity already may give part by part.
    allowed = {name: max(limit, held.get(name, 0)) for name, limit in capacity.items()}
    over: set[str] = set()
    chosen, spent, sound = 0, 0, 0
    for move in ordered[:max_moves]:
        spent += move.nbytes
        if max_bytes is not None and spent > max_bytes:
            break
        chosen += 1
        held[move.source] -= sizes[move.partition]
        held[move.target] += sizes[move.partition]
        for name in (move.source, move.target):
            (over.add if held[name] > allowed.get(name, inf) else over.discard)(name)
        if not over:
            sound = chosen
    if chosen and not sound:
        move = ordered[0]
        raise ValueError(
            f"within this budget no move leaves all nodes within their capacities: the first, of partition "
            f"{move.partition} from {move.source!r} to {move.target!r}, waits for others. Raise the budget"
        )
    if sound == len(plan.moves):
        return plan
    part = plan.restricted_to(move.partition for move in ordered[:sound])
    note = {
        **note_for(plan.after, plan.terms),
        "moves": [[move.partition, move.target] for move in part.rest],
    }
    return replace(part, after=replace(part.after, extra=extra_with(part.after, note)))


def rest_of_plan(case: Case, weights: Mapping[str, Fraction]) -> npt.NDArray[np.int32] | None:
    """Where the plan leads that the layout is a part of, if it is one on these terms, as `fewest_moves`."""
    note = note_of(case.layout)
    number = {name: i for i, name in enumerate(weights)}
    owners = owners_among(case.layout, weights)
    try:
        for partition, target in note["moves"]:
            owners[integer("", partition, 0)] = number[target]
        same = note["to"] == signature(weights, case.terms, owners)
    except (TypeError, KeyError, ValueError, IndexError):  # no note, or not ours, or of other partitions
        return None
    if not same or owners.min() < 0:
        return None
    return owners_among(replace(case.layout, weights=weights, assignment=owners), case.weights)


def note_for(after: Layout, terms: Terms) -> dict[str, Any]:
    """What the layout at the end of a plan says of it, for the same call on it to find nothing to do.

    That is needed where a plan made anew could find another as good, or terms name nodes that have left.
    """
    left = terms.naming(after.weights)
    return {
        "to": signature(after.weights, terms, after.assignment),
        "moves": [],
        **({"left": left} if left else {}),
    }


def extra_with(layout: Layout, note: dict[str, Any] | None) -> str:
    """The layout's unknown fields, with this note in place of any other."""
    fields = {name: value for name, value in json.loads(layout.extra).items() if name != NOTE}
    return json.dumps(fields if note is None else {**fields, NOTE: note})


def signature(weights: Mapping[str, Fraction], terms: Terms, owners: npt.NDArray[np.int32]) -> str:
    """What makes a plan the same plan: nodes, terms, and where all partitions end."""
    return identity([(name, str(weight)) for name, weight in weights.items()], terms, owners.tolist())


def read_moves(listed: Any, what: str) -> tuple[Move, ...]:
    try:
        moves = tuple(
            Move(integer("", p, 0), str(source), str(target), int(str(nbytes)))
            for p, source, target, nbytes in listed
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"{what} in plan JSON must be a list of [partition, source, target, nbytes]"
        ) from None
    if min((move.nbytes for move in moves), default=0) < 0:
        raise ValueError("nbytes in plan JSON must not be negative")
    return moves


def check_moves(plan: RebalancePlan) -> None:
    """Refuse a plan, read from JSON, that is not what its terms ask or whose bound is not one."""
    terms, takes = plan.terms, plan.active
    if plan.lower_bound > plan.cost:
        raise ValueError(
            f"lower_bound in plan JSON is {plan.lower_bound}, and the plan moves {plan.cost}: it is no bound"
        )
    moves, pinned = (*plan.moves, *plan.rest), set(terms.pinned)
    banned = {name: set(partitions) for name, partitions in terms.banned}
    seen = set[int]()
    for p, source, target, nbytes in moves:
        wrong = (
            "it moves twice" if p in seen
            else "it is pinned" if p in pinned
            else f"node {target!r} takes none" if target not in takes or target == source
            else f"it is banned from node {target!r}" if p in banned.get(target, ())
            else f"its size is {terms.sizes[p]}" if terms.sizes is not None and nbytes != terms.sizes[p]
            else ""
        )  # fmt: skip
        if wrong:
            raise ValueError(
                f"plan JSON moves partition {p} from {source!r} to {target!r}, {nbytes} bytes, but {wrong}"
            )
        seen.add(p)
    for name, limit in terms.capacities:
        if name in takes and not plan.rest and plan.loads[name].after > limit:
            raise ValueError(f"plan JSON has more on node {name!r} than its capacity of {limit}")
