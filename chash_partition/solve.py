"""Partitions of unequal size: a placement that moves few bytes, and a proof of how few any could.

`place` searches, `least_bytes` proves; the two know nothing of each other. Both see a `Problem`: plain
arrays, sizes by partition and bounds by node. Both are deterministic: their effort is counted in steps, not
in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chash_partition.hashing import compiled, once

__all__ = ["Placed", "Problem", "least_bytes", "place", "solve"]

Ints = npt.NDArray[np.int64]

STEPS = 10_000_000  # of the search, and as many table cells, times 20, for the proof: each about 0.3 s
WIDTH = 1024
SMALL = 100  # partitions
WANDER = (1, 10, 40, 3, 20, 1)  # first threshold of each attempt, in 20ths of the mean size
CLOSE = 200  # a placement within a 200th of what is proven is good enough


class Problem(NamedTuple):
    """Which partitions there are, where they are, and what each node may and must own.

    Attributes
    ----------
    size : ndarray of int64, (partitions,)
    home : ndarray of int32, (partitions,)
        Index of the node where the partition costs nothing, or -1 if it must move.
    fixed : ndarray of bool, (partitions,)
        Those that must stay at home.
    low, high : ndarray of int64, (nodes,)
        Least and most bytes that a node is to own.
    banned : ndarray of uint8, (nodes, partitions)
        1 where a node may not take a partition; empty if there are no bans.
    liked : ndarray of int32, (partitions,)
        The node where a partition goes if it makes no other difference.
    """

    size: Ints
    home: npt.NDArray[np.int32]
    fixed: npt.NDArray[np.bool_]
    low: Ints
    high: Ints
    banned: npt.NDArray[np.uint8]
    liked: npt.NDArray[np.int32]

    def load(self, at: npt.NDArray[np.int32]) -> Ints:
        """Bytes on each node when partitions are at these."""
        here = at >= 0
        load = np.zeros(len(self.low), np.int64)
        np.add.at(load, at[here], self.size[here])
        return load


class Placed(NamedTuple):
    """A placement: node of each partition, bytes that nodes are out of bounds in sum, bytes moved."""

    at: npt.NDArray[np.int32]
    outside: int
    nbytes: int

    def rank(self) -> tuple[int, int]:
        """Less is better."""
        return self.outside, self.nbytes


def place(
    problem: Problem,
    start: npt.NDArray[np.int32] | None = None,
    *,
    any_will_do: bool = False,
    attempt: int = 0,
) -> Placed:
    """A placement within the bounds of all nodes that moves few bytes, if the search finds one.

    Parameters
    ----------
    problem : Problem
    start : ndarray of int32, (partitions,), optional
        A placement to begin with. By default, all at home, and those without one, largest first, where there
        is most room.
    any_will_do : bool
        Stop at the first placement within the bounds.
    attempt : int
        Another attempt makes other random moves.

    Returns
    -------
    Placed
        That with the least outside the bounds, and of these with the fewest bytes, of all that were seen.
        Equal for equal arguments.

    Notes
    -----
    Threshold accepting (Dueck and Scheuer, 1990): random moves of one partition or swaps of two are made
    unless they are worse by more than a threshold that falls to 0. A byte outside the bounds counts as 1.5
    moved ones at first and as 10 in the end, or as ever more if no placement within was seen by then. Where a
    partition is liked its bytes cost a 32nd less: of plans that cost the same, the one that follows the ring
    is chosen. Integers only, but for the threshold, and a generator of its own (xorshift64*, Vigna, 2016), so
    that it runs alike everywhere. 10,000 steps for each partition, and at most 10 million.

    Examples
    --------
    >>> none = np.zeros((0, 0), np.uint8)
    >>> size, home = np.array([5, 4, 3, 2]), np.array([0, 0, 0, 0], np.int32)
    >>> low, high = np.array([6, 6]), np.array([8, 8])
    >>> place(Problem(size, home, np.zeros(4, bool), low, high, none, home)).nbytes
    6
    """
    size, home, low, high = problem.size, problem.home, problem.low, problem.high
    free = np.flatnonzero(~problem.fixed).astype(np.int64)
    at = roomiest(problem) if start is None else start.copy()
    best, out = at.copy(), np.zeros(1, np.int64)
    if not len(free):
        load = problem.load(at)
        outside = np.maximum(load - high, 0) + np.maximum(low - load, 0)
        return Placed(at, int(outside.sum()), 0)
    steps = min(STEPS, 10_000 * len(free))
    # With few steps for each partition there is no time to wander.
    spare = min(1000, STEPS // len(free))
    first = 128 * int(size[free].sum()) * WANDER[attempt % len(WANDER)] * spare // (20_000 * len(free))
    banned = problem.banned if problem.banned.size else np.zeros((1, 1), np.uint8)
    settings = np.array(
        [steps, first, problem.banned.size > 0, any_will_do, 88172645463325252 + attempt], np.int64
    )
    _kernels().search(
        size, home, problem.liked, at, free, problem.load(at), low, high, banned, settings, best, out
    )
    return Placed(best, int(out[0]), int(size[best != home].sum()))


def attempts(problem: Problem) -> range:
    """How often to search: more often where it costs next to nothing."""
    return range(3 if len(problem.size) > SMALL else len(WANDER))


def solve(problem: Problem, start: npt.NDArray[np.int32] | None = None) -> tuple[Placed, int]:
    """A placement, and the fewest bytes it could move as far as proved: attempts until the two meet."""
    placed = place(problem)
    if start is not None:
        placed = min(placed, place(problem, start), key=Placed.rank)
    bound = least_bytes(problem, placed.nbytes)
    for attempt in attempts(problem)[1:]:
        if not placed.outside and placed.nbytes - bound <= bound // CLOSE:
            break
        placed = min(placed, place(problem, placed.at, attempt=attempt), key=Placed.rank)
    return placed, bound


def roomiest(problem: Problem) -> npt.NDArray[np.int32]:
    """All at home, but what must move or is liked by a node below its least goes there, if there is room.

    What must move and has no such place goes, largest first, where its node will be least full.
    """
    size, home, low, high, banned = problem.size, problem.home, problem.low, problem.high, problem.banned
    at, load = home.copy(), problem.load(home)

    def may(p: int, node: int) -> bool:
        return load[node] + size[p] <= high[node] and not (banned.size and banned[node, p])

    wanted = (home < 0) | ((home != problem.liked) & ~problem.fixed & (load < low)[problem.liked])
    for p in np.flatnonzero(wanted).tolist():
        node, own = int(problem.liked[p]), int(home[p])
        if not may(p, node) or (own >= 0 and (load[node] >= low[node] or load[own] - size[p] < low[own])):
            continue
        at[p] = node
        load[node] += size[p]
        if own >= 0:
            load[own] -= size[p]
    must = np.flatnonzero(at < 0)
    for p in must[np.argsort(-size[must], kind="stable")].tolist():
        fill = (load + size[p]) / np.maximum(high, 1)
        if banned.size:
            fill[banned[:, p] > 0] = np.inf
        emptiest = at[p] = np.argmin(fill)
        load[emptiest] += size[p]
    return at


def least_bytes(problem: Problem, target: int) -> int:
    """A number of bytes that every placement within the bounds moves at least.

    Parameters
    ----------
    problem : Problem
    target : int
        What a placement does move: the proof need not get beyond.

    Notes
    -----
    The larger of two bounds.

    1. What nodes must receive: for each node below its least, what it lacks.
    2. What must leave: a Lagrangian bound (Held and Karp, 1971). Pay a price of size + x for each partition
       that is placed at least once, with x >= 0, and let every node on its own choose what to keep and
       to take: placements can be no better. A node keeps all but what it must give up for what it takes,
       in whole partitions: a knapsack, solved on a grid with roundings in the safe direction. With all
       x = 0 that is each node's smallest set of partitions that covers its excess. Prices begin with what
       of each partition exceeds the largest room, and follow subgradients towards the target. Bans are
       ignored, which makes the bound only lower.

    Examples
    --------
    >>> none = np.zeros((0, 0), np.uint8)
    >>> size, home = np.array([5, 4, 3, 2]), np.array([0, 0, 0, 0], np.int32)
    >>> low, high = np.array([6, 6]), np.array([8, 8])
    >>> least_bytes(Problem(size, home, np.zeros(4, bool), low, high, none, home), 6)
    6
    """
    load = problem.load(problem.home)
    free = np.flatnonzero(~problem.fixed)
    if not len(free):
        return 0
    lacking = problem.low - load
    smallest = int(problem.size[free].min())
    received = int(np.maximum(lacking, smallest)[lacking > 0].sum())
    nnodes = len(load)
    owner = np.where(problem.home < 0, nnodes, problem.home)[free]
    order = np.argsort(owner, kind="stable")
    size = problem.size[free][order]
    start = np.searchsorted(owner[order], np.arange(nnodes + 1)).astype(np.int64)
    room = problem.high - load
    width = min(WIDTH, max(16, 2**26 // len(free)))
    cell = int(problem.high.max()) // width + 1
    rooms = np.sort(room)[::-1]
    firsts = rooms[(np.arange(12) * nnodes) // 12]
    firsts = np.unique(np.maximum(0, np.append(firsts, [rooms[0] // 2, int(size.max())])))[::-1].astype(
        np.int64
    )
    rounds = min(200, max(2, 20 * STEPS // (len(free) * width)))
    out = np.zeros(1, np.int64)
    _kernels().dual(size, start, room, firsts, np.array([rounds, target, cell, width]), out)
    return max(received, int(out[0]))


# Kernels


def _search(
    size: Any, home: Any, liked: Any, at: Any, free: Any, load: Any, low: Any, high: Any, banned: Any,
    settings: Any, best: Any, out: Any,
) -> None:  # fmt: skip
    """Threshold accepting over moves and swaps; see `place`. Changes `at` and `load`, the start."""
    steps, first, some_banned, any_will_do = settings[0], settings[1], settings[2], settings[3]
    state = np.uint64(settings[4])
    nnodes = len(load)
    nfree = len(free)
    # Partitions that are not at home (or have none), as a list with positions.
    away = np.empty(nfree, np.int64)
    where = np.full(len(size), -1, np.int64)
    naway = 0
    cost = 0
    for i in range(nfree):
        p = free[i]
        if home[p] != at[p]:
            where[p] = naway
            away[naway] = p
            naway += 1
            cost += size[p] * (124 if at[p] == liked[p] else 128)
    excess = 0
    for n in range(nnodes):
        excess += max(load[n] - high[n], 0) + max(low[n] - load[n], 0)
    best_excess = excess
    best_cost = cost
    best[:] = at
    # One of the nodes that are out of bounds, and what it owns: tried more often in the end.
    focus, nfocus, focus_until = -1, 0, steps - steps // 8
    members = np.empty(nfree, np.int64)
    late = max(1, steps // 8)
    largest = size[free[0]]
    for i in range(nfree):
        largest = max(largest, size[free[i]])
    dearest = 12
    while dearest > 0 and largest > np.int64(1 << 49) >> dearest:
        dearest -= 1
    fresh = False  # whether the present state is the best and not yet kept
    for step in range(steps):
        left = steps - step
        threshold = np.int64(first * (left / steps))
        # For a byte out of bounds, when a byte moved is 128, and 124 where it is liked.
        fine = 192 + 1088 * step // steps
        if left <= late and best_excess > 0:
            fine = 1280 * 2 ** (dearest * (late - left) // late)
        if step >= focus_until:
            nfocus = 0
            if excess > 0 and best_excess > 0:
                for _ in range(nnodes):
                    focus = (focus + 1) % nnodes
                    if load[focus] > high[focus] or load[focus] < low[focus]:
                        break
                for i in range(nfree):
                    if at[free[i]] == focus:
                        members[nfocus] = free[i]
                        nfocus += 1
            focus_until = step + max(2000, nfree // 8)
        state ^= state >> np.uint64(12)
        state ^= state << np.uint64(25)
        state ^= state >> np.uint64(27)
        random = state * np.uint64(0x2545F4914F6CDD1D)
        r1 = np.int64(random >> np.uint64(33))
        state ^= state >> np.uint64(12)
        state ^= state << np.uint64(25)
        state ^= state >> np.uint64(27)
        random = state * np.uint64(0x2545F4914F6CDD1D)
        r2 = np.int64(random >> np.uint64(33))
        kind = r2 & 7
        r2 >>= 3
        p = away[(r1 >> 1) % naway] if naway > 0 and r1 & 1 else free[(r1 >> 1) % nfree]
        a = at[p]
        q = -1
        if kind == 0 and home[p] >= 0:
            b = np.int64(home[p])
        elif kind <= 1:
            b = r2 % nnodes
        elif kind == 2 and naway > 0:
            q = away[r2 % naway]
            b = np.int64(at[q])
        else:
            q = free[r2 % nfree]
            b = np.int64(at[q])
        if nfocus > 0 and (r1 & 6) == 6:
            x = members[(r1 >> 3) % nfocus]
            if at[x] != focus:
                continue
            if load[focus] > high[focus]:
                p, a = x, focus
            else:
                b, q = np.int64(focus), (x if kind & 1 else -1)
        if a == b or (some_banned and banned[b, p]):
            continue
        s = size[p]
        la, lb = load[a], load[b]
        va = max(la - high[a], 0) + max(low[a] - la, 0)
        vb = max(lb - high[b], 0) + max(low[b] - lb, 0)
        dcost: Any = 0
        if home[p] != a:
            dcost -= s * (124 if liked[p] == a else 128)
        if home[p] != b:
            dcost += s * (124 if liked[p] == b else 128)
        na, nb = la - s, lb + s
        dexc = (
            max(na - high[a], 0) + max(low[a] - na, 0) - va + max(nb - high[b], 0) + max(low[b] - nb, 0) - vb
        )
        delta = dcost + fine * dexc
        swap = False
        if q >= 0 and not (some_banned and banned[a, q]):
            t = size[q]
            ecost = dcost
            if home[q] != b:
                ecost -= t * (124 if liked[q] == b else 128)
            if home[q] != a:
                ecost += t * (124 if liked[q] == a else 128)
            ma, mb = na + t, nb - t
            eexc = (
                max(ma - high[a], 0) + max(low[a] - ma, 0) - va
                + max(mb - high[b], 0) + max(low[b] - mb, 0) - vb
            )  # fmt: skip
            other = ecost + fine * eexc
            if other < delta:
                swap = True
                delta, dcost, dexc, na, nb = other, ecost, eexc, ma, mb
        if delta > threshold:
            continue
        if fresh and (dexc > 0 or (dexc == 0 and dcost >= 0)):
            best[:] = at
            fresh = False
        load[a], load[b] = na, nb
        cost += dcost
        excess += dexc
        for k in range(2):
            x = p if k == 0 else q
            if k == 1 and not swap:
                break
            at[x] = b if k == 0 else a
            if home[x] == at[x]:
                if where[x] >= 0:
                    naway -= 1
                    last = away[naway]
                    away[where[x]] = last
                    where[last] = where[x]
                    where[x] = -1
            elif where[x] < 0:
                where[x] = naway
                away[naway] = x
                naway += 1
        if excess < best_excess or (excess == best_excess and cost < best_cost):
            best_excess, best_cost = excess, cost
            fresh = True
            if any_will_do and excess == 0:
                break
    if fresh:
        best[:] = at
    out[0] = best_excess


def _dual(size: Any, start: Any, room: Any, firsts: Any, settings: Any, out: Any) -> None:
    """Subgradient ascent on what it costs to find a place for each partition; see `least_bytes`.

    Sizes are in the order of nodes: those of node n from start[n] to start[n + 1], at the end those of none.
    """
    rounds, target, cell, width = settings[0], settings[1], settings[2], settings[3]
    total, nnodes = len(size), len(room)
    none = np.int64(1 << 60)
    price = np.zeros(total, np.int64)
    gain = np.empty(width + 1, np.int64)
    took = np.zeros((total, width + 1), np.uint8)
    loss = np.empty(width + 1, np.int64)
    gave = np.zeros((total, width + 1), np.uint8)
    covered = np.empty(total, np.int64)
    base = np.int64(0)
    for i in range(start[nnodes], total):
        base += size[i]
    best = np.int64(-1)
    stale = 0
    theta = 1.0
    kept = np.zeros(total, np.int64)
    for round_ in range(rounds):
        if round_ < len(firsts):
            for i in range(total):
                price[i] = max(0, size[i] - firsts[round_])
        elif round_ == len(firsts):
            price[:] = kept
        # The best that any node could make of taking k cells.
        gain[:] = -none
        gain[0] = 0
        top = 0
        for i in range(total):
            x = price[i]
            if x <= 0:
                continue
            c = size[i] // cell
            top = min(top + c, width)
            for k in range(top, c - 1, -1):
                g = gain[k - c] + x
                if gain[k - c] >= 0 and g > gain[k]:
                    gain[k] = g
                    took[i, k] = 1
                else:
                    took[i, k] = 0
        covered[:] = 1
        value = base
        for i in range(start[nnodes], total):
            covered[i] = 0
            value += price[i]
        for n in range(nnodes):
            # The least that this node loses when it gives up k cells.
            most = -(-(top * cell - room[n]) // cell)
            most = min(max(most, 0), width)
            loss[: most + 1] = none
            loss[0] = 0
            for i in range(start[n], start[n + 1]):
                c = -(-size[i] // cell)
                x = size[i] + price[i]
                for k in range(most, 0, -1):
                    rest = loss[max(0, k - c)] + x
                    if rest < loss[k]:
                        loss[k] = rest
                        gave[i, k] = 1
                    else:
                        gave[i, k] = 0
            v = -none
            arg = 0
            for k in range(top + 1):
                if gain[k] < 0:
                    continue
                y = k * cell - room[n]
                need = 0 if y <= 0 else min(-(-y // cell), width)
                least = max(loss[need], y)
                if gain[k] - least > v:
                    v, arg = gain[k] - least, k
            value -= v
            y = arg * cell - room[n]
            need = 0 if y <= 0 else min(-(-y // cell), width)
            for i in range(start[n + 1] - 1, start[n] - 1, -1):
                if need > 0 and gave[i, need]:
                    covered[i] -= 1
                    need = max(0, need - -(-size[i] // cell))
            for i in range(total - 1, -1, -1):
                if price[i] > 0 and arg >= size[i] // cell and took[i, arg]:
                    c = size[i] // cell
                    covered[i] += 1
                    arg -= c
        if value > best:
            best = value
            stale = 0
            kept[:] = price
        else:
            stale += 1
            if stale == 8:
                theta *= 0.7
                stale = 0
        norm = 0
        for i in range(total):
            if price[i] > 0 or covered[i] < 1:
                norm += (1 - covered[i]) * (1 - covered[i])
        if norm == 0 or target <= value:
            break
        step = theta * (target - value) / norm
        for i in range(total):
            raised = price[i] + np.int64(step * (1 - covered[i]))
            price[i] = min(max(0, raised), 4 * size[i])
    out[0] = best


class _Kernels(NamedTuple):
    search: Callable[..., None]
    dual: Callable[..., None]


@once
def _kernels() -> _Kernels:
    """The compiled kernels. numba is imported here, so that plans for equal sizes never do it."""
    import numba

    int64, int32, table = numba.int64[::1], numba.int32[::1], numba.uint8[:, ::1]
    return _Kernels(
        compiled(_search, int64, int32, int32, int32, int64, int64, int64, int64, table, int64, int32, int64),
        compiled(_dual, int64, int64, int64, int64, int64, int64),
    )
