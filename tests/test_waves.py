"""Which moves go first, and which at the same time."""

from collections import Counter
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from chash_partition import Layout, Move, plan_rebalance
from chash_partition.waves import estimate, fits, in_waves, waves_within

names = st.sampled_from("abcde")
edges = st.tuples(names, names).filter(lambda edge: edge[0] != edge[1])


@st.composite
def some_moves(draw, max_size=40):
    return [
        Move(p, *edge, draw(st.integers(1, 9)))
        for p, edge in enumerate(draw(st.lists(edges, max_size=max_size)))
    ]


def most(moves, concurrency=1):
    sent, received = Counter(m.source for m in moves), Counter(m.target for m in moves)
    return ceil(max([*sent.values(), *received.values()], default=0) / concurrency)


@examples(2.5)
@given(some_moves(), st.integers(1, 4))
def test_as_few_waves_as_can_be(moves, concurrency):
    waves = in_waves(moves, concurrency)
    assert len(waves) == most(moves, concurrency)
    assert sorted(move for wave in waves for move in wave) == moves
    assert all(most(wave) <= concurrency for wave in waves)


@given(some_moves(), st.integers(1, 4))
def test_the_estimate_is_no_less_than_its_bound(moves, concurrency):
    seconds, bound = estimate(in_waves(moves, concurrency), moves, 2)
    assert bound <= seconds
    if concurrency >= most(moves):
        assert seconds == bound


@examples(2.5)
@given(some_moves(12), st.integers(1, 3), st.lists(st.integers(0, 12), min_size=5, max_size=5))
def test_no_node_gets_beyond_its_capacity(moves, concurrency, spare):
    """The capacity is what a node holds in the end, or before, and a little: it may suffice or not."""
    load = Counter(dict.fromkeys("abcde", 0))
    after = Counter(load)
    for move in moves:
        load[move.source] += move.nbytes
        after[move.target] += move.nbytes
    capacity = {n: max(load[n], after[n]) + extra for n, extra in zip("abcde", spare, strict=True)}
    try:
        waves = waves_within(moves, concurrency, load, capacity)
    except ValueError as error:
        text = str(error)
        assert "these moves wait for each other: partitions" in text
        assert any(f"{m.partition} ({m.source} -> {m.target}" in text for m in moves)
        return
    assert fits(waves, load, capacity)
    assert all(most(wave) <= concurrency for wave in waves)
    where = {move.partition: move.source for move in moves}
    for wave in waves:
        assert len({move.partition for move in wave}) == len(wave)
        for move in wave:
            assert where[move.partition] == move.source
            where[move.partition] = move.target
    assert where == {move.partition: move.target for move in moves}


def test_two_full_nodes_that_swap_need_a_third():
    before = Layout.create("k", 3, ["a", "b", "c"]).with_assignment(["a", "b", "c"])
    capacities = {"a": 6, "b": 6, "c": 10}
    terms = {"sizes": [5, 6, 5], "tolerance": 0.2, "pinned": [2], "banned": {"a": [0], "b": [1]}}
    plan = plan_rebalance(before, before.nodes, **terms, capacities=capacities)
    assert [move[:3] for move in plan.moves] == [(0, "a", "b"), (1, "b", "a")]
    waves = [[move[:3] for move in wave] for wave in plan.waves(1)]
    assert waves == [[(0, "a", "c")], [(1, "b", "a")], [(0, "c", "b")]]
    with pytest.raises(
        ValueError, match=r"wait for each other: partitions 0 \(a -> b, 5 bytes\), 1 \(b -> a, 6"
    ):
        plan_rebalance(before, before.nodes, **terms, capacities={**capacities, "c": 9}).waves(1)


def test_what_makes_way_goes_to_no_node_that_may_not_take_it():
    swap = [Move(0, "a", "b", 5), Move(1, "b", "a", 5)]
    load, capacity = {"a": 5, "b": 5, "c": 0, "d": 0}, {"a": 5, "b": 5}
    assert waves_within(swap, 1, load, capacity, {"c": [0], "d": [1]})[0] == (Move(0, "a", "d", 5),)
    with pytest.raises(ValueError, match="wait for each other"):
        waves_within(swap, 1, load, capacity, {"c": [0, 1], "d": [0, 1]})


def test_waves_and_estimate_of_a_plan():
    plan = plan_rebalance(Layout.create("k", 64, ["a", "b", "c"]), ["a", "b", "c", "d"])
    assert [len(wave) for wave in plan.waves(4)] == [4] * 4
    assert plan.with_sizes([10] * 64).estimate(bandwidth=5) == (32.0, 32.0)
    assert plan.with_sizes([10] * 64).estimate(bandwidth=5, concurrency=16) == (32.0, 32.0)
    with pytest.raises(ValueError, match="sizes of the partitions are not known"):
        plan.estimate(bandwidth=5)
    for five in (5.0, np.int64(5), np.float32(5), Fraction(5)):
        assert plan.with_sizes([10] * 64).estimate(five) == (32.0, 32.0)
    for wrong in (0, -1, "fast", float("inf"), True):
        with pytest.raises(ValueError, match="bandwidth must be a number of bytes a second above 0"):
            plan.estimate(bandwidth=wrong)
    for wrong in (0, 1.5):
        with pytest.raises(ValueError, match="concurrency must be"):
            plan.waves(wrong)
    nothing = plan_rebalance(plan.after, plan.after.nodes)
    assert nothing.waves(1) == ()
    assert nothing.estimate(bandwidth=1) == (0.0, 0.0)


def test_thousands_of_moves_from_one_node():
    plan = plan_rebalance(Layout.create("k", 20_000, ["a"]), list("abcdefghijk"))
    assert len(plan.waves()) == most(plan.moves)


def test_thousands_of_moves_between_many_nodes():
    plan = plan_rebalance(Layout.create("k", 20_000, list(range(50)), vnodes=16), list(range(25, 80)))
    assert len(plan.waves(2)) == most(plan.moves, 2)
