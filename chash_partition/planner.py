"""Plans: the fewest partitions that can move when nodes change, and why no fewer can.

Every node is to own its weight's share of the partitions, rounded down or up: its quota. A node can keep no
more than its quota, so it must give up what it owns beyond, and nobody can do with fewer moves than the sum
of that. A plan makes exactly these moves. Which partitions go, and where to, follows the ring of the new
nodes, so there is one plan only, whoever computes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from html import escape
from math import inf
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chash_partition.layout import FORMAT, Layout, count, quotas, read_object, ring_of
from chash_partition.ring import integer, node_weights

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Move", "RebalancePlan", "plan_rebalance"]


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


def plan_rebalance(layout: Layout, nodes: Iterable[str | int] | Mapping[Any, Any]) -> RebalancePlan:
    """The plan with the fewest moves from a layout to a balanced one on these nodes.

    Parameters
    ----------
    layout : Layout
        As it is now, balanced or not.
    nodes : iterable of names, or mapping {name: weight}
        All nodes there will be, in any order. Without weights, a node keeps the weight it has in the layout,
        and a new one gets 1.

    Returns
    -------
    RebalancePlan
        Equal for equal arguments, in every process.

    Raises
    ------
    ValueError
        As `Layout.create`, for nodes.

    Notes
    -----
    For partitions of equal size. For placement "bounded":

    1. Quotas: each node's weight's share of the partitions, rounded down. What remains is given, one for
       each, to nodes that own more than that first, then by largest remainder, then by smaller name.
    2. A node that owns more than its quota gives up those partitions with the fewest tokens, on the ring of
       the new nodes, between their point and the first token of a node that owns less than its quota; of
       equal ones, the lower index. All partitions of nodes that leave are given up.
    3. What was given up is placed in index order, each at the first node with room clockwise from its point.

    A layout with placement "ring" has no quotas: each partition goes to the owner of its point on the ring of
    the new nodes, and exactly those whose owner is then another must move.

    Time is O(P log P + T log T) for P partitions and T tokens.

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
    """
    if not isinstance(layout, Layout):
        raise ValueError(f"layout must be a Layout, got {type(layout).__name__}: see Layout.create")
    weights = node_weights(nodes, layout.weights)
    ring = ring_of(tuple(weights.items()), layout.vnodes, layout.seed)
    owner = owners_among(layout, weights)
    if layout.placement == "ring":
        target = ring.owner_indices(layout.points)
        bound = int(np.count_nonzero(target != owner))
    else:
        held = np.bincount(owner[owner >= 0], minlength=len(weights))
        quota = quotas(weights, layout.npartitions, held.tolist())
        kept = np.minimum(held, quota)
        bound = int(layout.npartitions - kept.sum())

        # The partitions of nodes over their quota, each node's in the order in which it gives them up.
        spare = np.flatnonzero((owner >= 0) & (held > quota)[owner])
        steps = ring.steps_to(layout.points[spare], held < quota) if len(spare) else spare
        spare = spare[np.lexsort((spare, steps, owner[spare]))]
        of_node = owner[spare]
        rank = np.arange(len(spare)) - np.searchsorted(of_node, of_node)
        moving = owner < 0
        moving[spare[rank < (held - quota)[of_node]]] = True

        target = owner.copy()
        target[moving] = ring.fill(layout.points[moving], quota - kept)
    after = replace(layout, version=layout.version + 1, weights=weights, assignment=target)
    return RebalancePlan(layout, after, moves_between(layout, after), bound)


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
        "ring", the number of partitions whose point has another owner on the ring of the new nodes.

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
    node  weight  share  owned  stay  come  owns
    w0         1   2.67      4     3     0     3
    w1         1   2.67      4     3     0     3
    w2         1   2.67      0     0     2     2
    <BLANKLINE>
    ...
    """

    before: Layout
    after: Layout
    moves: tuple[Move, ...]
    lower_bound: int

    @property
    def nbytes(self) -> int:
        """Bytes that move, as far as known."""
        return sum(move.nbytes for move in self.moves)

    @cached_property
    def imbalance_before(self) -> float:
        """Largest ratio of what a node owns to its share, in partitions, before the moves.

        Shares are those of the new nodes, by weight, before as after the moves, so the two can be compared:
        1.0 is perfect, and 1.25 says that some node owns a quarter too much. A node that is to leave has no
        share, so owning anything makes it inf.
        """
        return imbalance(self.before, self.after.weights)

    @cached_property
    def imbalance_after(self) -> float:
        """As `imbalance_before`, after the moves."""
        return imbalance(self.after, self.after.weights)

    # Other plans from this one

    def with_sizes(self, sizes: Sequence[int] | Mapping[int, int] | pd.Series[Any]) -> RebalancePlan:
        """The same plan, with the bytes of each move.

        Parameters
        ----------
        sizes : sequence of int, (npartitions,), or Series or mapping indexed by partition

        Raises
        ------
        ValueError
            If a moving partition has no size, or one that is not an integer of at least 0.

        Examples
        --------
        >>> plan = plan_rebalance(Layout.create("user_id", 4, ["w0"]), ["w0", "w1"])
        >>> plan.with_sizes([100, 200, 300, 400]).nbytes
        600
        """
        lookup: Any = sizes.to_dict() if hasattr(sizes, "to_dict") else sizes
        if not isinstance(lookup, Mapping) and len(lookup) != self.before.npartitions:
            raise ValueError(
                f"needs a size for each of {self.before.npartitions} partitions, got {len(lookup)}"
            )
        moves = []
        for move in self.moves:
            try:
                size = lookup[move.partition]
            except KeyError:
                raise ValueError(f"partition {move.partition} moves, but has no size") from None
            if (
                isinstance(size, (float, np.floating)) and size.is_integer()
            ):  # as a Series with a gap holds them
                size = int(size)
            moves.append(move._replace(nbytes=integer(f"size of partition {move.partition}", size, 0)))
        return replace(self, moves=tuple(moves))

    def restricted_to(self, partitions: Iterable[int]) -> RebalancePlan:
        """The plan of which only these partitions move: all others stay where they are.

        A node that was to leave and still owns some is then among the nodes of `after`, with its old weight.
        `lower_bound` stays that of the whole plan.

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
        staying = {name: weight for name, weight in self.before.weights.items() if name in set(owners)}
        after = self.after.with_assignment(owners, {**staying, **self.after.weights})
        return replace(self, after=after, moves=moves)

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
                "nbytes": np.array(nbytes, dtype=np.int64),
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
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> RebalancePlan:
        """The plan that `to_json` wrote.

        Raises
        ------
        ValueError
            If the text is not a plan, or its moves do not turn its one layout into its other.
        """
        fields = read_object(text, "plan")
        if missing := [field for field in ("before", "after", "lower_bound", "moves") if field not in fields]:
            raise ValueError(f"plan JSON lacks {', '.join(missing)}")
        before, after = (Layout.from_json(json.dumps(fields[field])) for field in ("before", "after"))
        same = ("id", "on", "npartitions", "seed", "vnodes", "placement")
        if after.version != before.version + 1 or any(getattr(before, f) != getattr(after, f) for f in same):
            raise ValueError("the layouts in plan JSON are not one and the next version of the same")
        try:
            listed = [(partition, source, target) for partition, source, target, _ in fields["moves"]]
            sizes = [int(nbytes) for *_, nbytes in fields["moves"]]
        except (TypeError, ValueError):
            raise ValueError(
                "moves in plan JSON must be a list of [partition, source, target, nbytes]"
            ) from None
        moves = moves_between(before, after)
        if listed != [move[:3] for move in moves]:
            raise ValueError("the moves in plan JSON do not turn its layout before into its layout after")
        if min(sizes, default=0) < 0:
            raise ValueError("nbytes in plan JSON must not be negative")
        return cls(
            before,
            after,
            tuple(move._replace(nbytes=nbytes) for move, nbytes in zip(moves, sizes, strict=True)),
            integer("lower_bound in plan JSON", fields["lower_bound"], 0),
        )

    # For people

    def __repr__(self) -> str:
        nodes = f"{len(self.before.nodes):,} -> {count(len(self.after.nodes), 'node')}"
        return (
            f"RebalancePlan({len(self.moves):,} of {count(self.before.npartitions, 'partition')} move, "
            f"{nodes}, version {self.before.version} -> {self.after.version})"
        )

    def __str__(self) -> str:
        parts = [self._headline(), *(as_text(*table) for table in self._tables()), fill(self._reason(), 100)]
        return "\n\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        parts = [paragraph(self._headline()), *(as_html(*table) for table in self._tables())]
        return "\n".join([*parts, paragraph(self._reason())])

    def _headline(self) -> str:
        size = f" ({readable_bytes(self.nbytes)})" if self.nbytes else ""
        return (
            f"{len(self.moves):,} of {count(self.before.npartitions, 'partition')} move{size}; "
            f"{len(self.before.nodes):,} -> {count(len(self.after.nodes), 'node')}; "
            f"version {self.before.version} -> {self.after.version}.\n"
            f"Imbalance (the most that a node owns of its share): "
            f"{self.imbalance_before:.3g} -> {self.imbalance_after:.3g}."
        )

    def _tables(self) -> list[tuple[list[str], list[list[str]], str]]:
        """Header, rows and a last line: of where moves go, and of what they make of each node."""
        flows = Counter((move.source, move.target) for move in self.moves)
        gives = Counter(move.source for move in self.moves)
        takes = Counter(move.target for move in self.moves)
        before, after, weights = self.before.counts(), self.after.counts(), self.after.weights
        total = sum(weights.values())
        busiest = sorted({*before, *after}, key=lambda name: (-gives[name] - takes[name], name))
        nodes = [
            [
                show(name),
                str(weights.get(name, "leaves")),
                f"{float(weights.get(name, Fraction(0)) * self.before.npartitions / total):,.2f}",
                *(f"{n:,}" for n in (before.get(name, 0), before.get(name, 0) - gives[name], takes[name])),
                f"{after.get(name, 0):,}",
            ]
            for name in sorted(busiest[:MAX_ROWS])
        ]
        moves = [
            [show(source), show(target), f"{n:,}"]
            for (source, target), n in sorted(flows.items(), key=by_count)[:MAX_ROWS]
        ]
        tables = [
            (["from", "to", "partitions"], moves, more(len(flows), "pair")),
            (["node", "weight", "share", "owned", "stay", "come", "owns"], nodes, more(len(busiest), "node")),
        ]
        return tables if moves else tables[1:]

    def _reason(self) -> str:
        """Why no plan moves fewer, in numbers."""
        total, bound = self.before.npartitions, self.lower_bound
        if len(self.moves) != bound:
            return f"This is a part of a plan; the whole plan moves {count(bound, 'partition')}."
        if not bound:
            return "Nothing has to move."
        if self.before.placement == "ring":
            return (
                "Why no fewer: with placement 'ring' a partition belongs to the node of the first token at "
                "or after its point. On the ring of the new nodes that is another node for "
                f"{bound:,} of {total:,}."
            )
        weights = self.after.weights.values()
        unit = total / sum(weights)  # a Fraction, like the weights
        up = total - sum(int(unit * weight) for weight in weights)
        if up:
            quota = (
                f"its share of the {total:,} partitions rounded down, and {up:,} of {len(weights):,} one more"
            )
            first = ", and the one more goes first to nodes that owned more"
        else:
            quota, first = f"exactly its share of the {total:,} partitions", ""
        return (
            f"Why no fewer: each node must own {quota}. "
            f"It can keep no more than that of what it owned{first}. "
            f"So at most {total - bound:,} of {total:,} can stay, and {bound:,} must move."
        )


MAX_ROWS = 16


def owners_among(layout: Layout, names: Iterable[str]) -> npt.NDArray[np.int32]:
    """Owner of each partition as an index into these names, sorted; -1 if it is none of them."""
    number = {name: i for i, name in enumerate(sorted(names))}
    return np.array([number.get(name, -1) for name in layout.nodes], dtype=np.int32)[layout.assignment]


def moves_between(before: Layout, after: Layout) -> tuple[Move, ...]:
    """The moves that turn one layout into another, in partition order, of unknown size."""
    changed = np.flatnonzero(owners_among(before, after.weights) != after.assignment)
    sources = np.array(before.nodes, dtype=object)[before.assignment[changed]]
    targets = np.array(after.nodes, dtype=object)[after.assignment[changed]]
    return tuple(map(Move, changed.tolist(), sources.tolist(), targets.tolist()))


def imbalance(layout: Layout, weights: Mapping[str, Fraction]) -> float:
    """Largest ratio of the partitions that a node owns to its share by these weights."""
    total = sum(weights.values())
    ratios = (
        float(held * total / (weights[name] * layout.npartitions)) if name in weights else inf
        for name, held in layout.counts().items()
        if held
    )
    return max(ratios)


def by_count(flow: tuple[tuple[str, str], int]) -> tuple[int, tuple[str, str]]:
    """Sort key: most partitions first, then by names."""
    return -flow[1], flow[0]


def show(name: str) -> str:
    """A node's name in a table, where an empty one or a line break would not be seen for what it is."""
    return name if name.strip() and name.isprintable() else repr(name)


def more(n: int, noun: str) -> str:
    return f"... and {count(n - MAX_ROWS, f'more {noun}')}" if n > MAX_ROWS else ""


def as_text(header: list[str], rows: list[list[str]], last: str) -> str:
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    justify = [str.ljust if title in ("from", "to", "node") else str.rjust for title in header]
    texts = [
        [just(cell, width) for just, cell, width in zip(justify, line, widths, strict=True)] for line in lines
    ]
    return "\n".join(["  ".join(cells) for cells in texts] + ([last] if last else []))


def as_html(header: list[str], rows: list[list[str]], last: str) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{paragraph(last)}"


def paragraph(text: str) -> str:
    return f"<p>{escape(text).replace(chr(10), '<br>')}</p>" if text else ""


def readable_bytes(n: int) -> str:
    power = min(max(n.bit_length() - 1, 0) // 10, 5)
    return f"{n / 1024**power:,.{min(power, 1)}f} {['B', 'kiB', 'MiB', 'GiB', 'TiB', 'PiB'][power]}"
