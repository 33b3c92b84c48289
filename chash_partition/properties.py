"""What a placement is judged by: balance, monotonicity, spread, load and smoothness, each as a number.

The measures know nothing of how keys came to their nodes. They take owners, an array of node names with one
for each key, as `HashRing.owners` and `Layout.owners` give them. (What is said of keys holds of partitions,
with one owner for each of those.) All are by weight: a node of weight 2 is to have twice the keys.

    balance        how far the fullest node is above its share, and how much nodes differ
    monotonicity   keys that moved between two nodes that nothing happened to: should be none
    smoothness     share of the keys that moved, against the share that had to
    spread         number of owners one key has among clients that see different nodes
    load           number of keys one node gets from all those clients

They are from Karger et al., "Consistent Hashing and Random Trees" (STOC 1997), sections 1 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import inf, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from chash_partition.ring import HASH_BITS, HashRing, node_name, node_weights, some

__all__ = [
    "Balance",
    "Smoothness",
    "balance",
    "counts",
    "load",
    "monotonicity",
    "shares",
    "smoothness",
    "spread",
]

Nodes = Iterable[str | int] | Mapping[Any, Any]
Owners = npt.NDArray[np.object_]


class Balance(NamedTuple):
    """How evenly nodes are filled. Both are ratios, without unit.

    Attributes
    ----------
    max_over_mean : float
        Largest ratio of what a node has to its share. 1 is perfect; 1.25 says that some node has a quarter
        too much.
    variation : float
        Coefficient of variation: the standard deviation of that ratio over the nodes, each counted by its
        share. The mean ratio is 1. 0 is perfect.
    """

    max_over_mean: float
    variation: float


class Smoothness(NamedTuple):
    """How much moved, and how much had to. Both are shares, from 0 to 1.

    Attributes
    ----------
    moved : float
        Share of the keys whose owner is another than before.
    changed : float
        Sum, over the nodes whose share of all weight grew, of what it grew by: the least share of the keys
        that can move between two perfectly balanced placements. If one node joins n equal ones it is
        1/(n + 1); if one of n leaves, 1/n.
    """

    moved: float
    changed: float

    @property
    def ratio(self) -> float:
        """What moved over what had to. 1 is perfect; inf if something moved and nothing had to.

        nan if neither. Below 1 says that the placement was out of balance, before or after.

        Examples
        --------
        >>> Smoothness(moved=0.75, changed=0.25).ratio
        3.0
        """
        if self.changed:
            return self.moved / self.changed
        return inf if self.moved else nan


def balance(held: Mapping[str, float], nodes: Nodes) -> Balance:
    """How evenly the nodes are filled, by weight.

    Parameters
    ----------
    held : mapping {name: number}
        What each node has, in keys, rows, partitions, bytes: as `counts` or `Layout.counts` give it. A node
        that is not in it has nothing.
    nodes : iterable of names, or mapping {name: weight}

    Returns
    -------
    Balance

    Raises
    ------
    ValueError
        If there is no node, nobody has anything, or someone who is not among the nodes has.

    Notes
    -----
    With share s(n) = weight / sum of weights and ratio r(n) = held / (s(n) * sum of held), max_over_mean is
    max r(n), and variation is sqrt(sum s(n) * (r(n) - 1)^2). For equal weights these are the largest over the
    mean, and the (population) standard deviation over the mean.

    Examples
    --------
    >>> balance({"a": 50, "b": 30, "c": 40}, ["a", "b", "c"])
    Balance(max_over_mean=1.25, variation=0.2041...)
    >>> balance({"big": 40, "small": 20}, {"big": 2, "small": 1})
    Balance(max_over_mean=1.0, variation=0.0)
    """
    weights = node_weights(nodes)
    held = {node_name(name): number for name, number in held.items()}
    for name, number in held.items():
        if number and name not in weights:
            raise ValueError(f"node {name!r} has {number} and is not among the nodes: {some(weights)}")
    total = sum(held.values())
    if not total > 0:
        raise ValueError("no node has anything, so there is no balance")
    share = _shares(weights)
    ratio = {name: held.get(name, 0) / (total * s) for name, s in share.items()}
    return Balance(
        max(map(float, ratio.values())),
        sqrt(sum(float(s) * (float(ratio[name]) - 1) ** 2 for name, s in share.items())),
    )


def counts(owners: Owners) -> dict[str, int]:
    """How many keys each node owns, by name; a node that owns none is not there.

    Parameters
    ----------
    owners : array of names, (n,)

    Examples
    --------
    >>> counts(["b", "a", "b"])
    {'a': 1, 'b': 2}
    """
    codes, names = _numbered(owners)
    return dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))


def shares(ring: HashRing) -> dict[str, float]:
    """Share of the hash space that each node of a ring owns: what its keys are if there are very many.

    Returns
    -------
    dict of float
        By name; their sum is 1.

    Examples
    --------
    >>> shares(HashRing.from_tokens({0: "a", 2**62: "b", 2**63: "a"}))
    {'a': 0.75, 'b': 0.25}
    """
    around = 2.0 ** HASH_BITS[ring.hash]
    tokens = ring._tokens.astype(float)
    arcs = np.diff(tokens, prepend=tokens[-1] - around)  # each token's, from the one before it
    lengths = np.bincount(ring._owners[:-1], arcs, len(ring.nodes)) / around
    return dict(zip(ring.nodes, lengths.tolist(), strict=True))


def monotonicity(before: Owners, after: Owners, old: Nodes, new: Nodes) -> int:
    """Number of keys that moved between two nodes that nothing happened to.

    Parameters
    ----------
    before, after : array of names, (n,)
        Owner of each key.
    old, new : iterable of names, or mapping {name: weight}
        The nodes before and after. Nothing happened to those that are in both with the same weight.

    Returns
    -------
    int
        In keys. 0 is perfect: who joins only takes, who leaves only gives.

    Raises
    ------
    ValueError
        If there are not as many owners after as before, or no nodes.

    Examples
    --------
    Node c joins. One key moves to it, as it should; one moves from a to b for nothing:

    >>> monotonicity(["a", "a", "a", "b"], ["a", "b", "c", "b"], ["a", "b"], ["a", "b", "c"])
    1
    """
    old, new = node_weights(old), node_weights(new)
    same = [name for name in old if new.get(name) == old[name]]
    left, came = _moves(before, after)
    return int(np.count_nonzero(np.isin(left, same) & np.isin(came, same)))


def smoothness(before: Owners, after: Owners, old: Nodes, new: Nodes) -> Smoothness:
    """Share of the keys that moved, and the share that had to.

    Parameters
    ----------
    before, after : array of names, (n,)
        Owner of each key.
    old, new : iterable of names, or mapping {name: weight}
        The nodes before and after.

    Returns
    -------
    Smoothness

    Raises
    ------
    ValueError
        If there are not as many owners after as before, there is none, or no nodes.

    Notes
    -----
    What had to move is the distance in total variation of the shares before and after.

    Examples
    --------
    >>> smoothness(["a", "a", "b", "b"], ["a", "c", "b", "a"], ["a", "b"], ["a", "b", "c"])
    Smoothness(moved=0.5, changed=0.333...)
    """
    share, wanted = _shares(node_weights(old)), _shares(node_weights(new))
    grown = sum(max(s - share.get(name, 0), Fraction(0)) for name, s in wanted.items())
    if not len(before):
        raise ValueError("there are no keys, so no share of them moved")
    return Smoothness(len(_moves(before, after)[0]) / len(before), float(grown))


def spread(views: Owners) -> npt.NDArray[np.int64]:
    """Number of different owners that each key has among clients that see different nodes.

    Parameters
    ----------
    views : array of names, (clients, n)
        The owner of each key as each client sees it.

    Returns
    -------
    ndarray of int64, (n,)
        In nodes, from 1. 1 is perfect: all clients look for the key at one node.

    Raises
    ------
    ValueError
        If the array is not of two dimensions.

    Examples
    --------
    >>> spread([["a", "a", "b"], ["a", "c", "c"]]).tolist()
    [1, 2, 2]
    """
    first, _ = _owners_of(views)
    return np.asarray(np.count_nonzero(first >= 0, axis=0))


def load(views: Owners) -> dict[str, int]:
    """Number of different keys that each node gets from all clients together.

    Parameters
    ----------
    views : array of names, (clients, n)
        The owner of each key as each client sees it.

    Returns
    -------
    dict of int
        In keys, by name. Perfect is what the node would own if all clients saw all nodes.

    Raises
    ------
    ValueError
        If the array is not of two dimensions.

    Examples
    --------
    >>> load([["a", "a", "b"], ["a", "c", "c"]])
    {'a': 2, 'b': 1, 'c': 2}
    """
    first, names = _owners_of(views)
    return dict(zip(names, np.bincount(first[first >= 0], minlength=len(names)).tolist(), strict=True))


def _shares(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _numbered(owners: Owners) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Owners as indices into their names, sorted."""
    codes, names = pd.factorize(np.asarray(owners, dtype=object).ravel(), sort=True)
    return codes.reshape(np.shape(owners)), list(names)


def _moves(before: Owners, after: Owners) -> tuple[Owners, Owners]:
    """Owner before and owner after of those keys for which they differ."""
    before, after = np.asarray(before, dtype=object), np.asarray(after, dtype=object)
    if before.shape != after.shape:
        raise ValueError(f"needs an owner before and after of each key, got {len(before)} and {len(after)}")
    moved = before != after
    return before[moved], after[moved]


def _owners_of(views: Owners) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The owners of each key in its column, each once and -1 where it repeats; and the names they index."""
    if np.ndim(views) != 2:
        raise ValueError(f"views must be of shape (clients, keys), got {np.shape(views)}")
    codes, names = _numbered(views)
    codes = np.sort(codes, axis=0)
    codes[1:][codes[1:] == codes[:-1]] = -1  # both sides are read before anything is written
    return codes, names
