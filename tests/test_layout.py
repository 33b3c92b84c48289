"""Layouts: placement, keys to partitions to nodes, JSON, values and refusals."""

import copy
import dataclasses
import json
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.base import tokenize
from hypothesis import given
from hypothesis import strategies as st
from layouts import layout, owners

from chash_partition import HashRing, Layout, hash_keys
from chash_partition.hashing import hash_key, partition_ids
from chash_partition.layout import quotas

VECTORS = json.loads((Path(__file__).parent / "data" / "ring_vectors.json").read_text())
weights = st.sampled_from([1, 2, 0.5, 0.1, 3, 10, 0.01, Fraction(1, 3)])
clusters = st.dictionaries(st.sampled_from(["w1", "w11", "w1#1", "W1", "", "名", "7"]), weights, min_size=1)


# Placement


@pytest.mark.parametrize("placement", ["ring", "bounded"])
@pytest.mark.parametrize("case", VECTORS["placements"], ids=lambda case: "-".join(case["nodes"]))
def test_golden_placements(case, placement):
    made = layout(
        case["npartitions"], case["nodes"], placement=placement, vnodes=case["vnodes"], seed=int(case["seed"])
    )
    assert owners(made) == case[placement]
    if placement == "bounded":
        assert made.counts() == case["quotas"]


def quotas_by_the_book(weights, total):
    shares = {name: total * Fraction(str(weight)) / sum(weights.values()) for name, weight in weights.items()}
    quota = {name: int(share) for name, share in shares.items()}
    for name in sorted(shares, key=lambda name: (quota[name] - shares[name], name))[
        : total - sum(quota.values())
    ]:
        quota[name] += 1
    return quota


@given(clusters, st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**64 - 1))
def test_placements_by_the_book(nodes, npartitions, vnodes, seed):
    nodes = {name: Fraction(str(weight)) for name, weight in nodes.items()}
    bounded = layout(npartitions, nodes, vnodes=vnodes, seed=seed)
    room = quotas_by_the_book(nodes, npartitions)
    assert bounded.counts() == room
    points = [-(-p * 2**32 // npartitions) * 2**32 for p in range(npartitions)]
    assert bounded.points.tolist() == points == [bounded.point(p) for p in range(npartitions)]
    for p, point in enumerate(points):
        # The preference list is the order in which the walk meets the nodes.
        node = next(node for node in bounded.ring.preference_at(point) if room[node])
        room[node] -= 1
        assert bounded.owner_of(p) == node
    ring = layout(npartitions, nodes, placement="ring", vnodes=vnodes, seed=seed)
    assert owners(ring) == HashRing(nodes, vnodes=vnodes, seed=seed).owners_at(points).tolist()


@given(clusters, st.integers(1, 10**9))
def test_quotas_by_the_book(nodes, total):
    nodes = {name: Fraction(str(weight)) for name, weight in nodes.items()}
    quota = quotas(nodes, total)
    assert dict(zip(sorted(nodes), quota.tolist(), strict=True)) == quotas_by_the_book(nodes, total)
    assert quota.sum() == total


def test_the_points_are_the_first_hashes_of_the_ranges():
    made = layout(7)
    assert partition_ids(made.points, 7).tolist() == list(range(7))
    assert partition_ids(made.points[1:] - np.uint64(1), 7).tolist() == list(range(6))


def test_more_nodes_than_partitions_and_one_node():
    assert sorted(layout(2, list("abc")).counts().values()) == [0, 1, 1]
    assert layout(5, ["a"]).counts() == {"a": 5}
    assert layout(1, {"a": 1e-9, "b": 1024}).owner_of(0) == "b"


# Keys


@pytest.mark.parametrize("seed", [0, 7])
def test_keys_of_one_column(seed):
    made = layout(seed=seed)
    keys = ["alice", "bob", None, "carol"]
    expected = [(hash_key(key, seed) >> 32) * 64 >> 32 for key in keys]
    frame = pd.DataFrame({"other": [1, 2, 3, 4], "user_id": keys})
    for given_ in (keys, pd.Series(keys), pa.array(keys), frame, frame[["user_id"]], pa.table(frame)):
        assert made.partition_of(given_).tolist() == expected
    assert made.partition_of(keys).dtype == np.int32
    assert [made.partition_of_key(key) for key in keys] == expected
    assert [made.partition_of_key((key,)) for key in keys] == expected
    assert made.owners(frame).tolist() == [made.owner(key) for key in keys]
    assert made.owners(keys).tolist() == [made.owner_of(p) for p in expected]
    assert made.partition_of([]).tolist() == []


def test_keys_of_several_columns():
    made = Layout.create(["b", "a"], 32, ["w0", "w1"])
    frame = pd.DataFrame({"a": [1, 2, 3], "x": [0, 0, 0], "b": ["p", "q", None]})
    expected = partition_ids(hash_keys(frame[["b", "a"]]), 32).tolist()
    keys = [("p", 1), ("q", 2), (None, 3)]
    table = pa.table(frame)
    batch = table.to_batches()[0]
    index = pd.MultiIndex.from_tuples(keys)
    for given_ in (frame, table, batch, keys, index):
        assert made.partition_of(given_).tolist() == expected
    assert [made.partition_of_key(key) for key in keys] == expected
    assert made.partition_of(frame.iloc[:0]).tolist() == made.partition_of([]).tolist() == []


@pytest.mark.parametrize("on", ["k", ["k", "l"]])
def test_keys_that_do_not_fit(on):
    made = Layout.create(on, 8, ["w0"])
    for keys, message in (
        (pd.DataFrame({"x": [1]}), r"no column 'k'.*layout\.rename"),
        (pa.table({"x": [1]}), "no column 'k'"),
        (pd.DataFrame([[1, 2, 3]], columns=["k", "k", "l"]), "more than one column 'k'"),
        (pa.table([[1], [2], [3]], ["k", "k", "l"]), "more than one column 'k'"),
        ([(1, 2, 3)], "keys are of 3 column"),
        (pd.MultiIndex.from_tuples([(1, 2, 3)]), "keys are of 3 column"),
    ):
        with pytest.raises(ValueError, match=message):
            made.partition_of(keys)
    for key in ((), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"a key is [12] values?, of k"):
            made.partition_of_key(key)
    with pytest.raises((TypeError, ValueError)):
        made.partition_of_key([1])
    if len(made.on) == 2:
        for keys in ([1], pd.Series([1]), np.array([1])):
            with pytest.raises(ValueError, match="keys are of 1 column"):
                made.partition_of(keys)
        with pytest.raises(ValueError, match="of k, l, in a tuple; got 'alice'"):
            made.partition_of_key("alice")


def test_nodes_and_partitions():
    made = layout()
    for node in made.nodes:
        assert made.partitions_of(node).tolist() == [p for p in range(64) if made.owner_of(p) == node]
    assert layout(8, [0, 1]).partitions_of(1).tolist() == layout(8, ["0", "1"]).partitions_of("1").tolist()
    with pytest.raises(ValueError, match="no node 'x': the nodes are w0, w1, w2, w3"):
        made.partitions_of("x")
    for partition in (-1, 64, 1.0, True):
        with pytest.raises(ValueError, match="partition must be"):
            made.owner_of(partition)
        with pytest.raises(ValueError, match="partition must be"):
            made.point(partition)
    assert made.ring == HashRing(made.nodes)


# Identity


def test_the_id_says_what_create_was_given():
    made = layout()
    assert (
        made.id
        == layout(nodes=["w3", "w2", "w1", "w0"]).id
        == layout(nodes=dict.fromkeys(made.nodes, 1.0)).id
    )
    others = [
        Layout.create("id", 64, made.nodes),
        Layout.create(["user_id", "x"], 64, made.nodes),
        layout(65),
        layout(nodes=["w0", "w1", "w2"]),
        layout(nodes={**dict.fromkeys(made.nodes, 1), "w0": 2}),
        layout(placement="ring"),
        layout(vnodes=255),
        layout(seed=1),
    ]
    assert len({made.id, *(other.id for other in others)}) == 1 + len(others)
    assert made.version == 0


@pytest.mark.parametrize(
    "made",
    [
        layout(),
        Layout.create([0, ("a", 1), "x"], 5, {"a": Fraction(1, 3), "b": 2}, placement="ring", seed=2**64 - 1),
    ],
)
def test_copies_are_equal(made):
    assert made.ring is not None  # whatever was computed before must not matter
    for twin in (
        pickle.loads(pickle.dumps(made)),
        copy.copy(made),
        copy.deepcopy(made),
        dataclasses.replace(made),
    ):
        assert twin == made
        assert hash(twin) == hash(made)
        assert tokenize(twin) == tokenize(made)
        assert not twin.assignment.flags.writeable
        assert (twin.nodes, twin.weights, twin.on) == (made.nodes, made.weights, made.on)


def test_every_field_counts_for_equality_and_token():
    made = layout(8)
    others = [
        dataclasses.replace(made, **change)
        for change in (
            {"id": "other"},
            {"version": 1},
            {"on": ("id",)},
            {"seed": 1},
            {"vnodes": 1},
            {"placement": "ring"},
            {"weights": {"w0": 1, "w1": 1, "w2": 1, "w3": 2}},
            {"weights": {"w0": 1, "w1": 1, "w2": 1, "w4": 1}},
            {"assignment": np.zeros(8, dtype=int)},
            {"extra": '{"a": 1}'},
        )
    ]
    assert len({made, *others}) == len({tokenize(one) for one in (made, *others)}) == 1 + len(others)
    assert made != "layout"


def test_a_layout_cannot_be_changed():
    made = layout()
    for field in ("id", "version", "nodes", "weights", "assignment", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field, 1)
    with pytest.raises(TypeError):
        made.weights["w0"] = 2
    with pytest.raises(ValueError, match="read-only"):
        made.assignment[0] = 1
    assert made.assignment.dtype == np.int32
    mine = np.zeros(64, dtype=np.int32)
    taken = dataclasses.replace(made, assignment=mine)
    mine[:] = 1
    assert taken.counts()["w0"] == 64


def test_partitions_are_the_same_by_number_and_seed():
    made = layout()
    assert made.same_partitions(layout(nodes=["x"]).rename("id"))
    assert not made.same_partitions(layout(65))
    assert not made.same_partitions(layout(seed=1))


def test_repr_says_what_each_node_has():
    assert repr(layout()) == "Layout(on=user_id, 64 partitions on 4 nodes: 16 each, version 0)"
    assert repr(Layout.create(["a", 1], 2000, ["x", "y", "z"])) == (
        "Layout(on=a, 1, 2,000 partitions on 3 nodes: 666 to 667 each, version 0)"
    )
    assert repr(Layout.create(0, 1, ["x"])) == "Layout(on=0, 1 partition on 1 node: 1 each, version 0)"


# New layouts from old


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**64 - 1))
def test_split_keeps_keys_on_their_nodes(npartitions, k, hashed):
    made = layout(npartitions)
    finer = made.split(k)
    assert (finer.npartitions, finer.version, finer.on) == (npartitions * k, 1, made.on)
    assert finer.id != made.id
    one = np.array([hashed], dtype=np.uint64)
    (parent,), (child,) = partition_ids(one, npartitions), partition_ids(one, npartitions * k)
    assert child // k == parent
    assert finer.owner_of(int(child)) == made.owner_of(int(parent))


def test_split_ids_tell_histories_apart():
    made = layout()
    later = dataclasses.replace(made, version=1)
    assert made.split(2) == made.split(2)
    assert (
        len({made.id, made.split(2).id, made.split(3).id, later.split(2).id, made.split(2).split(2).id}) == 5
    )
    for k in (0, -1, 1.5, True, 2**31):
        with pytest.raises(ValueError, match="k must be"):
            made.split(k)
    with pytest.raises(ValueError, match="k must be from 1 to 33554431, got 33554432"):
        made.split(2**25)


def test_renamed_columns_keep_the_partitions():
    made = Layout.create(["a", "b"], 64, ["w0", "w1"])
    other = made.rename(["b", ("x", 1)])
    assert other.on == ("b", ("x", 1))
    assert (other.id, other.version) == (made.id, made.version)
    assert other.rename(made.on) == made
    with pytest.raises(ValueError, match=r"on 2 column\(s\), a, b: cannot rename to 1, c"):
        made.rename("c")


def test_an_assignment_of_ones_own_keeps_id_and_weights():
    made = layout(4, {"w0": 2, "w1": 3})
    live = made.with_assignment(["w1", 7, "w1", "w1"])
    assert (live.id, live.version) == (made.id, made.version)
    assert owners(live) == ["w1", "7", "w1", "w1"]
    assert live.weights == {"7": 1, "w0": 2, "w1": 3}
    assert live.with_assignment(made.nodes[i] for i in made.assignment).counts() == {**made.counts(), "7": 0}
    here = ["w1"] * 4
    assert made.with_assignment(here, ["w1", "x"]).weights == {"w1": 3, "x": 1}
    assert made.with_assignment(here, {"w1": 5, "x": 6}).weights == {"w1": 5, "x": 6}
    assert made.with_assignment(["w0"] * 4, ["x"]).weights == {"w0": 2, "x": 1}
    assert made.with_assignment(pd.Series(here)) == made.with_assignment(here)
    for wrong in (here[:3], [*here, "w1"]):
        with pytest.raises(ValueError, match="one owner for each of 4 partitions"):
            made.with_assignment(wrong)
    with pytest.raises(ValueError, match="got None"):
        made.with_assignment(["w1", "w1", "w1", None])


# JSON


@given(
    clusters,
    st.integers(1, 30),
    st.integers(1, 9),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["ring", "bounded"]),
)
def test_json_round_trip(nodes, npartitions, vnodes, seed, placement):
    made = Layout.create(["a", "é\n"], npartitions, nodes, placement=placement, vnodes=vnodes, seed=seed)
    assert Layout.from_json(made.to_json()) == made
    assert Layout.from_json(made.to_json().encode()) == made


def test_json_is_as_documented():
    made = layout(4, {"w1": 0.5, "w0": 1}, seed=2**64 - 1)
    assert json.loads(made.to_json()) == {
        "format": 1,
        "id": made.id,
        "version": 0,
        "on": ["user_id"],
        "npartitions": 4,
        "seed": "18446744073709551615",
        "vnodes": 256,
        "placement": "bounded",
        "nodes": [["w0", "1"], ["w1", "1/2"]],
        "assignment": made.assignment.tolist(),
    }
    tiny = layout(4, {"a": 1e-300, "b": 1})
    assert Layout.from_json(tiny.to_json()) == tiny


def test_json_written_by_others_is_read_and_kept():
    """Nodes in any order and weights as decimals are read; fields of later versions are kept."""
    made = layout(4, {"b": 0.5, "a": 1})
    fields = json.loads(made.to_json())
    fields["nodes"] = [["b", "0.5"], ["a", "1.0"]]
    fields["assignment"] = [1 - i for i in fields["assignment"]]
    assert Layout.from_json(json.dumps(fields)) == made
    fields["written_by"], fields["notes"] = "later", {"x": [1, None]}
    kept = Layout.from_json(json.dumps(fields))
    assert kept != made
    for derived in (kept, kept.split(2), kept.rename("k"), pickle.loads(pickle.dumps(kept))):
        again = json.loads(derived.to_json())
        assert (again["written_by"], again["notes"]) == ("later", {"x": [1, None]})


def test_json_needs_str_labels():
    for label in (0, ("a", "b"), 1.5):
        with pytest.raises(ValueError, match="is not a str"):
            Layout.create([label], 4, ["a"]).to_json()
    assert Layout.create([0], 4, ["a"]).rename("0").to_json()


GOOD = json.loads(layout(4, ["a", "b"]).to_json())


@pytest.mark.parametrize("field", GOOD)
def test_json_without_a_field_is_refused(field):
    with pytest.raises(ValueError, match=field):
        Layout.from_json(json.dumps({name: value for name, value in GOOD.items() if name != field}))


BAD = {
    "format": [0, 2, "1", True, None, 1.0],
    "id": ["", 1, None],
    "version": [-1, "0", 1.5, True, None],
    "on": [[], "a", ["a", "a"], [1], [["a"]], None, {}],
    "npartitions": [0, 3, 5, "4", 4.0, True, None, 2**31],
    "seed": [0, "-1", "x", "", str(2**64), "1.5", None, "9" * 5000],
    "vnodes": [0, "256", 1.5, None, True],
    "placement": ["", "modulo", None, ["ring"]],
    "nodes": [
        *([], {}, {"a": "1"}, None, "ab", ["a", "b"], [["a"]], [["a", 1], ["b", 1]]),
        *([["a", "1"], pair] for pair in (["a", "1"], [1, "1"], ["\ud800", "1"], ["b", "1", "1"])),
        *([["a", "1"], ["b", w]] for w in ("0", "-1", "nan", "1/0", "", "1025", "x", "1e999999999")),
    ],
    "assignment": [
        *(None, [], {}, "0000", [0, 0, 0], [[0, 0, 0, 0]]),
        *([0, 0, 0, i] for i in (2, -1, True, 0.0, "0", None, 2**70)),
    ],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values]
)
def test_malformed_json_is_refused(field, value):
    with pytest.raises(ValueError, match={"nodes": "node", "npartitions": "partitions"}.get(field, field)):
        Layout.from_json(json.dumps({**GOOD, field: value}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "{}", b"\xff", None, 1])
def test_what_is_not_a_layout_is_refused(text):
    with pytest.raises(ValueError, match="not the JSON of a layout"):
        Layout.from_json(text)


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": []}, "on names no column"),
        ({"on": None}, "on names no column"),
        ({"on": ["a", "b", "a"]}, "on names column 'a' more than once"),
        ({"on": [["a"]]}, "on must be a column label or a list of labels"),
        ({"on": {"a": 1}}, "on must be a column label or a list of labels"),
        ({"npartitions": 0}, "npartitions must be from 1 to 2147483647, got 0"),
        ({"npartitions": -3}, "npartitions must be from 1"),
        ({"npartitions": 2**31}, "npartitions must be from 1 to 2147483647, got 2147483648"),
        ({"npartitions": 1.0}, "npartitions must be an integer, got 1.0"),
        ({"npartitions": "8"}, "npartitions must be an integer"),
        ({"npartitions": True}, "npartitions must be an integer"),
        ({"npartitions": None}, "npartitions must be an integer"),
        ({"nodes": []}, "no nodes: name at least one"),
        ({"nodes": ["a", "a"]}, "node 'a' is named twice"),
        ({"nodes": "abc"}, "nodes must be a list of names"),
        ({"nodes": {"a": 0}}, "weight of node 'a' must be"),
        ({"placement": "modulo"}, "placement must be one of 'bounded', 'ring', got 'modulo'"),
        ({"vnodes": 0}, "vnodes must be at least 1, got 0"),
        ({"vnodes": 2.5}, "vnodes must be an integer"),
        ({"seed": -1}, "seed must be from 0"),
        ({"seed": 2**64}, "seed must be from 0"),
        ({"seed": None}, "seed must be an integer"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(arguments, message, monkeypatch):
    monkeypatch.setattr("chash_partition.layout.ring_of", lambda *args: pytest.fail("worked before checking"))
    good = {"on": "k", "npartitions": 8, "nodes": ["a"]}
    with pytest.raises(ValueError, match=message):
        Layout.create(**{**good, **arguments})


def test_labels_are_kept_as_given():
    assert Layout.create("ab", 1, ["x"]).on == ("ab",)
    assert Layout.create(0, 1, ["x"]).on == (0,)
    assert Layout.create([("a", 1)], 1, ["x"]).on == (("a", 1),)
    assert Layout.create(("a", "b"), np.int64(1), ["x"]).on == ("a", "b")
    frame = pd.DataFrame({0: [5, 6], ("a", 1): [7, 8]})
    made = Layout.create([("a", 1), 0], 16, ["x"])
    assert made.partition_of(frame).tolist() == [made.partition_of_key((7, 5)), made.partition_of_key((8, 6))]
