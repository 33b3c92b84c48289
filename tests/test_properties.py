"""The measures: each against its definition, key by key, and the theorems that hold of the ring."""

import doctest
from collections import defaultdict
from fractions import Fraction
from math import inf, isclose, isnan
from pathlib import Path
from statistics import pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chash_partition import HashRing, Layout, plan_rebalance
from chash_partition.properties import (
    Smoothness,
    balance,
    counts,
    load,
    monotonicity,
    shares,
    smoothness,
    spread,
)

DOCS = Path(__file__).parents[1] / "docs"
NAMES = ["w1", "w11", "W1", "", "名", "a\nb"]
names = st.sampled_from(NAMES)
weights = st.sampled_from([1, 1, 2, 0.5, 0.1, 1000, Fraction(1, 3)])
clusters = st.dictionaries(names, weights, min_size=1)
keys = np.arange(5000)


@st.composite
def changes(draw):
    """Owners before and after, and the nodes then."""
    old, new = draw(clusters), draw(clusters)
    n = draw(st.integers(1, 30))
    pick = [draw(st.lists(st.sampled_from(sorted(nodes)), min_size=n, max_size=n)) for nodes in (old, new)]
    return *pick, old, new


def exact(weight):
    return Fraction(str(weight))


@given(clusters, st.data())
def test_balance(nodes, data):
    owners = data.draw(st.lists(st.sampled_from(sorted(nodes)), min_size=1))
    total = sum(map(exact, nodes.values()))
    share = {name: exact(weight) / total for name, weight in nodes.items()}
    ratio = {name: owners.count(name) / (share[name] * len(owners)) for name in nodes}
    found = balance(counts(owners), nodes)
    assert isclose(found.max_over_mean, max(ratio.values()))
    mean = sum(share[name] * ratio[name] for name in nodes)
    assert mean == 1
    assert isclose(
        found.variation, sum(share[name] * (ratio[name] - mean) ** 2 for name in nodes) ** 0.5, abs_tol=1e-12
    )


@given(st.lists(st.integers(0, 50), min_size=1).filter(any))
def test_balance_of_equal_weights_is_the_textbook_one(numbers):
    mean = sum(numbers) / len(numbers)
    found = balance({str(i): number for i, number in enumerate(numbers)}, range(len(numbers)))
    assert isclose(found.max_over_mean, max(numbers) / mean)
    assert isclose(found.variation, pstdev(numbers) / mean, abs_tol=1e-12)


def test_balance_agrees_with_the_plan():
    layout = Layout.create("k", 64, {"a": 1, "b": 3}, placement="ring", vnodes=4)
    plan = plan_rebalance(layout, {"a": 1, "b": 3})
    assert balance(layout.counts(), layout.weights).max_over_mean == plan.imbalance_before


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (({"a": 1, "b": 2}, ["a"]), "node 'b' has 2 and is not among the nodes: a"),
        (({}, ["a"]), "no node has anything"),
        (({"a": 0}, ["a"]), "no node has anything"),
        (({"a": 1}, []), "no nodes"),
    ],
)
def test_balance_says_what_is_wrong(given_, says):
    with pytest.raises(ValueError, match=says):
        balance(*given_)


def test_balance_takes_int_names_as_everything_does():
    assert balance(counts([0, 1, 1]), [0, 1]).max_over_mean == 4 / 3


@given(changes())
def test_monotonicity_and_smoothness(change):
    before, after, old, new = change
    same = {name for name in old if name in new and exact(new[name]) == exact(old[name])}
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert monotonicity(before, after, old, new) == sum(a in same and b in same for a, b in moved)

    found = smoothness(before, after, old, new)
    assert isclose(found.moved, len(moved) / len(before))
    totals = [sum(map(exact, nodes.values())) for nodes in (old, new)]
    differences = [
        abs(exact(old.get(name, 0)) / totals[0] - exact(new.get(name, 0)) / totals[1])
        for name in {*old, *new}
    ]
    assert isclose(found.changed, sum(differences) / 2)


def test_smoothness_ratio():
    assert Smoothness(0.5, 0.25).ratio == 2
    assert Smoothness(0.5, 0).ratio == inf
    assert isnan(Smoothness(0, 0).ratio)


@pytest.mark.parametrize(
    ("measure", "says"),
    [
        (
            lambda: monotonicity(["a"], ["a", "b"], ["a"], ["a"]),
            "an owner before and after of each key, got 1 and 2",
        ),
        (lambda: smoothness([], [], ["a"], ["a"]), "there are no keys"),
        (lambda: spread(["a", "b"]), "must be of shape"),
        (lambda: load(["a", "b"]), "must be of shape"),
    ],
)
def test_measures_of_nothing(measure, says):
    with pytest.raises(ValueError, match=says):
        measure()


@given(st.integers(1, 5), st.integers(1, 20), st.data())
def test_spread_and_load(clients, n, data):
    views = [data.draw(st.lists(names, min_size=n, max_size=n)) for _ in range(clients)]
    assert spread(views).tolist() == [len(set(column)) for column in zip(*views, strict=True)]
    gets = defaultdict(set)
    for view in views:
        for key, owner in enumerate(view):
            gets[owner].add(key)
    assert load(views) == {name: len(some) for name, some in gets.items()}


@pytest.mark.parametrize("hash", ["xxh64", "md5"])
def test_shares_are_what_many_points_find(hash):
    ring = HashRing({"a": 1, "b": 2, "c": 0.5}, vnodes=8, hash=hash)
    points = np.linspace(0, 2.0 ** (64 if hash == "xxh64" else 32), 100_000, endpoint=False).astype(np.uint64)
    found = counts(ring.owners_at(points))
    for name, share in shares(ring).items():
        assert abs(found[name] / len(points) - share) < 1e-3
    assert isclose(sum(shares(ring).values()), 1)


def test_shares_of_one_token():
    assert shares(HashRing.from_tokens({5: "a"})) == {"a": 1}


@given(clusters, names, weights)
def test_the_ring_is_monotone_for_a_node_that_joins_or_leaves(nodes, name, weight):
    small = {other: w for other, w in nodes.items() if other != name}
    if small:
        large = {**small, name: weight}
        few, more = (HashRing(nodes, vnodes=4).owners(keys) for nodes in (small, large))
        assert monotonicity(few, more, small, large) == monotonicity(more, few, large, small) == 0


@pytest.mark.parametrize("page", ["properties.md", "virtual-nodes.md"])
def test_the_page_is_true(page):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False)
    assert not failed
    assert tried > 5
