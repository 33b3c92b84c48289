"""The hash ring: nodes at many positions around 2^64; a hash belongs to the first of them clockwise.

The whole structure is one sorted array of tokens and, beside it, the node of each token.

- `HashRing.owners_at`: one binary search; the first token at or after a point, wrapping at the end.
- `HashRing.preference_at`: the walk on from there, each node once.
- `HashRing.steps_to` and `HashRing.fill`: the same walk, to the first token of a node out of some. `Layout`
  places partitions with them, and the planner moves partitions with them.

Consistent hashing is from Karger et al., "Consistent Hashing and Random Trees" (STOC 1997); virtual nodes and
preference lists as in Amazon's Dynamo (SOSP 2007).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from hashlib import md5
from itertools import chain
from operator import index
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from chash_partition.hashing import canonical_bytes, hash_key, hash_keys, xxh64

__all__ = ["HashRing"]

MAX_WEIGHT = 1024
HASH_BITS = {"xxh64": 64, "md5": 32}  # how far around each kind of ring is


class HashRing:
    """Tokens of nodes, sorted around the hash space. Immutable; equal by value.

    Parameters
    ----------
    nodes : iterable of str or int, or mapping {name: weight}
        Names, each of weight 1, or names with weights. An int is the name ``str(int)``, as Dask names its
        workers. Weights are exact: ``Fraction(str(weight))``, more than 0 and at most 1024.
    vnodes : int
        Tokens of a node of weight 1. A node has ``max(1, round(vnodes * weight))`` of them.
    hash : "xxh64" or "md5"
        "md5" takes the first 4 bytes, big-endian, of the digest, so its ring is 2^32 around. It has no seed.
    seed : int
        Seed of XXH64, for tokens and for keys.

    Raises
    ------
    ValueError
        If there is no node, a node is named twice, a weight is out of range, or a parameter is.

    Notes
    -----
    Token i of node n, from 1, is the hash of the UTF-8 bytes of ``f"{n}#{i}"``. Of equal tokens, the one of
    the smaller name comes first. After Karger et al., "Consistent Hashing and Random Trees", STOC 1997.

    Examples
    --------
    >>> ring = HashRing(["w0", "w1", "w2"])
    >>> ring.owner("N14228")
    'w2'
    >>> ring.owners(["N14228", "N24211"]).tolist()
    ['w2', 'w1']
    >>> more = ring.with_nodes(["w3"])
    >>> more.nodes
    ('w0', 'w1', 'w2', 'w3')

    With a new node, a key stays where it is or goes to the new node; none moves between old ones:

    >>> keys = list(range(1000))
    >>> {(a, b) for a, b in zip(ring.owners(keys), more.owners(keys)) if a != b} == {
    ...     ("w0", "w3"), ("w1", "w3"), ("w2", "w3")}
    True
    """

    __slots__ = ("_hash", "_names", "_owners", "_seed", "_tokens", "_vnodes", "_weights")

    _weights: dict[str, Fraction]
    _vnodes: int | None
    _hash: str
    _seed: int
    _names: npt.NDArray[np.object_]  # (N,) sorted
    _tokens: npt.NDArray[np.uint64]  # (T,) sorted
    _owners: npt.NDArray[np.int32]  # (T + 1,) index into names; the last is the first again: the wrap

    def __init__(
        self,
        nodes: Iterable[str | int] | Mapping[Any, Any],
        *,
        vnodes: int = 256,
        hash: str = "xxh64",
        seed: int = 0,
    ) -> None:
        weights = node_weights(nodes)
        vnodes = integer("vnodes", vnodes, 1)
        seed = check_hash(hash, seed)
        counts = [max(1, round(vnodes * weight)) for weight in weights.values()]
        tokens = [node_tokens(name, n, hash, seed) for name, n in zip(weights, counts, strict=True)]
        self._build(
            weights, np.concatenate(tokens), np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        )
        self._vnodes, self._hash, self._seed = vnodes, hash, seed

    def _build(
        self, weights: dict[str, Fraction], tokens: npt.NDArray[np.uint64], owners: npt.NDArray[np.int32]
    ) -> None:
        order = np.argsort(tokens, kind="stable")  # owners ascend by name: equal tokens stay in that order
        self._weights = weights
        self._names = np.array(list(weights), dtype=object)
        self._tokens = tokens[order]
        self._owners = owners[np.append(order, order[0])]

    @classmethod
    def from_tokens(cls, tokens: Mapping[int, str | int], *, hash: str = "xxh64", seed: int = 0) -> HashRing:
        """A ring with its tokens at given positions.

        Parameters
        ----------
        tokens : mapping {token: node}
            Positions from 0 up to 2^64 (2^32 for "md5"), each with the name of its node. All weights are 1.
        hash, seed
            How keys are hashed.

        Raises
        ------
        ValueError
            If there is no token or one is out of range.

        Examples
        --------
        Ten items and three nodes; then a fourth node joins at 216 and takes two items from the node after it:

        >>> items = [192, 196, 200, 204, 208, 212, 216, 220, 224, 228]
        >>> ring = HashRing.from_tokens({203: "a", 209: "g", 228: "z"})
        >>> " ".join(ring.owners_at(items))
        'a a a g g z z z z z'
        >>> " ".join(HashRing.from_tokens({203: "a", 209: "g", 228: "z", 216: "n"}).owners_at(items))
        'a a a g g n n z z z'
        """
        ring = cls.__new__(cls)
        ring._vnodes, ring._hash, ring._seed = None, hash, check_hash(hash, seed)
        if not isinstance(tokens, Mapping):
            raise ValueError(f"tokens must be a mapping {{token: node}}, got {type(tokens).__name__}")
        at = {integer("token", t, 0, 2 ** HASH_BITS[hash] - 1): node_name(node) for t, node in tokens.items()}
        weights = node_weights(set(at.values()))
        number = {name: i for i, name in enumerate(weights)}
        ring._build(
            weights,
            np.array(list(at), dtype=np.uint64),
            np.array([number[name] for name in at.values()], dtype=np.int32),
        )
        return ring

    # What it is made of

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, sorted."""
        return tuple(self._weights)

    @property
    def weights(self) -> Mapping[str, Fraction]:
        """Weight of each node, by name. Read-only."""
        return MappingProxyType(self._weights)

    @property
    def vnodes(self) -> int | None:
        """Tokens of a node of weight 1; None if the tokens were given."""
        return self._vnodes

    @property
    def hash(self) -> str:
        """Name of the hash function."""
        return self._hash

    @property
    def seed(self) -> int:
        """Seed of the hash function."""
        return self._seed

    @property
    def tokens(self) -> list[tuple[int, str]]:
        """Every token with its node, in ring order."""
        return list(zip(self._tokens.tolist(), self._names[self._owners[:-1]].tolist(), strict=True))

    def tokens_of(self, node: str | int) -> npt.NDArray[np.uint64]:
        """Tokens of one node.

        Returns
        -------
        ndarray of uint64, (its number of tokens,)
            Ascending.

        Raises
        ------
        ValueError
            If the ring has no such node.

        Examples
        --------
        >>> HashRing.from_tokens({203: "a", 209: "g", 228: "a"}).tokens_of("a").tolist()
        [203, 228]
        """
        number = self.nodes.index(known_node(node, self._weights))
        return self._tokens[np.flatnonzero(self._owners[:-1] == number)]

    # Who owns what

    def owner(self, key: object) -> str:
        """Node that owns a key: `owners` for one. A tuple is the key of several columns.

        Examples
        --------
        >>> HashRing(["w0", "w1", "w2"]).owner("N14228")
        'w2'
        """
        return self.preference(key, 1)[0]

    def owners(self, keys: Any) -> npt.NDArray[np.object_]:
        """Node that owns each key.

        Parameters
        ----------
        keys : as `hash_keys` takes them
            One column of keys, or a frame or table of several. One column only for "md5".

        Returns
        -------
        ndarray of object, (n,)
            Names.

        Examples
        --------
        >>> HashRing(["w0", "w1", "w2"]).owners(["N14228", "N24211"]).tolist()
        ['w2', 'w1']
        """
        if self._hash == "xxh64":
            return self.owners_at(hash_keys(keys, seed=self._seed))
        if getattr(keys, "ndim", 1) != 1 or hasattr(keys, "column_names"):
            raise ValueError('hash="md5" takes one column of keys; use "xxh64" for several')
        values = keys.to_pylist() if hasattr(keys, "to_pylist") else list(keys)
        return self.owners_at(np.fromiter(map(self._point, values), np.uint64, len(values)))

    def owners_at(self, points: npt.ArrayLike) -> npt.NDArray[np.object_]:
        """Node that owns each point of the ring.

        Parameters
        ----------
        points : array of uint64, (n,)

        Returns
        -------
        ndarray of object, (n,)
            Names.

        Examples
        --------
        A token owns its own position, and the points from the last token on belong to the first:

        >>> HashRing.from_tokens({203: "a", 209: "g"}).owners_at([203, 204, 209, 210]).tolist()
        ['a', 'g', 'g', 'a']
        """
        return self._names[self.owner_indices(points)]

    def owner_indices(self, points: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """As `owners_at`, as indices into `nodes`.

        Examples
        --------
        >>> HashRing.from_tokens({203: "a", 209: "g"}).owner_indices([203, 204, 209, 210]).tolist()
        [0, 1, 1, 0]
        """
        points = ring_points(points)
        bits = (32 * len(self._tokens)).bit_length()
        if len(points) < 2**bits:
            return self._owners[np.searchsorted(self._tokens, points)]
        # Of many points, most lie in arcs with no token inside, whose owner is known: a table of equal arcs
        # knows it, or -1, and only what is left needs a search. As groupcache does.
        shift = np.uint64(64 - bits)
        first = np.searchsorted(self._tokens, np.arange(2**bits, dtype=np.uint64) << shift)
        empty = first == np.append(first[1:], len(self._tokens))
        owners: npt.NDArray[np.int32] = np.where(empty, self._owners[first], np.int32(-1))[points >> shift]
        rest = np.flatnonzero(owners < 0)
        owners[rest] = self._owners[np.searchsorted(self._tokens, points[rest])]
        return owners

    def preference(self, key: object, n: int | None = None) -> list[str]:
        """The first n distinct nodes clockwise from a key: its owner, then who is next if that one is gone.

        Parameters
        ----------
        key : scalar, or tuple for several columns
        n : int, optional
            From 1 to the number of nodes; all by default.

        Raises
        ------
        ValueError
            If n is out of that range.

        Notes
        -----
        The preference list of Dynamo: DeCandia et al., SOSP 2007, section 4.3.

        Examples
        --------
        >>> HashRing(["w0", "w1", "w2"]).preference("N14228", 2)
        ['w2', 'w0']
        """
        return self.preference_at(self._point(key), n)

    def preference_at(self, point: int, n: int | None = None) -> list[str]:
        """As `preference`, from a point of the ring.

        Examples
        --------
        >>> HashRing.from_tokens({203: "a", 209: "g", 220: "a", 228: "z"}).preference_at(205)
        ['g', 'a', 'z']
        """
        n = integer("n", len(self._names) if n is None else n, 1, len(self._names))
        start = int(np.searchsorted(self._tokens, ring_points([point]))[0])
        found: dict[str, None] = {}
        for position in chain(range(start, len(self._tokens)), range(start)):
            found.setdefault(self._names[self._owners[position]])
            if len(found) == n:
                break
        return list(found)

    def _point(self, key: object) -> int:
        if self._hash == "xxh64":
            return hash_key(key, self._seed)
        data = canonical_bytes(key)
        return 0 if data is None else md5_32(data)

    # The walks that placing and planning are made of

    def steps_to(self, points: npt.ArrayLike, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Number of tokens passed on the way from each point to the first token of a chosen node.

        Parameters
        ----------
        points : array of uint64, (n,)
        chosen : ndarray of bool, (number of nodes,)
            At least one is.

        Returns
        -------
        ndarray of int64, (n,)

        Examples
        --------
        >>> import numpy as np
        >>> ring = HashRing.from_tokens({203: "a", 209: "g", 228: "z"})
        >>> ring.steps_to([200, 205, 228, 229], np.array([False, False, True])).tolist()
        [2, 1, 0, 2]
        """
        start = np.searchsorted(self._tokens, ring_points(points))
        ends = np.flatnonzero(chosen[self._owners[:-1]])
        end = ends[np.searchsorted(ends, start) % len(ends)]
        return np.asarray((end - start) % len(self._tokens), dtype=np.int64)

    def fill(self, points: npt.ArrayLike, room: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Send each point in turn to the first node clockwise that has room, and take one off its room.

        Parameters
        ----------
        points : array of uint64, (n,)
            In the order in which they choose.
        room : ndarray of int64, (number of nodes,)
            How many points each node may take.

        Returns
        -------
        ndarray of int32, (n,)
            Index into `nodes` of the node of each point.

        Raises
        ------
        ValueError
            If there are more points than room.

        Notes
        ----- Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018. The tokens
        of full nodes are skipped with a disjoint-set forest (Tarjan, 1975), so a walk takes amortised O(log
        tokens) steps however full the ring is.

        Examples
        --------
        >>> import numpy as np
        >>> ring = HashRing.from_tokens({203: "a", 209: "g", 228: "z"})
        >>> ring.fill([200, 201, 202, 203], np.array([2, 1, 1])).tolist()
        [0, 0, 1, 2]
        """
        points = ring_points(points)
        if len(points) > room.sum():
            raise ValueError(f"{len(points)} points do not fit into room for {room.sum()}")
        open_ = np.flatnonzero((room > 0)[self._owners[:-1]])
        owners = self._owners[open_]
        starts = np.searchsorted(self._tokens[open_], points) % max(1, len(open_))
        tokens_of = np.split(
            np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners, minlength=len(room)))
        )
        owner, left = owners.tolist(), room.tolist()
        onward = list(range(len(open_)))  # itself while the token's node has room, else some token further on
        filled = np.empty(len(points), dtype=np.int32)
        for i, token in enumerate(starts.tolist()):
            while onward[token] != token:
                onward[token] = token = onward[onward[token]]  # halve the way for the next walk
            node = filled[i] = owner[token]
            left[node] -= 1
            if not left[node]:
                for full in tokens_of[node].tolist():
                    onward[full] = full + 1 if full + 1 < len(onward) else 0
        return filled

    # New rings from this one

    def with_nodes(self, nodes: Iterable[str | int] | Mapping[Any, Any]) -> HashRing:
        """A new ring with these nodes too; a node it has already gets the weight given.

        Parameters
        ----------
        nodes : iterable of names, or mapping {name: weight}
            Without weights, a node it has already keeps its own, and a new one gets 1.

        Raises
        ------
        ValueError
            As `HashRing`; also for a ring whose tokens were given, as nothing says where a new node's would
            be.

        Examples
        --------
        >>> HashRing(["w0", "w1"]).with_nodes({"w1": 2, "w2": 1}).weights["w1"]
        Fraction(2, 1)
        """
        if self._vnodes is None:
            raise ValueError("the tokens of this ring were given: make the new one with HashRing.from_tokens")
        weights = {**self._weights, **node_weights(nodes, self._weights)}
        return HashRing(weights, vnodes=self._vnodes, hash=self._hash, seed=self._seed)

    def without_nodes(self, names: Iterable[str | int]) -> HashRing:
        """A new ring without these nodes.

        Raises
        ------
        ValueError
            If a name is not on the ring, or none would be left.

        Examples
        --------
        >>> HashRing(["w0", "w1", "w2"]).without_nodes(["w1"]).nodes
        ('w0', 'w2')
        """
        gone = {known_node(name, self._weights) for name in each_node(names)}
        if self._vnodes is None:
            kept = {token: node for token, node in self.tokens if node not in gone}
            return HashRing.from_tokens(kept, hash=self._hash, seed=self._seed)
        weights = {name: weight for name, weight in self._weights.items() if name not in gone}
        return HashRing(weights, vnodes=self._vnodes, hash=self._hash, seed=self._seed)

    # A value

    def _value(self) -> tuple[object, ...]:
        given = tuple(self.tokens) if self._vnodes is None else ()
        return tuple(self._weights.items()), self._vnodes, self._hash, self._seed, given

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if isinstance(other, HashRing) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value())

    def __reduce__(self) -> tuple[Any, ...]:
        if self._vnodes is None:
            return partial(HashRing.from_tokens, hash=self._hash, seed=self._seed), (dict(self.tokens),)
        return partial(HashRing, vnodes=self._vnodes, hash=self._hash, seed=self._seed), (self._weights,)

    def __repr__(self) -> str:
        return f"HashRing({some(self.nodes)}: {len(self._tokens):,} tokens)"


# Checks of what callers give, shared with layouts and plans


def integer(what: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an int, or a ValueError that names it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} must be an integer, got {value!r}") from None
    if number < low or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{what} must be {allowed}, got {number}")
    return number


def check_hash(hash: str, seed: object) -> int:
    """The seed as an int, if hash and seed go together."""
    if not isinstance(hash, str) or hash not in HASH_BITS:
        raise ValueError(f"hash must be one of {', '.join(map(repr, HASH_BITS))}, got {hash!r}")
    number = integer("seed", seed, 0, 2**64 - 1)
    if hash == "md5" and number:
        raise ValueError(f'hash="md5" has no seed: leave seed at 0, or use "xxh64"; got seed {number}')
    return number


def node_name(node: object) -> str:
    """The name of a node: a str, or an int as a str."""
    if isinstance(node, str):
        try:
            node.encode()
        except UnicodeEncodeError:
            raise ValueError(f"node name {node!r} has a lone surrogate and cannot be hashed") from None
        return str(node)
    try:
        return str(integer("", node, -(2**63)))
    except ValueError:
        raise ValueError(f"a node name must be a str or an int, got {node!r}") from None


def known_node(node: object, names: Mapping[str, object]) -> str:
    """The name of a node that is one of these."""
    name = node_name(node)
    if name not in names:
        raise ValueError(f"no node {name!r}: the nodes are {some(names)}")
    return name


def each_node(nodes: Any) -> Iterable[Any]:
    """The nodes, if they are several and not the letters of one."""
    if isinstance(nodes, (str, bytes)) or not isinstance(nodes, Iterable):
        raise ValueError(f"nodes must be a list of names or a mapping {{name: weight}}, got {nodes!r}")
    return nodes


def node_weights(nodes: Any, known: Mapping[str, Fraction] | None = None) -> dict[str, Fraction]:
    """Weights by name, sorted; of bare names, the known weights, or 1."""
    if hasattr(nodes, "to_dict") and not all(isinstance(value, str) for value in nodes):
        if not nodes.index.is_unique:
            raise ValueError("a node is named twice in the index of weights: a name is one node's identity")
        nodes = nodes.to_dict()  # a Series of weights by name
    weights: dict[str, Fraction] = {}
    for node in each_node(nodes):
        name = node_name(node)
        if name in weights:
            raise ValueError(f"node {name!r} is named twice: a name is the identity of one node")
        weights[name] = (
            node_weight(name, nodes[node])
            if isinstance(nodes, Mapping)
            else (known or {}).get(name, Fraction(1))
        )
    if not weights:
        raise ValueError("no nodes: name at least one")
    return dict(sorted(weights.items()))


def node_weight(name: str, weight: object) -> Fraction:
    """The exact weight, by its decimal notation: 0.1 is one tenth, not the binary fraction near it."""
    try:
        exact = Fraction(str(weight))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if not 0 < exact <= MAX_WEIGHT:
        raise ValueError(
            f"weight of node {name!r} must be a number above 0 and at most {MAX_WEIGHT}, got {weight!r}"
        )
    return exact


def some(names: Iterable[str], most: int = 8) -> str:
    """The names for a message; the first few of many."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def ring_points(points: Any) -> npt.NDArray[np.uint64]:
    """Points as uint64, refusing what a cast would silently change."""
    if not hasattr(points, "dtype"):  # numpy would make floats of a list with small and large ints
        return np.array([integer("point", point, 0, 2**64 - 1) for point in points], dtype=np.uint64)
    array = np.asarray(points)
    if array.size and array.dtype.kind not in "ui":
        raise ValueError(f"points must be integers, got {array.dtype}")
    if array.size and array.min() < 0:
        raise ValueError(f"points must be from 0 up to 2^64, got {array.min()}")
    return array.astype(np.uint64, copy=False)


@lru_cache(maxsize=2**14)
def node_tokens(name: str, n: int, hash: str, seed: int) -> npt.NDArray[np.uint64]:
    """The first n tokens of a node. Remembered: the next ring has most of its nodes from the last."""
    head = name.encode() + b"#"
    position = md5_32 if hash == "md5" else partial(xxh64, seed=seed)
    return np.fromiter((position(head + b"%d" % i) for i in range(1, n + 1)), np.uint64, n)


def md5_32(data: bytes) -> int:
    return int.from_bytes(md5(data, usedforsecurity=False).digest()[:4], "big")
