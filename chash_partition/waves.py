"""In which order the moves of a plan go: which first, and which at the same time.

Moves are edges from the node that sends to the node that receives, each node being there once as a sender and
once as a receiver. What goes at the same time is then a colour of edges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from chash_partition.planner import Move

__all__ = ["Estimate", "by_relief", "in_waves", "waves_within"]


class Estimate(NamedTuple):
    """How long the moves of a plan take, and what no order of them can beat.

    Attributes
    ----------
    seconds : float
        Of all waves, one after the other: each takes as long as its busiest node sends or receives.
    lower_bound : float
        Seconds that the busiest node sends or receives in all.
    """

    seconds: float
    lower_bound: float


def in_waves(moves: Sequence[Move], concurrency: int) -> tuple[tuple[Move, ...], ...]:
    """The fewest waves in which no node sends more than `concurrency` partitions at once, nor receives more.

    Notes
    -----
    A bipartite multigraph can be coloured with as many colours as the largest degree (König, 1916): where no
    colour is free at both ends of an edge, two colours are exchanged along the path that alternates between
    them. A wave is `concurrency` colours, so their number is the optimum, the largest number that any node
    sends or receives, divided by `concurrency` and rounded up. The largest moves are coloured first, so that
    moves of like size go together.

    Examples
    --------
    >>> from chash_partition import Move
    >>> moves = [Move(0, "a", "c"), Move(1, "b", "c"), Move(2, "a", "d")]
    >>> [[move.partition for move in wave] for wave in in_waves(moves, 1)]
    [[0], [1, 2]]
    """
    colours = most_at_a_node(moves)
    # By (side, node): the move that has each colour there, and a colour below which none is free.
    taken: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    lowest: Counter[tuple[int, str]] = Counter()
    colour_of: dict[int, int] = {}

    def free(end: tuple[int, str]) -> int:
        used = taken[end]
        lowest[end] = next(colour for colour in range(lowest[end], colours) if colour not in used)
        return lowest[end]

    order = sorted(range(len(moves)), key=lambda i: (-moves[i].nbytes, moves[i].partition))
    for i in order:
        ends = (0, moves[i].source), (1, moves[i].target)
        here, there = free(ends[0]), free(ends[1])
        if both := [c for c in (here, there) if c not in taken[ends[0]] and c not in taken[ends[1]]]:
            colour = min(both)
        else:
            # The path from the receiver that alternates between the two colours never comes to the sender.
            path, end, colour = [], ends[1], here
            while (step := taken[end].get(colour)) is not None:
                path.append(step)
                end = (0, moves[step].source) if end[0] else (1, moves[step].target)
                colour = there if colour == here else here
            for step in path:
                for end in ((0, moves[step].source), (1, moves[step].target)):
                    taken[end].pop(colour_of[step], None)
                    lowest[end] = min(lowest[end], colour_of[step])
            for step in path:
                colour = colour_of[step] = there if colour_of[step] == here else here
                for end in ((0, moves[step].source), (1, moves[step].target)):
                    taken[end][colour] = step
            colour = here
        colour_of[i] = colour
        for end in ends:
            taken[end][colour] = i
    waves: dict[int, list[Move]] = defaultdict(list)
    for i, move in enumerate(moves):
        waves[colour_of[i] // concurrency].append(move)
    return tuple(tuple(sorted(waves[wave])) for wave in sorted(waves))


def waves_within(
    moves: Sequence[Move],
    concurrency: int,
    load: Mapping[str, int],
    capacity: Mapping[str, int],
    barred: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> tuple[tuple[Move, ...], ...]:
    """As `in_waves`, and no node with a capacity gets beyond it on the way.

    Parameters
    ----------
    moves : sequence of Move
    concurrency : int
    load : mapping of str to int
        Bytes on each node before the moves.
    capacity : mapping of str to int
        Bytes that a node can hold; nodes that are not in it can hold any.
    barred : mapping of str to collection of int
        Partitions that a node may not take, not even on the way.

    Returns
    -------
    tuple of tuples of Move
        A partition that has to make way goes in two hops, over a third node.

    Raises
    ------
    ValueError
        If moves block each other and no node has room for one that makes way.

    Notes
    -----
    While a partition is moved it is on both nodes, so what a node sends in a wave makes room for the next one
    only. If the fewest waves do not fit, each wave takes the moves that do, largest first, and when none
    does, the smallest partition that is waited for makes way to the node with most room.

    Examples
    --------
    >>> from chash_partition import Move
    >>> swap = [Move(0, "a", "b", 5), Move(1, "b", "a", 5)]
    >>> for wave in waves_within(swap, 1, {"a": 5, "b": 5, "c": 0}, {"a": 5, "b": 5}):
    ...     print([move[:3] for move in wave])
    [(0, 'a', 'c')]
    [(1, 'b', 'a')]
    [(0, 'c', 'b')]
    """
    waves = in_waves(moves, concurrency)
    if fits(waves, load, capacity):
        return waves
    held = Counter(load)
    waiting = sorted(moves, key=lambda move: (-move.nbytes, move.partition))
    staged: set[int] = set()
    done = []
    while waiting:
        sends: Counter[str] = Counter()
        receives: Counter[str] = Counter()
        coming: Counter[str] = Counter()
        wave = []
        for move in waiting:
            room = capacity.get(move.target, inf) - held[move.target] - coming[move.target]
            if (
                sends[move.source] < concurrency
                and receives[move.target] < concurrency
                and (move.nbytes <= room)
            ):
                wave.append(move)
                sends[move.source] += 1
                receives[move.target] += 1
                coming[move.target] += move.nbytes
        if wave:
            going = set(wave)
            waiting = [move for move in waiting if move not in going]
        else:
            hop, onward = make_way(waiting, staged, held, capacity, barred)
            wave = [hop]
            staged.add(hop.partition)
            waiting = [onward if move.partition == hop.partition else move for move in waiting]
        for move in wave:
            held[move.source] -= move.nbytes
            held[move.target] += move.nbytes
        done.append(tuple(sorted(wave)))
    return tuple(done)


def make_way(
    waiting: Sequence[Move],
    staged: set[int],
    held: Counter[str],
    capacity: Mapping[str, int],
    barred: Mapping[str, Collection[int]],
) -> tuple[Move, Move]:
    """A hop of one waiting partition to a third node, and its move onward from there."""
    full = {move.target for move in waiting}
    room = {name: capacity.get(name, inf) - held[name] for name in sorted({*held, *capacity})}
    for move in sorted(waiting, key=lambda move: (move.nbytes, move.partition)):
        # Only a partition on a node that another move waits for makes room by going.
        others = [
            name
            for name in room
            if name not in (move.source, move.target)
            and room[name] >= move.nbytes
            and move.partition not in barred.get(name, ())
        ]
        if others and move.source in full and move.partition not in staged:
            stage = max(others, key=lambda name: (name not in full, room[name]))
            return move._replace(target=stage), move._replace(source=stage)
    blocked = ", ".join(
        f"{m.partition} ({m.source} -> {m.target}, {m.nbytes:,} bytes)" for m in sorted(waiting)[:8]
    )
    raise ValueError(
        f"these moves wait for each other: partitions {blocked}{' ...' if len(waiting) > 8 else ''}. Their "
        "targets are full until others of them have gone, and no other node has room for one to make way: "
        "raise a capacity, or add a node for the time of the moves"
    )


def fits(waves: Iterable[Iterable[Move]], load: Mapping[str, int], capacity: Mapping[str, int]) -> bool:
    """Whether all nodes stay within their capacities, when a wave's partitions come before others go."""
    held = Counter(load)
    for wave in waves:
        moves = list(wave)
        for move in moves:
            held[move.target] += move.nbytes
        if any(held[move.target] > capacity.get(move.target, inf) for move in moves):
            return False
        for move in moves:
            held[move.source] -= move.nbytes
    return True


def estimate(waves: Iterable[Iterable[Move]], moves: Iterable[Move], bandwidth: float) -> Estimate:
    """Seconds for the waves, at so many bytes a second that each node can send and at once receive."""
    return Estimate(sum(map(busiest, waves)) / bandwidth, busiest(moves) / bandwidth)


def busiest(moves: Iterable[Move]) -> int:
    """The most bytes that one node sends or receives."""
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for move in moves:
        sent[move.source] += move.nbytes
        received[move.target] += move.nbytes
    return max([*sent.values(), *received.values()], default=0)


def most_at_a_node(moves: Iterable[Move]) -> int:
    """The most partitions that one node sends or receives."""
    return busiest(move._replace(nbytes=1) for move in moves)


def by_relief(
    moves: Iterable[Move],
    size: Sequence[int],
    load: Mapping[str, int],
    share: Mapping[str, float],
    capacity: Mapping[str, int],
) -> list[Move]:
    """The moves in the order in which imbalance falls fastest.

    Each next move is from the node that is most above its share, nodes without a share first, and is the
    largest of its moves whose target has room.

    Examples
    --------
    >>> from chash_partition import Move
    >>> moves = [Move(0, "a", "c"), Move(1, "b", "c"), Move(2, "b", "c")]
    >>> ordered = by_relief(moves, [1, 1, 1], {"a": 3, "b": 4, "c": 0}, dict.fromkeys("abc", 2), {})
    >>> [move.partition for move in ordered]
    [1, 0, 2]
    """
    held = Counter(load)
    of: dict[str, list[Move]] = defaultdict(list)
    for move in sorted(moves, key=lambda move: (-size[move.partition], move.partition)):
        of[move.source].append(move)

    def urgency(name: str) -> tuple[float, int, str]:
        return (-held[name] / share[name] if share.get(name) else -inf), -held[name], name

    heap = [urgency(name) for name in of]
    heapify(heap)
    ordered: list[Move] = []
    stuck: list[str] = []  # all that these have to give waits for room
    while heap or stuck:
        if not heap:  # nothing fits: go on regardless, and let the caller see
            capacity, heap, stuck = {}, [urgency(name) for name in stuck], []
            heapify(heap)
        entry = heappop(heap)
        name = entry[2]
        if entry != urgency(name):
            heappush(heap, urgency(name))
            continue
        for i, move in enumerate(of[name]):
            nbytes = size[move.partition]
            if held[move.target] + nbytes <= capacity.get(move.target, inf):
                ordered.append(of[name].pop(i))
                held[name] -= nbytes
                held[move.target] += nbytes
                if of[name]:
                    heappush(heap, urgency(name))
                if capacity:
                    for other in stuck:
                        heappush(heap, urgency(other))
                    stuck = []
                break
        else:
            stuck.append(name)
    return ordered
