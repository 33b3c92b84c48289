"""The ring: tokens, owners, walks, values and refusals."""

import bisect
import copy
import hashlib
import json
import pickle
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from chash_partition import HashRing
from chash_partition.hashing import hash_key

VECTORS = json.loads((Path(__file__).parent / "data" / "ring_vectors.json").read_text())
STRANGE = ["w1", "w11", "w1#1", "W1", "", " ", "#", "näme", "名", "a\nb", "tcp://10.0.0.1:8786", "0"]
names = st.lists(st.sampled_from(STRANGE), min_size=1, max_size=6, unique=True)
weights = st.sampled_from([1, 2, 0.5, 0.1, 3, 10, 0.01, Fraction(1, 3)])


def tokens_by_the_book(nodes, vnodes, seed):
    """The definition, word by word."""
    return sorted(
        (xxhash.xxh64_intdigest(f"{name}#{i}".encode(), seed), name)
        for name, weight in nodes.items()
        for i in range(1, max(1, round(vnodes * Fraction(str(weight)))) + 1)
    )


def clockwise(tokens, point):
    """All tokens from the first at or after the point on, once around."""
    start = bisect.bisect_left(tokens, (point, ""))
    return tokens[start:] + tokens[:start]


# Definitions


@pytest.mark.parametrize("case", VECTORS["placements"], ids=lambda case: "-".join(case["nodes"]))
def test_golden_tokens_and_owners(case):
    ring = HashRing(case["nodes"], vnodes=case["vnodes"], seed=int(case["seed"]))
    head = case["tokens_head"]
    assert [[str(token), node] for token, node in ring.tokens[: len(head)]] == head
    points = [-(-p * 2**32 // case["npartitions"]) << 32 for p in range(case["npartitions"])]
    assert ring.owners_at(points).tolist() == case["ring"]


def test_one_node_joins_and_two_items_move_onto_it():
    """Ten items, nodes at 203, 209 and 228; a node joins at 216 and only items 5 and 6 move, both onto it."""
    example = VECTORS["worked_example"]
    tokens = {int(token): node for token, node in example["tokens"].items()}
    added = {int(token): node for token, node in example["added"].items()}
    assert (tokens, added) == ({203: "a", 209: "g", 228: "z"}, {216: "n"})
    before = HashRing.from_tokens(tokens).owners_at(example["points"])
    after = HashRing.from_tokens({**tokens, **added}).owners_at(example["points"])
    assert before.tolist() == example["owners"]
    assert after.tolist() == example["owners_after"]
    assert np.flatnonzero(before != after).tolist() == [5, 6]


@given(
    st.dictionaries(st.sampled_from(STRANGE), weights, min_size=1),
    st.integers(1, 20),
    st.integers(0, 2**64 - 1),
)
def test_tokens_are_as_defined(nodes, vnodes, seed):
    ring = HashRing(nodes, vnodes=vnodes, seed=seed)
    assert ring.tokens == tokens_by_the_book(nodes, vnodes, seed)
    for node in nodes:
        assert ring.tokens_of(node).tolist() == [token for token, owner in ring.tokens if owner == node]


@given(names, st.integers(1, 6), st.lists(st.integers(0, 2**64 - 1)), st.randoms(use_true_random=False))
def test_owners_and_preference_walk_clockwise(nodes, vnodes, points, random):
    ring = HashRing(nodes, vnodes=vnodes)
    points += [token + d for token, _ in ring.tokens for d in (-1, 0, 1)]
    tokens = ring.tokens
    assert ring.owners_at(points).tolist() == [clockwise(tokens, point)[0][1] for point in points]
    point = random.choice(points)
    order = list(dict.fromkeys(node for _, node in clockwise(tokens, point)))
    assert ring.preference_at(point) == order
    assert [ring.preference_at(point, n) for n in range(1, len(nodes) + 1)] == [
        order[:n] for n in range(1, len(nodes) + 1)
    ]


@given(names, st.integers(1, 6), st.lists(st.integers(0, 2**64 - 1), max_size=40), st.data())
def test_fill_and_steps_to_by_the_book(nodes, vnodes, points, data):
    ring = HashRing(nodes, vnodes=vnodes)
    tokens = ring.tokens
    room = data.draw(st.lists(st.integers(0, 30), min_size=len(nodes), max_size=len(nodes)))
    left = dict(zip(ring.nodes, room, strict=True))
    expected = []
    if len(points) <= sum(room):
        for point in points:
            node = next(node for _, node in clockwise(tokens, point) if left[node])
            left[node] -= 1
            expected.append(node)
        assert [ring.nodes[i] for i in ring.fill(points, np.array(room))] == expected
    else:
        with pytest.raises(ValueError, match="do not fit"):
            ring.fill(points, np.array(room))
    if any(room):
        chosen = {node for node, n in zip(ring.nodes, room, strict=True) if n}
        steps = [
            next(i for i, (_, node) in enumerate(clockwise(tokens, point)) if node in chosen)
            for point in points
        ]
        assert ring.steps_to(points, np.array(room) > 0).tolist() == steps


@pytest.mark.parametrize("hash", ["xxh64", "md5"])
@pytest.mark.parametrize("vnodes", [1, 3, 40])
def test_many_points_have_the_owners_that_few_have(hash, vnodes):
    """Many points take another way, by a table; tokens, their neighbours and both ends included."""
    ring = HashRing(["a", "b", "c"], vnodes=vnodes, hash=hash)
    near = np.array(
        [(token + d) % 2**64 for token, _ in ring.tokens for d in (-1, 0, 1)] + [0, 2**64 - 1], np.uint64
    )
    points = np.concatenate([near, np.random.default_rng(1).integers(0, 2**64, 10_000, dtype=np.uint64)])
    few = np.concatenate([ring.owners_at(points[i : i + 10]) for i in range(0, len(points), 10)])
    assert ring.owners_at(points).tolist() == few.tolist()


def test_equal_tokens_belong_to_the_smaller_name():
    """MD5 tokens have 32 bits: with enough of them some collide, between nodes too."""
    names = [f"n{i}" for i in range(60)]
    ring = HashRing(reversed(names), vnodes=4000, hash="md5")
    tokens = ring.tokens
    twice = [(a, b) for a, b in pairwise(tokens) if a[0] == b[0] and a[1] != b[1]]
    assert twice
    for (token, first), (_, second) in twice:
        assert first < second
        assert ring.owners_at([token]).tolist() == [first]


def test_md5_is_the_first_four_bytes_of_the_digest():
    def point(data):
        return int.from_bytes(hashlib.md5(data).digest()[:4], "big")

    ring = HashRing({"a": 1, "b": 0.5}, vnodes=10, hash="md5")
    assert ring.tokens == sorted(
        [(point(b"a#%d" % i), "a") for i in range(1, 11)] + [(point(b"b#%d" % i), "b") for i in range(1, 6)]
    )
    keys = ["x", 7, 7.0, None]
    data = [b"x", (7).to_bytes(8, "little"), (7).to_bytes(8, "little")]
    owners = ring.owners_at([*map(point, data), 0]).tolist()
    assert ring.owners(keys).tolist() == [ring.owner(key) for key in keys] == owners
    assert ring.owners(pa.array(["x", "y"])).tolist() == [ring.owner("x"), ring.owner("y")]
    assert ring.owners(pd.Series([7, 8])).tolist() == [ring.owner(7), ring.owner(8)]
    with pytest.raises(ValueError, match="one column"):
        ring.owners(pd.DataFrame({"a": [1], "b": [2]}))
    with pytest.raises(TypeError):
        ring.owner(("x", "y"))


@pytest.mark.parametrize("seed", [0, 7])
def test_owners_of_keys_are_the_owners_of_their_hashes(seed):
    ring = HashRing(["a", "b", "c"], seed=seed)
    frame = pd.DataFrame({"x": ["p", "q", None], "y": [1, 2, 3]})
    for keys, scalars in (
        (["p", "q", None], ["p", "q", None]),
        (frame, [("p", 1), ("q", 2), (None, 3)]),
        (pa.table(frame), [("p", 1), ("q", 2), (None, 3)]),
    ):
        expected = [ring.preference_at(hash_key(key, seed), 1)[0] for key in scalars]
        assert ring.owners(keys).tolist() == expected == [ring.owner(key) for key in scalars]
    assert ring.preference("p", 2) == ring.preference_at(hash_key("p", seed), 2)


# Weights and names


@pytest.mark.parametrize("weight", [1, 1.0, np.float32(1), np.int8(1), "1", Decimal("1.0"), Fraction(1)])
def test_equal_weights_of_any_type_are_equal(weight):
    assert HashRing({"a": weight, "b": 0.1}) == HashRing({"b": Fraction(1, 10), "a": 1})


def test_weights_are_exact_and_round_half_to_even():
    ring = HashRing({"a": 0.1, "b": 0.5, "c": 1.5, "d": 1e-9, "e": 1024}, vnodes=5)
    assert ring.weights["a"] == Fraction(1, 10)
    assert {node: len(ring.tokens_of(node)) for node in ring.nodes} == {
        "a": 1,
        "b": 2,
        "c": 8,
        "d": 1,
        "e": 5120,
    }


@pytest.mark.parametrize(
    "weight",
    [0, -1, 1024.5, float("nan"), float("inf"), True, False, np.bool_(True), None, "x", "1/0", [], 1j],
)
def test_weight_out_of_range_names_the_node(weight):
    with pytest.raises(
        ValueError, match="weight of node 'the one' must be a number above 0 and at most 1024"
    ):
        HashRing({"fine": 1, "the one": weight})


def test_ints_are_names_too():
    assert HashRing([10, np.int64(2), "x"]).nodes == ("10", "2", "x")
    assert HashRing({1: 2}).weights == {"1": 2}
    assert HashRing([1]).tokens_of(1).tolist() == HashRing(["1"]).tokens_of("1").tolist()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "no nodes"),
        ({}, "no nodes"),
        (["a", "b", "a"], "node 'a' is named twice"),
        ([1, "1"], "node '1' is named twice"),
        ("abc", "list of names"),
        (b"abc", "list of names"),
        (None, "list of names"),
        (3, "list of names"),
        ([True], "str or an int, got True"),
        ([1.5], "str or an int, got 1.5"),
        ([None], "str or an int, got None"),
        (["\ud800"], "lone surrogate"),
    ],
)
def test_bad_nodes_are_refused(nodes, message):
    with pytest.raises(ValueError, match=message):
        HashRing(nodes)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"vnodes": 0}, "vnodes must be at least 1, got 0"),
        ({"vnodes": 1.5}, "vnodes must be an integer, got 1.5"),
        ({"vnodes": True}, "vnodes must be an integer, got True"),
        ({"hash": "sha1"}, "hash must be one of 'xxh64', 'md5', got 'sha1'"),
        ({"hash": None}, "hash must be one of"),
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, got -1"),
        ({"seed": 2**64}, "seed must be from 0"),
        ({"seed": "0"}, "seed must be an integer"),
        ({"seed": 1, "hash": "md5"}, "has no seed"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        HashRing(["a"], **parameters)


@pytest.mark.parametrize(
    "points", [[-1], [2**64], [1.5], ["1"], [None], [True], np.array([-1]), np.array([1.0]), np.array(["1"])]
)
def test_bad_points_are_refused(points):
    with pytest.raises(ValueError, match="point"):
        HashRing(["a"]).owners_at(points)


def test_points_keep_all_their_bits():
    """numpy would make floats of a list with small and large ints."""
    ring = HashRing.from_tokens({1: "a", 2**64 - 2: "b", 2**64 - 1: "c"})
    assert ring.owners_at([1, 2, 2**64 - 2, 2**64 - 1]).tolist() == ["a", "b", "b", "c"]
    assert ring.owners_at([]).tolist() == []
    assert ring.owners_at(np.array([], dtype=float)).tolist() == []
    assert ring.owners_at(pd.Series([1, 2])).tolist() == ["a", "b"]


def test_preference_takes_as_many_as_there_are():
    ring = HashRing(["a", "b"])
    assert sorted(ring.preference("k")) == ["a", "b"]
    for n in (0, 3, True, 1.0):
        with pytest.raises(ValueError, match="n must be"):
            ring.preference("k", n)
    with pytest.raises(ValueError, match="no node 'c': the nodes are a, b"):
        ring.tokens_of("c")


# Changes


@given(names, names, st.integers(1, 20))
def test_a_new_node_takes_and_a_lost_node_gives(nodes, more, vnodes):
    """Monotonicity: a key changes its owner only to a new node, or from a lost one."""
    more = [node for node in more if node not in nodes]
    small, points = HashRing(nodes, vnodes=vnodes), np.arange(0, 2**64, 2**56, dtype=np.uint64)
    if not more:
        assert small.with_nodes(nodes) == small
        return
    large = small.with_nodes(more)
    assert large == HashRing(nodes + more, vnodes=vnodes)
    assert large.without_nodes(more) == small
    few, many = small.owners_at(points), large.owners_at(points)
    assert set(many[few != many]) <= set(more)


def test_with_nodes_keeps_weights_unless_given():
    ring = HashRing({"a": 2, "b": 3}, vnodes=10, seed=5)
    assert ring.with_nodes(["a", "c"]).weights == {"a": 2, "b": 3, "c": 1}
    assert ring.with_nodes({"a": 0.5}).weights == {"a": Fraction(1, 2), "b": 3}
    assert (ring.with_nodes(["c"]).vnodes, ring.with_nodes(["c"]).seed) == (10, 5)
    assert ring.weights == {"a": 2, "b": 3}


def test_changes_that_cannot_be():
    ring = HashRing(["a", "b"])
    with pytest.raises(ValueError, match="no node 'x'"):
        ring.without_nodes(["x"])
    with pytest.raises(ValueError, match="no nodes"):
        ring.without_nodes(["a", "b"])
    with pytest.raises(ValueError, match="list of names"):
        ring.without_nodes("a")
    with pytest.raises(ValueError, match=r"HashRing\.from_tokens"):
        HashRing.from_tokens({1: "a"}).with_nodes(["b"])


def test_explicit_tokens():
    ring = HashRing.from_tokens({9: "b", 3: "a", 6: "b"})
    assert ring.tokens == [(3, "a"), (6, "b"), (9, "b")]
    assert (ring.nodes, ring.vnodes, dict(ring.weights)) == (("a", "b"), None, {"a": 1, "b": 1})
    assert ring.without_nodes(["a"]) == HashRing.from_tokens({6: "b", 9: "b"})
    assert ring != HashRing.from_tokens({9: "b", 3: "a", 7: "b"})
    for tokens, message in (
        ({}, "no nodes"),
        ({-1: "a"}, "token must be from 0"),
        ({2**64: "a"}, "token must be from 0"),
        ({1.5: "a"}, "token must be an integer"),
        ([1, 2], "mapping"),
    ):
        with pytest.raises(ValueError, match=message):
            HashRing.from_tokens(tokens)
    with pytest.raises(ValueError, match="4294967295"):
        HashRing.from_tokens({2**32: "a"}, hash="md5")


# A value


@pytest.mark.parametrize(
    "ring",
    [
        HashRing({"a": 0.1, "b": 2}, vnodes=9, seed=3),
        HashRing(["a"], hash="md5"),
        HashRing.from_tokens({3: "a", 2**64 - 1: "b"}, seed=4),
    ],
)
def test_copies_are_equal(ring):
    for twin in (pickle.loads(pickle.dumps(ring)), copy.copy(ring), copy.deepcopy(ring)):
        assert twin == ring
        assert hash(twin) == hash(ring)
        assert twin.tokens == ring.tokens
        assert (twin.vnodes, twin.hash, twin.seed, twin.weights) == (
            ring.vnodes,
            ring.hash,
            ring.seed,
            ring.weights,
        )


def test_equal_by_value_whatever_the_order():
    ring = HashRing(["b", "a"])
    assert ring == HashRing({"a": 1, "b": 1.0})
    assert len({ring, HashRing({"a", "b"}), HashRing(["a", "b"], vnodes=255)}) == 2
    for other in (HashRing(["a", "b"], seed=1), HashRing(["a", "B"]), HashRing({"a": 1, "b": 2}), "ring"):
        assert ring != other


def test_a_ring_cannot_be_changed():
    ring = HashRing(["a", "b"])
    for name in ("nodes", "weights", "vnodes", "seed", "hash", "tokens", "other"):
        with pytest.raises(AttributeError):
            setattr(ring, name, 1)
    with pytest.raises(TypeError):
        ring.weights["a"] = 2
    ring.tokens.clear()
    ring.tokens_of("a")[:] = 0
    assert ring == HashRing(["a", "b"])
    assert ring.tokens == HashRing(["a", "b"]).tokens


def test_repr_names_a_few():
    assert repr(HashRing(["w1", "w0"])) == "HashRing(w0, w1: 512 tokens)"
    assert repr(HashRing(range(20), vnodes=100)).endswith("14, 15 and 12 more: 2,000 tokens)")


@given(st.sets(st.text(max_size=5), min_size=1, max_size=5))
def test_any_text_is_a_name(nodes):
    try:
        ring = HashRing(nodes, vnodes=3)
    except ValueError:
        assert any(0xD800 <= ord(letter) < 0xE000 for node in nodes for letter in node)
    else:
        assert ring.tokens == tokens_by_the_book(dict.fromkeys(nodes, 1), 3, 0)
