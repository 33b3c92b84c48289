"""simulate: what must hold of each method on any trace, the baselines by their papers, and bad traces."""

from math import log, nan

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from chash_partition import Layout, hash_keys, plan_rebalance, simulate
from chash_partition.properties import balance, counts
from chash_partition.simulation import _jump, _methods, _numbered, _views

START = ["w0", "w1", "w2", "w3"]
METHODS = ["modulo", "ring", "bounded", "jump", "rendezvous"]
TRACE = [
    ("join", "w4"),
    ("leave", "w1"),
    ("crash", "w2"),
    ("weight", "w3", 2),
    ("join", "big", 3),
    ("join", 1),
]
KEYS = np.arange(4000)


@pytest.fixture(scope="module")
def result():
    return simulate(TRACE, START, keys=KEYS, npartitions=512)


def of(result, method, column):
    return result.loc[result.method == method, column].tolist()


def test_one_row_an_event_and_method(result):
    assert result.event.tolist() == [event for event in range(6) for _ in METHODS]
    assert result.method.tolist() == METHODS * 6
    assert result.what.unique().tolist() == [
        "join w4", "leave w1", "crash w2", "weight w3", "join big", "join 1",
    ]  # fmt: skip
    assert of(result, "ring", "nodes") == [5, 4, 3, 3, 4, 5]


def test_who_joins_only_takes(result):
    for method in ("ring", "bounded", "rendezvous"):
        assert of(result, method, "between_old")[:3] == [0, 0, 0]
    assert all(number > 0 for number in of(result, "modulo", "between_old")[:3])


@st.composite
def histories(draw):
    """Nodes of weight 1, and joins, leaves and crashes that can happen to them."""
    nodes = draw(st.sets(st.integers(0, 6), min_size=1))
    there, trace = set(nodes), []
    for node in draw(st.lists(st.integers(0, 6), max_size=6)):
        if node not in there:
            trace.append(("join", node))
        elif len(there) > 1:
            trace.append((draw(st.sampled_from(["leave", "crash"])), node))
        else:
            continue
        there ^= {node}
    return nodes, trace


@examples(0.25)
@given(histories())
def test_no_key_moves_between_nodes_that_nothing_happened_to(history):
    nodes, trace = history
    result = simulate(trace, nodes, keys=KEYS[:300], npartitions=50, vnodes=8)
    assert len(result) == 5 * len(trace)
    ideal = result.method.isin(["ring", "bounded", "rendezvous"])
    crash = np.array([what.startswith("crash") for what in result.what], dtype=bool)
    assert not result.between_old[ideal].any()
    assert not result.moved[ideal & crash].any()
    assert not result.lost[~crash].any()


def test_a_crash_loses_what_a_leave_hands_over():
    leaves, crashes = (simulate([(kind, "w1")], START, keys=KEYS) for kind in ("leave", "crash"))
    assert (leaves.lost == 0).all()
    assert leaves.moved.tolist() == (crashes.moved + crashes.lost).tolist()
    for method in ("ring", "bounded", "rendezvous"):
        assert of(crashes, method, "moved") == [0]
    same = ["balance", "variation", "between_old", "smoothness", "spread", "spread_mean", "load"]
    pd.testing.assert_frame_equal(leaves[same], crashes[same])


def test_what_moves_is_what_had_to(result):
    for method in ("bounded", "rendezvous"):
        assert of(result, method, "smoothness") == pytest.approx([1] * 6, abs=0.15)
    assert of(result, "modulo", "smoothness")[0] > 3.5
    assert of(result, "modulo", "smoothness")[3] == 0  # it knows no weights


def test_bounded_is_the_plans(result):
    """Column by column from layouts and plans, without the simulation."""
    layout = Layout.create("key", 512, START)
    before = layout.owners(KEYS)
    nodes = [["w0", "w1", "w2", "w3", "w4"], ["w0", "w2", "w3", "w4"]]
    for event, now in enumerate(nodes):
        layout = plan_rebalance(layout, now).after
        after = layout.owners(KEYS)
        row = result[(result.event == event) & (result.method == "bounded")].iloc[0]
        assert row.moved == (before != after).sum()
        assert (row.balance, row.variation) == balance(counts(after), now)
        before = after


def test_spread_and_load_of_one_node_and_of_all():
    alone = simulate([("leave", "w1")], ["w0", "w1"], keys=KEYS)
    assert (alone.spread == 1).all()
    assert (alone.load == 1).all()
    many = simulate([("join", "w20")], [f"w{i}" for i in range(20)], keys=KEYS)
    assert ((many.spread_mean > 1) & (many.spread_mean <= many.spread) & (many.spread <= 8)).all()
    assert (many.load > many.balance).all()
    assert of(many, "ring", "spread_mean") < of(many, "modulo", "spread_mean")


def test_clients_see_half_of_the_nodes_and_plan_from_the_layout():
    nodes = {"a": 1, "b": 2, "c": 1, "d": 1, "e": 3}
    views = _views(nodes)
    assert [len(view) for view in views] == [3] * 8
    assert {node for view in views for node in view} == set(nodes)
    layout = Layout.create("key", 512, nodes)
    seen = [plan_rebalance(layout, view).after.owners(KEYS) for view in views]
    spreads = [len(set(owners)) for owners in zip(*seen, strict=True)]
    gets = {node: sum(node in owners for owners in zip(*seen, strict=True)) for node in nodes}

    found = simulate([("weight", "e", 3)], nodes, keys=KEYS, npartitions=512)  # which changes nothing
    row = found[found.method == "bounded"].iloc[0]
    assert (row.spread, row.spread_mean) == (max(spreads), np.mean(spreads))
    assert row.load == pytest.approx(max(gets[node] / (nodes[node] / 8 * len(KEYS)) for node in nodes))


def test_no_event_and_a_change_of_nothing():
    assert simulate([], START, keys=KEYS).columns.tolist()[:3] == ["event", "what", "method"]
    again = simulate([("weight", "w1", 1)], START, keys=KEYS)
    assert (again.moved == 0).all()
    np.testing.assert_array_equal(again.smoothness, [nan] * 5)


def test_order_of_nodes_matters_to_no_method_and_keys_may_be_any():
    strings = pd.Series([f"user{i}" for i in range(500)])
    pd.testing.assert_frame_equal(
        simulate(TRACE, START, keys=strings), simulate(iter(TRACE), START[::-1], keys=strings)
    )


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (
            [("join", "w4"), ("join", "w1")],
            r"event 1 of the trace, \('join', 'w1'\): that node is there already",
        ),
        ([("leave", "w9")], "event 0 .*that node is not there: the nodes are w0, w1, w2, w3"),
        ([("crash", "w1"), ("weight", "w1", 2)], "event 1 .*that node is not there"),
        ([("leave", f"w{i}") for i in range(4)], "event 3 .*that is the last node"),
        ([("weight", "w1")], r"event 0 .*an event is \('join', name\)"),
        ([("weight", "w1", 0)], "event 0 .*weight of node 'w1' must be a number above 0"),
        ([("explode", "w1")], "event 0 .*an event is"),
        (["leave w1"], "event 0 .*an event is"),
        (5, "trace must be a list of events"),
        ([("leave", 1.5)], "event 0 .*a node name must be a str or an int"),
    ],
)
def test_a_bad_trace_is_refused_before_anything_is_computed(trace, says):
    with pytest.raises(ValueError, match=says):
        simulate(trace, START, npartitions=-1)


def test_no_keys():
    with pytest.raises(ValueError, match="there are no keys"):
        simulate(TRACE, START, keys=[])


# The baselines


def jump_by_the_paper(key, n):
    bucket, following = -1, 0
    while following < n:
        bucket = following
        key = (key * 2862933555777941757 + 1) % 2**64
        following = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 3000))
def test_jump_hash_is_the_papers(hashes, n):
    assert _jump(np.array(hashes, np.uint64), n).tolist() == [jump_by_the_paper(key, n) for key in hashes]


def test_jump_hash_is_that_of_others():
    """Values that implementations in other languages are tested with."""
    cases = [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)]
    for key, n, bucket in cases:
        assert _jump(np.array([key], np.uint64), n).tolist() == [bucket]


def test_the_last_bucket_takes_the_number_of_the_one_that_left():
    assert _numbered(None, dict.fromkeys("abcd", 1)) == ("a", "b", "c", "d")
    assert _numbered(("a", "b", "c", "d"), dict.fromkeys("acd", 1)) == ("a", "d", "c")
    assert _numbered(("a", "d", "c"), dict.fromkeys("abcd", 1)) == ("a", "d", "c", "b")
    assert _numbered(("a", "b", "c", "d"), dict.fromkeys("bc", 1)) == ("c", "b")


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "W", ""]), st.sampled_from([1, 2, 0.5]), min_size=1))
def test_rendezvous_is_the_highest_score(nodes):
    hashes = hash_keys(np.arange(200))

    def score(key, name):
        mixed = int(key) ^ xxhash.xxh64_intdigest(name.encode())
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed = (mixed ^ (mixed >> shift)) * factor % 2**64
        return log(((mixed >> 11) + 0.5) / 2**53) / nodes[name]

    found = _methods(1, 1, 0)["rendezvous"].owners(nodes, hashes)
    assert found.tolist() == [max(sorted(nodes), key=lambda name: score(key, name)) for key in hashes]


def test_rendezvous_gives_by_weight():
    owners = _methods(1, 1, 0)["rendezvous"].owners({"a": 1, "b": 3, "c": 0.5}, hash_keys(np.arange(100_000)))
    assert balance(counts(owners), {"a": 1, "b": 3, "c": 0.5}).max_over_mean < 1.03
