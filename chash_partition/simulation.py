"""What a history of joins, leaves, crashes and changes of weight costs, by method.

A method is two functions: `change` gives the next placement from the last one and the nodes there are now,
and `owners` gives the node of each key hash in a placement. "bounded" and "ring" are layouts and plans as
everywhere in this package. The others are here to compare with, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from chash_partition.hashing import hash_keys, partition_ids, xxh64
from chash_partition.layout import Layout
from chash_partition.planner import plan_rebalance
from chash_partition.properties import balance, counts, load, monotonicity, smoothness, spread
from chash_partition.ring import node_name, node_weight, node_weights, some

__all__ = ["simulate"]

Hashes = npt.NDArray[np.uint64]
Owners = npt.NDArray[np.object_]
Weights = Mapping[str, Fraction]

CLIENTS = 8  # for spread and load: so many clients,
SEEN = Fraction(1, 2)  # of which each sees this share of the nodes


def simulate(
    trace: Iterable[tuple[Any, ...]],
    nodes: Iterable[str | int] | Mapping[Any, Any],
    *,
    keys: Any = None,
    npartitions: int = 1024,
    vnodes: int = 256,
    seed: int = 0,
) -> pd.DataFrame:
    """Replay a trace of events, and measure what each costs with each method.

    Parameters
    ----------
    trace : iterable of tuples
        What happens, in order: ``("join", name)`` or ``("join", name, weight)``, ``("leave", name)``,
        ``("crash", name)``, ``("weight", name, weight)``. A node that leaves hands over its keys first; what
        a node had that crashes is lost, and is computed or read again on the new owners.
    nodes : iterable of names, or mapping {name: weight}
        The nodes at the start.
    keys : as `hash_keys` takes them, optional
        By default the integers below 100,000.
    npartitions, vnodes, seed : int
        As for `Layout.create`.

    Returns
    -------
    DataFrame
        One row for each event and method, with the columns

        - event (from 0), what (as ``"join w4"``), method, nodes (how many there are then);
        - moved, lost: keys sent by a live node to another, and keys that a crash took;
        - balance, variation: `properties.balance` after the event, in keys;
        - between_old: `properties.monotonicity`, in keys;
        - smoothness: the ratio of `properties.smoothness`, of what moved or was lost;
        - spread, spread_mean: `properties.spread` after the event, of the worst key and on average, in
          nodes, among eight clients that each see half of the nodes, rounded up;
        - load: largest ratio of a node's `properties.load`, from the same clients, to its share of the keys.

    Raises
    ------
    ValueError
        If an event is not one of those, joins a node that is there, or is about a node that is not there or
        the only one; before anything is computed. If there are no keys. As `Layout.create`, for the other
        arguments.

    Notes
    -----
    The methods, with n nodes:

    - modulo: the key hash modulo n, into the nodes in the order in which they joined. It knows no weights.
    - ring, bounded: the node of the key's partition, by `Layout.create` with that placement and
      `plan_rebalance` from each layout to the next. A client that does not see all nodes plans from the
      layout to those it sees.
    - jump: jump consistent hash of the key hash (Lamping and Veach, 2014). It knows buckets numbered from 0,
      and only the last can be taken away. So if another node leaves, the last one takes its number, as
      whoever uses it must arrange: it gets the keys of the one that left, and its own go to all. It knows no
      weights.
    - rendezvous: the node with the highest score for the key (Thaler and Ravishankar, 1998), which is
      ln(u) / weight of a u that is a hash of key and node, uniform from 0 to 1 (Schindelhauer and Schomaker,
      2005). Time for a key grows with n.

    An event takes about half a second for 100,000 keys and some ten nodes; long traces want fewer keys.

    Examples
    --------
    >>> trace = [("join", "w4"), ("crash", "w1")]
    >>> result = simulate(trace, ["w0", "w1", "w2", "w3"], keys=list(range(10_000)))
    >>> result.pivot(index="what", columns="method", values="moved")
    method    bounded  jump  modulo  rendezvous  ring
    what
    crash w1        0  1504    6127           0     0
    join w4      1980  1986    8017        2012  1954
    """
    weights: Weights = node_weights(nodes)
    steps = list(_steps(trace, weights))
    hashes = hash_keys(np.arange(100_000) if keys is None else keys, seed=seed)
    if not len(hashes):
        raise ValueError("there are no keys, so there is nothing to place and measure")
    methods = _methods(npartitions, vnodes, seed)
    placements = {name: method.change(None, weights) for name, method in methods.items()}
    owners = {name: method.owners(placements[name], hashes) for name, method in methods.items()}
    rows = []
    for number, (event, now) in enumerate(steps):
        views = _views(now)
        for name, method in methods.items():
            placement = method.change(placements[name], now)
            before, after = owners[name], method.owners(placement, hashes)
            lost = int(np.count_nonzero(before == event.node)) if event.kind == "crash" else 0
            seen = np.array([method.owners(method.change(placement, view), hashes) for view in views])
            spreads = spread(seen)
            rows.append(
                Row(
                    number,
                    f"{event.kind} {event.node}",
                    name,
                    len(now),
                    int(np.count_nonzero(before != after)) - lost,
                    lost,
                    *balance(counts(after), now),
                    monotonicity(before, after, weights, now),
                    smoothness(before, after, weights, now).ratio,
                    int(spreads.max()),
                    float(spreads.mean()),
                    _largest_load(load(seen), now, len(hashes)),
                )
            )
            placements[name], owners[name] = placement, after
        weights = now
    return pd.DataFrame(rows, columns=list(Row._fields))


class Row(NamedTuple):
    """What `simulate` finds for one event and method."""

    event: int
    what: str
    method: str
    nodes: int
    moved: int
    lost: int
    balance: float
    variation: float
    between_old: int
    smoothness: float
    spread: int
    spread_mean: float
    load: float


# Events


class Event(NamedTuple):
    """Something that happens to one node."""

    kind: str
    node: str
    weight: Fraction | None  # of a node that joins or gets another


def _steps(trace: Iterable[tuple[Any, ...]], weights: Weights) -> Iterator[tuple[Event, Weights]]:
    """Each event, checked, with the nodes there are after it."""
    if isinstance(trace, (str, bytes)) or not isinstance(trace, Iterable):
        raise ValueError(f"trace must be a list of events, as ('join', 'w4'), got {trace!r}")
    for number, given in enumerate(trace):
        try:
            event = _event(given)
            if event.kind == "join" and event.node in weights:
                raise ValueError("that node is there already: a node joins once")
            if event.kind != "join" and event.node not in weights:
                raise ValueError(f"that node is not there: the nodes are {some(weights)}")
            rest = {name: weight for name, weight in weights.items() if name != event.node}
            if event.weight is None and not rest:
                raise ValueError("that is the last node, and nothing is left to own its keys")
        except ValueError as error:
            raise ValueError(f"event {number} of the trace, {given!r}: {error}") from None
        weights = rest if event.weight is None else dict(sorted({**rest, event.node: event.weight}.items()))
        yield event, weights


def _event(given: Any) -> Event:
    match given:
        case ("join", node):
            return Event("join", node_name(node), Fraction(1))
        case ("join" | "weight" as kind, node, weight):
            return Event(kind, node_name(node), node_weight(node_name(node), weight))
        case ("leave" | "crash" as kind, node):
            return Event(kind, node_name(node), None)
    raise ValueError(
        "an event is ('join', name), ('join', name, weight), ('leave', name), ('crash', name) "
        "or ('weight', name, weight)"
    )


# Methods


class Method(NamedTuple):
    """How keys come to nodes."""

    change: Callable[[Any, Weights], Any]  # a placement, or None at first, and nodes -> the next placement
    owners: Callable[[Any, Hashes], Owners]  # a placement and (n,) key hashes -> (n,) names


def _methods(npartitions: int, vnodes: int, seed: int) -> dict[str, Method]:
    def planned(placement: str) -> Method:
        def change(layout: Layout | None, weights: Weights) -> Layout:
            if layout is None:
                return Layout.create(
                    "key", npartitions, weights, placement=placement, vnodes=vnodes, seed=seed
                )
            return plan_rebalance(layout, weights).after

        return Method(change, _layout_owners)

    return {
        "modulo": Method(_listed, _modulo_owners),
        "ring": planned("ring"),
        "bounded": planned("bounded"),
        "jump": Method(_numbered, _jump_owners),
        "rendezvous": Method(lambda _, weights: weights, _rendezvous_owners),
    }


def _layout_owners(layout: Layout, hashes: Hashes) -> Owners:
    return _names(layout.nodes, layout.assignment[partition_ids(hashes, layout.npartitions)])


def _listed(nodes: tuple[str, ...] | None, weights: Weights) -> tuple[str, ...]:
    """Nodes in the order in which they joined."""
    kept = [name for name in nodes or () if name in weights]
    return (*kept, *(name for name in weights if name not in kept))


def _modulo_owners(nodes: tuple[str, ...], hashes: Hashes) -> Owners:
    return _names(nodes, hashes % np.uint64(len(nodes)))


def _numbered(buckets: tuple[str, ...] | None, weights: Weights) -> tuple[str, ...]:
    """The node of each bucket: into the number of one that left goes the last, and new ones come last."""
    kept = list(buckets or ())
    for number in reversed(range(len(kept))):
        if kept[number] not in weights:
            last = kept.pop()
            if number < len(kept):
                kept[number] = last
    return _listed(tuple(kept), weights)


def _jump_owners(buckets: tuple[str, ...], hashes: Hashes) -> Owners:
    return _names(buckets, _jump(hashes, len(buckets)))


def _jump(hashes: Hashes, n: int) -> npt.NDArray[np.int64]:
    """Bucket of each hash, from 0 to n - 1: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash
    Algorithm", 2014, figure 1."""
    state, bucket = hashes.copy(), np.zeros(len(hashes), dtype=np.int64)
    jumping = np.arange(len(hashes))
    at = bucket[jumping]
    while len(jumping):
        bucket[jumping] = at
        state[jumping] = state[jumping] * np.uint64(2862933555777941757) + np.uint64(1)
        step = 2.0**31 / ((state[jumping] >> np.uint64(33)).astype(float) + 1)
        at = ((at + 1) * step).astype(np.int64)
        jumping, at = jumping[at < n], at[at < n]
    return bucket


def _rendezvous_owners(weights: Weights, hashes: Hashes) -> Owners:
    best, owner = np.full(len(hashes), -np.inf), np.zeros(len(hashes), dtype=np.int64)
    for number, (name, weight) in enumerate(weights.items()):
        mixed = _mix(hashes ^ np.uint64(xxh64(name.encode())))
        uniform = ((mixed >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53
        score = np.log(uniform) / float(weight)
        better = score > best
        best[better], owner[better] = score[better], number
    return _names(weights, owner)


def _mix(words: Hashes) -> Hashes:
    """Unrelated words for words that differ in any bit: the finalizer of SplitMix64 (Steele et al., 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# Clients


def _views(weights: Weights) -> list[Weights]:
    """The nodes that each client sees: those of the smallest hash with it, so views change little."""
    seen = ceil(len(weights) * SEEN)
    views: list[Weights] = []
    for client in range(CLIENTS):
        order = sorted(weights, key=lambda name: (xxh64(name.encode(), client), name))
        views.append({name: weights[name] for name in sorted(order[:seen])})
    return views


def _largest_load(loads: Mapping[str, int], weights: Weights, total: int) -> float:
    """Largest ratio of the keys that a node gets to its share of them."""
    unit = float(total / sum(weights.values()))
    return max(number / (unit * float(weights[name])) for name, number in loads.items())


def _names(nodes: Iterable[str], indices: npt.NDArray[Any]) -> Owners:
    return np.asarray(np.array(list(nodes), dtype=object)[indices])
