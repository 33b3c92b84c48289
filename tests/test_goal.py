"""What can be asked of a plan: tolerance, pins, bans, draining nodes, capacities, sizes."""

import doctest
import json
from fractions import Fraction
from itertools import product
from math import ceil, floor, inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from layouts import layout, owners
from solver import least_cost
from tiers import examples

from chash_partition import Layout, RebalancePlan, plan_rebalance
from chash_partition.goal import levels, quotas_within
from chash_partition.layout import quotas

NAMES = ["w1", "w11", "w1#1", "W1", "", "名"]
weights = st.sampled_from([1, 1, 1, 2, 0.5, 0.01, 1.0, 300])
clusters = st.dictionaries(st.sampled_from(NAMES), weights, min_size=1)


@st.composite
def asked(draw, max_partitions=24):
    """A layout as it happens to be, nodes, and terms for equal sizes."""
    before = layout(draw(st.integers(1, max_partitions)), draw(clusters), vnodes=draw(st.integers(1, 9)))
    if draw(st.booleans()):
        total = before.npartitions
        before = before.with_assignment(
            draw(st.lists(st.sampled_from(NAMES), min_size=total, max_size=total))
        )
    nodes = draw(clusters)
    partitions = st.integers(0, before.npartitions - 1)
    kept = [p for p in range(before.npartitions) if before.owner_of(p) in nodes]
    names = st.sampled_from(sorted(nodes))
    terms = {"tolerance": draw(st.sampled_from([0, 0.05, 0.3, 0.7]))}
    if draw(st.booleans()) and len(nodes) > 1:
        terms["draining"] = sorted(draw(st.sets(names, max_size=len(nodes) - 1)))
    if draw(st.booleans()) and kept:
        terms["pinned"] = draw(st.sets(st.sampled_from(kept), max_size=3))
    if draw(st.booleans()):
        pins = terms.get("pinned", ())
        bans = draw(st.dictionaries(names, st.sets(partitions, max_size=8), max_size=2))
        terms["banned"] = {name: banned - set(pins) for name, banned in bans.items()}
    return before, nodes, terms


def possible(before, nodes, **terms):
    """The plan, if there is one: a partition may happen to be banned everywhere."""
    try:
        return plan_rebalance(before, nodes, **terms)
    except ValueError as error:
        if "is banned from every node" not in str(error):
            raise
        assume(False)


def exact(nodes):
    return {name: Fraction(str(weight)) for name, weight in nodes.items()}


def check(plan, nodes, terms):
    """Each partition is in one node, and no term is broken."""
    before, after = owners(plan.before), owners(plan.after)
    moved = {move.partition: move for move in plan.moves}
    for p in range(plan.before.npartitions):
        if p in moved:
            assert (before[p], after[p]) == moved[p][1:3]
        assert (before[p] != after[p]) == (p in moved)
        assert p not in terms.get("pinned", ()) or p not in moved
        assert after[p] not in terms.get("draining", ()) or p in terms.get("pinned", ())
        assert p not in terms.get("banned", {}).get(after[p], ())
        assert after[p] in nodes


@given(asked())
def test_a_plan_keeps_its_terms_meets_its_bound_and_is_made_once(given_):
    before, nodes, terms = given_
    plan = possible(before, nodes, **terms)
    check(plan, nodes, terms)
    assert len(plan.moves) == plan.lower_bound
    assert plan_rebalance(plan.after, nodes, **terms).moves == ()


@pytest.mark.thorough
@examples(1.5)
@given(asked())
def test_fewest_moves_against_a_solver(given_):
    before, nodes, terms = given_
    plan = possible(before, nodes, **terms)
    draining, pinned = terms.get("draining", ()), terms.get("pinned", set())
    active = [name for name in sorted(nodes) if name not in draining]
    count = [p for p in range(before.npartitions) if not (p in pinned and before.owner_of(p) in draining)]
    weight = exact(nodes)
    shares = [len(count) * weight[name] / sum(weight[n] for n in active) for name in active]
    held = {name: sum(before.owner_of(p) == name for p in pinned) for name in active}
    t = Fraction(str(terms["tolerance"]))
    low = [min(floor(x), ceil((1 - t) * x)) for x in shares]
    high = [max(ceil(x), floor((1 + t) * x)) for x in shares]
    assume(any(terms.values()) and all(held[name] <= most for name, most in zip(active, high, strict=True)))
    if not count:
        assert not plan.moves
        return
    banned = terms.get("banned", {})
    best = least_cost(
        np.ones(len(count)),
        [[before.owner_of(p) != name for name in active] for p in count],
        low,
        high,
        [
            [p not in banned.get(n, ()) and (p not in pinned or before.owner_of(p) == n) for n in active]
            for p in count
        ],
    )
    assert banned or pinned if best is None else len(plan.moves) == best


@given(clusters, st.integers(0, 200), st.data())
def test_quotas_are_a_special_case(nodes, total, data):
    nodes = dict(sorted(exact(nodes).items()))
    held = data.draw(st.lists(st.integers(0, 60), min_size=len(nodes), max_size=len(nodes)))
    shares = levels(nodes, total, [0] * len(nodes), [total] * len(nodes))
    assert shares == [total * weight / sum(nodes.values()) for weight in nodes.values()]
    bounds = [floor(x) for x in shares], [ceil(x) for x in shares]
    assert (
        quotas_within(shares, np.array(held), *bounds, total).tolist() == quotas(nodes, total, held).tolist()
    )


@given(clusters, st.data())
def test_levels(nodes, data):
    nodes = dict(sorted(exact(nodes).items()))
    bounds = data.draw(
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=len(nodes), max_size=len(nodes))
    )
    least, most = [min(b) for b in bounds], [max(b) for b in bounds]
    total = data.draw(st.integers(sum(least), sum(most)))
    shares = levels(nodes, total, least, most)
    assert sum(shares) == total
    assert all(a <= x <= b for a, x, b in zip(least, shares, most, strict=True))
    inner = {x / w for a, x, b, w in zip(least, shares, most, nodes.values(), strict=True) if a < x < b}
    assert len(inner) <= 1


def test_within_the_tolerance_nothing_moves():
    before = layout(100, ["a", "b", "c", "d"]).with_assignment("a" * 27 + "b" * 23 + "c" * 26 + "d" * 24)
    assert len(plan_rebalance(before, list("abcd")).moves) == 3
    assert plan_rebalance(before, list("abcd"), tolerance=0.1).moves == ()
    plan = plan_rebalance(before, list("abcd"), tolerance=0.05)  # 24 to 26
    assert plan.after.counts() == {"a": 26, "b": 24, "c": 26, "d": 24}
    assert (len(plan.moves), plan.lower_bound) == (1, 1)


def test_a_draining_node_loses_all_but_what_is_pinned_and_stays_known():
    before = layout()
    mine = before.partitions_of("w1").tolist()
    plan = plan_rebalance(before, before.nodes, draining=["w1"])
    assert plan.after.counts()["w1"] == 0
    assert plan.after.weights["w1"] == 1
    assert {move.partition for move in plan.moves} == set(mine)
    assert (plan.imbalance_before, plan.imbalance_after) == (inf, 22 / (64 / 3))
    pinned = plan_rebalance(before, before.nodes, draining=["w1"], pinned=mine[:2])
    assert pinned.after.partitions_of("w1").tolist() == mine[:2]
    assert pinned.imbalance_after < 1.1
    assert "drains" in str(plan)


def test_the_ring_decides_where_what_is_asked_leaves_a_choice():
    """With terms that change nothing, the plan is the one without."""
    before = layout()
    nodes = [*before.nodes, "w4"]
    plan = plan_rebalance(before, nodes)
    stays = min(set(range(64)) - {move.partition for move in plan.moves})
    assert plan_rebalance(before, nodes, pinned=[stays]).moves == plan.moves
    assert plan_rebalance(before, nodes, banned={"w4": [stays]}).moves == plan.moves
    assert plan_rebalance(before, nodes, sizes=[7] * 64, capacities={"w4": 7 * 12}).after == plan.after


def test_a_node_whose_pins_are_above_its_share_leaves_the_rest_to_others():
    before = layout(40, ["a", "b"]).with_assignment(["a"] * 30 + ["b"] * 10)
    plan = plan_rebalance(before, ["a", "b", "c"], pinned=range(20))
    assert plan.after.counts() == {"a": 20, "b": 10, "c": 10}


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"pinned": [64]}, "pinned partition must be from 0 to 63, got 64"),
        ({"draining": ["w9"]}, "no node 'w9'"),
        ({"draining": "w0"}, "must be a list of names"),
        ({"draining": ["w0", "w1", "w2"]}, "all nodes are draining"),
        ({"banned": {"w9": [1]}}, "no node 'w9'"),
        ({"banned": {"w0": [5], "w1": [5], "w2": [5]}}, "partition 5 is banned from every node"),
        ({"tolerance": -0.1}, "tolerance must be a number from 0"),
        ({"tolerance": 1}, "tolerance must be a number from 0"),
        ({"tolerance": "much"}, "tolerance must be a number from 0"),
        ({"capacities": {"w0": 5}}, "capacities are in bytes"),
        ({"sizes": [1] * 63}, "needs a size for each of 64 partitions, got 63"),
        ({"sizes": {0: 5}}, "partition 1 has no size"),
        ({"sizes": [-1] * 64}, "size of partition 0 must be at least 0"),
        ({"sizes": [2**60, *range(63)]}, "add up to .*, more than 2\\^53"),
        ({"sizes": [1] * 64, "capacities": {"w0": 1, "w1": 1, "w2": 1}}, "do not fit"),
        ({"sizes": [9, *[1] * 63], "capacities": {f"w{i}": 8 for i in range(3)}}, "partition 0 has 9"),
        ({"max_bytes": 5}, "max_bytes needs the sizes"),
        ({"sizes": 5}, "sizes must be a list"),
        ({"sizes": {1, 2}}, "sizes must be a list .* got set"),
        ({"sizes": (i for i in range(64))}, "sizes must be a list .* got generator"),
        ({"sizes": pd.Series([1] * 65)}, "partition in sizes must be from 0 to 63, got 64"),
        ({"sizes": pd.Series([1] * 64, index=[0, *range(63)])}, "a partition twice"),
        ({"pinned": 5}, "pinned must be a list of partitions, got 5"),
        ({"banned": {"w1": 5}}, "banned of node 'w1' must be a list of partitions, got 5"),
        ({"banned": ["w1"]}, "banned must be a mapping by node"),
        ({"capacities": 5}, "capacities must be a mapping by node"),
        ({"sizes": [1] * 64, "capacities": {"w1": 1.5}}, "capacity of node 'w1' must be an integer"),
        ({"max_moves": -1}, "max_moves must be at least 0"),
        ({"sizes": [3] * 64, "max_bytes": 2}, "more than max_bytes=2"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(terms, message):
    with pytest.raises(ValueError, match=message):
        plan_rebalance(layout(), ["w0", "w1", "w2"], **terms)


def test_pins_that_cannot_be_are_refused():
    before = layout()
    gone, p = int(before.partitions_of("w3")[0]), int(before.partitions_of("w0")[0])
    with pytest.raises(ValueError, match=f"partition {gone} is pinned to node 'w3', which leaves"):
        plan_rebalance(before, ["w0", "w1", "w2"], pinned=[gone])
    with pytest.raises(ValueError, match=f"partition {p} is pinned to node 'w0' and banned from it"):
        plan_rebalance(before, before.nodes, pinned=[p], banned={"w0": [p]})
    with pytest.raises(
        ValueError, match="node 'w0' has a capacity of 1 bytes, and the partitions pinned to it"
    ):
        plan_rebalance(before, before.nodes, pinned=[p], sizes=[2] * 64, capacities={"w0": 1})


def test_the_ring_placement_takes_no_terms():
    before = layout(placement="ring")
    with pytest.raises(ValueError, match="tolerance needs placement 'bounded'"):
        plan_rebalance(before, before.nodes, tolerance=0.1)
    sizes = list(range(64))
    plan = plan_rebalance(before, ["w0", "w1"], sizes=sizes)
    assert plan.lower_bound == plan.nbytes == sum(move.partition for move in plan.moves)
    assert plan.moves == plan_rebalance(before, ["w0", "w1"]).with_sizes(sizes).moves


# Sizes


@examples(0.5)
@given(asked(), st.integers(0, 1000))
def test_equal_sizes_are_the_plan_without_sizes(given_, each):
    before, nodes, terms = given_
    plan = possible(before, nodes, **terms)
    sized = plan_rebalance(before, nodes, sizes=[each] * before.npartitions, **terms)
    assert sized.after == plan.after
    assert sized.lower_bound == plan.lower_bound * each == sized.nbytes
    if each:
        assert (sized.imbalance_before, sized.imbalance_after) == (
            plan.imbalance_before,
            plan.imbalance_after,
        )


@pytest.mark.thorough
@settings(examples(0.3), phases=[Phase.explicit, Phase.generate])
@given(asked(12), st.data())
def test_bytes_against_a_solver(given_, data):
    """Largest load first where nothing is within the tolerance, then bytes."""
    before, nodes, terms = given_
    assume(not terms.get("pinned"))
    total = before.npartitions
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=total, max_size=total))
    assume(len(set(sizes)) > 1)
    plan = possible(before, nodes, sizes=sizes, **terms)
    check(plan, nodes, terms)
    active = [name for name in sorted(nodes) if name not in terms.get("draining", ())]
    weight = exact(nodes)
    shares = [sum(sizes) * weight[name] / sum(weight[n] for n in active) for name in active]
    n, t = len(active), Fraction(str(terms["tolerance"]))
    allowed = [[p not in terms.get("banned", {}).get(name, ()) for name in active] for p in range(total)]
    cost = [[sizes[p] * (before.owner_of(p) != name) for name in active] for p in range(total)]
    low, high = [ceil((1 - t) * x) for x in shares], [floor((1 + t) * x) for x in shares]

    def fewest(low, high):
        if any(a > b for a, b in zip(low, high, strict=True)):
            return None
        return least_cost(sizes, cost, low, high, allowed)

    assert plan.lower_bound <= plan.nbytes
    best = fewest(low, high)
    if best is not None:
        assert plan.nbytes == best
        assert "outside" not in str(plan)
        return
    assert "outside" in str(plan)
    if any(sum(nodes_of_one) == 1 for nodes_of_one in allowed):
        return  # a node may have to own more than its band, and sets the share of others
    largest = max(Fraction(plan.loads[name].after) / x for name, x in zip(active, shares, strict=True))
    # No lower load is possible: every level just below some load that a node could have.
    below = [ceil(largest * x) - 1 for x in shares]
    assert fewest([0] * n, below) is None
    assert plan.nbytes == fewest([0] * n, [floor(largest * x) for x in shares])


def test_a_partition_larger_than_a_share_is_said_to_be():
    sizes = [1000, *range(1, 64)]
    plan = plan_rebalance(layout(), [f"w{i}" for i in range(8)], sizes=sizes, tolerance=0.05)
    assert "No placement is within the tolerance: partition 0 alone has 1,000 B" in str(plan)
    assert "Pin it" in str(plan)
    assert max(load.after for load in plan.loads.values()) == 1000


def test_a_pinned_giant_leaves_the_rest_to_the_others():
    sizes = [1000, *range(1, 64)]
    before = layout()
    terms = {"sizes": sizes, "tolerance": 0.05, "pinned": [0]}
    nodes = [f"w{i}" for i in range(8)]
    plan = plan_rebalance(before, nodes, **terms)
    rest = sum(sizes[1:]) / 7
    assert all(0.95 * rest <= plan.loads[n].after <= 1.05 * rest for n in nodes if n != before.owner_of(0))
    assert "pins keep nodes from their shares" in str(plan)
    assert "Pin it" not in str(plan)


def test_more_nodes_than_partitions():
    nodes = [f"w{i}" for i in range(9)]
    for sizes in (None, [5, 6, 7]):
        plan = plan_rebalance(layout(3, nodes[:1]), nodes, sizes=sizes, tolerance=0.05)
        assert sorted(plan.after.counts().values()) == [0] * 6 + [1] * 3
        assert len(plan.moves) == 2
        assert str(plan)


def test_one_node_and_partitions_of_no_bytes():
    assert plan_rebalance(layout(3, ["a"]), ["a"], sizes=[1, 2, 3]).moves == ()
    plan = plan_rebalance(layout(4, ["a"]), ["a", "b"], sizes=[0] * 4)
    assert (len(plan.moves), plan.nbytes, plan.lower_bound) == (2, 0, 0)
    plan = plan_rebalance(layout(4, ["a"]), ["b", "c"], sizes=[0, 0, 0, 5], tolerance=0.05)
    assert (plan.nbytes, len(plan.moves)) == (5, 4)


def test_sizes_in_every_form_and_nodes_in_every_order():
    before = layout()
    sizes = [100 + 7 * p % 31 for p in range(64)]
    nodes = [*before.nodes, "w4"]
    plan = plan_rebalance(before, nodes, sizes=sizes, tolerance=0.05)
    assert 0 <= plan.gap < 0.05
    for same in (
        tuple(sizes),
        np.array(sizes),
        pd.Series(sizes),
        dict(enumerate(sizes)),
        pd.Series(sizes, dtype=float),
    ):
        assert plan_rebalance(before, nodes[::-1], sizes=same, tolerance="0.05") == plan
    weights = dict.fromkeys(nodes, 1.0)
    assert plan_rebalance(before, weights, sizes=sizes, tolerance=Fraction(1, 20)) == plan


def test_capacities_hold_in_the_end():
    sizes = list(range(1, 65))
    capacities = {"w0": 300, "w1": 400}
    plan = plan_rebalance(
        layout(), ["w0", "w1", "w2", "w3"], sizes=sizes, capacities=capacities, tolerance=0.05
    )
    assert all(plan.loads[name].after <= limit for name, limit in capacities.items())
    rest = (sum(sizes) - 700) / 2
    assert all(0.95 * rest <= plan.loads[name].after <= 1.05 * rest for name in ("w2", "w3"))


@pytest.mark.parametrize(
    ("npartitions", "share"), [(512, 0.3), pytest.param(2048, 0.6, marks=pytest.mark.thorough)]
)
def test_a_node_that_returns_gets_its_own_partitions_back_by_bytes_too(npartitions, share):
    """Not all: the fewest bytes come first, and the ring only where they are the same."""
    sizes = np.random.default_rng(1).integers(50, 150, npartitions)
    nodes = [f"w{i}" for i in range(16)]
    before = plan_rebalance(layout(npartitions, nodes), nodes, sizes=sizes, tolerance=0.05).after
    without = plan_rebalance(before, nodes[1:], sizes=sizes, tolerance=0.05).after
    again = plan_rebalance(without, nodes, sizes=sizes, tolerance=0.05).after
    own = set(before.partitions_of("w0"))
    assert len(own & set(again.partitions_of("w0"))) > share * len(own)


# Budgets


def follow(before, nodes, **terms):
    """Plan and carry out until nothing is left: the plans."""
    plans = [plan_rebalance(before, nodes, **terms)]
    while plans[-1].moves:
        plans.append(plan_rebalance(plans[-1].after, nodes, **terms))
    return plans[:-1]


@examples(0.4)
@given(asked(), st.integers(1, 5), st.booleans(), st.data())
def test_budgets_lead_to_the_full_plan(given_, budget, by_bytes, data):
    before, nodes, terms = given_
    if by_bytes:
        total = before.npartitions
        terms["sizes"] = data.draw(st.lists(st.integers(0, 9), min_size=total, max_size=total))
    full = possible(before, nodes, **terms)
    limit = {"max_bytes": 9 * budget} if by_bytes else {"max_moves": budget}
    plans = follow(before, nodes, **terms, **limit)
    assert sorted(move for plan in plans for move in plan.moves) == list(full.moves)
    if plans:
        assert plans[-1].after.assignment.tolist() == full.after.assignment.tolist()
        assert plans[-1].after.weights == full.after.weights
        assert plans[-1].after.extra == full.after.extra
        assert plans[0].lower_bound == full.lower_bound
    for plan in plans:
        assert plan.nbytes <= 9 * budget if by_bytes else len(plan.moves) <= budget
        assert RebalancePlan.from_json(plan.to_json()) == plan
        assert not plan.rest or "part of a plan" in str(plan)


def test_the_budget_goes_first_where_it_relieves_most():
    before = layout(100, ["a", "b", "c", "d"]).with_assignment("c" * 20 + "b" * 30 + "a" * 50)
    plans = follow(before, list("abcd"), max_moves=5)
    worst = [plan.imbalance_after for plan in plans]
    assert worst == sorted(worst, reverse=True)
    assert {move.source for move in plans[0].moves} == {"a"}
    assert plans[0].imbalance_after == 45 / 25


@examples(0.5)
@given(st.integers(2, 24), st.booleans(), st.sampled_from(["abcd", "abe"]), st.data())
def test_the_next_move_relieves_the_node_that_is_most_above_its_share(npartitions, by_bytes, after, data):
    owned = data.draw(st.lists(st.sampled_from("abcd"), min_size=npartitions, max_size=npartitions))
    before = layout(npartitions, list("abcd")).with_assignment(owned)
    terms = {}
    if by_bytes:
        sizes = data.draw(st.lists(st.integers(1, 9), min_size=npartitions, max_size=npartitions))
        terms = {"sizes": sizes, "tolerance": 0.05}
    for part in follow(before, list(after), **terms, max_moves=1):
        (move,) = part.moves
        above = {
            name: load.before / load.share if load.share else inf
            for name, load in part.loads.items()
            if name in {other.source for other in (move, *part.rest)}
        }
        assert above[move.source] == max(above.values())


def test_other_terms_are_another_plan():
    before = layout()
    part = plan_rebalance(before, ["w0", "w1", "w2"], max_moves=3)
    assert len(part.rest) == 13
    assert len(part.after.nodes) == 4
    assert len(plan_rebalance(part.after, ["w0", "w1", "w2"]).moves) == 13
    back = plan_rebalance(part.after, before.nodes)
    assert len(back.moves) == 3
    assert "rest_of_plan" not in back.after.extra
    assert plan_rebalance(part.after.split(2), ["w0", "w1", "w2"]).lower_bound == 26
    assert plan_rebalance(before, ["w0", "w1", "w2"], max_moves=0).moves == ()


def test_a_layout_that_was_changed_by_hand_is_planned_anew():
    part = plan_rebalance(layout(), ["w0", "w1", "w2"], max_moves=3).after
    other = owners(part)
    other[0] = "w1" if other[0] != "w1" else "w2"
    plan = plan_rebalance(part.with_assignment(other), ["w0", "w1", "w2"])
    assert len(plan.moves) == plan.lower_bound


# Bands, against all placements there are


@st.composite
def few(draw):
    """Few enough partitions and nodes to try all placements, and terms that may exclude each other."""
    nodes = draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 1, 2, 0.5]), min_size=2))
    total = draw(st.integers(1, 7))
    names = st.sampled_from("abcd")
    before = layout(total, list("abcd"), vnodes=4).with_assignment(
        draw(st.lists(names, min_size=total, max_size=total))
    )
    kept = [p for p in range(total) if before.owner_of(p) in nodes]
    pinned = draw(st.sets(st.sampled_from(kept))) if kept and draw(st.booleans()) else set()
    terms = {"tolerance": draw(st.sampled_from([0, 0.2, 0.5])), "pinned": pinned}
    if draw(st.booleans()):
        bans = draw(st.dictionaries(names, st.sets(st.integers(0, total - 1)), max_size=3))
        terms["banned"] = {n: b - pinned for n, b in bans.items() if n in nodes or n in before.nodes}
    kind = draw(st.sampled_from(["unknown", "equal", "unequal"]))
    if kind != "unknown":
        each = st.just(10) if kind == "equal" else st.integers(1, 20)
        terms["sizes"] = draw(st.lists(each, min_size=total, max_size=total))
        if draw(st.booleans()):
            held = sum(terms["sizes"])
            limits = st.integers(held // 3, held)
            chosen = st.sampled_from([*nodes, *before.nodes])
            terms["capacities"] = draw(st.dictionaries(chosen, limits, max_size=2))
    return before, nodes, terms


def placements(before, nodes, terms):
    """Owners and bytes moved, of all placements that keep pins, bans and capacities."""
    sizes = terms.get("sizes", [1] * before.npartitions)
    choices = [
        [before.owner_of(p)] if p in terms["pinned"]
        else [n for n in nodes if p not in terms.get("banned", {}).get(n, ())]
        for p in range(before.npartitions)
    ]  # fmt: skip
    for at in product(*choices):
        held = dict.fromkeys(nodes, 0)
        for n, size in zip(at, sizes, strict=True):
            held[n] += size
        if all(held[n] <= limit for n, limit in terms.get("capacities", {}).items() if n in nodes):
            yield (
                held,
                sum(s for p, (n, s) in enumerate(zip(at, sizes, strict=True)) if before.owner_of(p) != n),
            )


@examples(1.25)
@given(few(), st.integers(1, 3))
def test_all_nodes_are_inside_their_bands_if_they_can_be(given_, budget):
    before, nodes, terms = given_
    every = list(placements(before, nodes, terms))
    if not every:
        with pytest.raises(ValueError, match=r"partition|bans"):
            plan_rebalance(before, nodes, **terms)
        return
    plan = plan_rebalance(before, nodes, **terms)
    sizes = terms.get("sizes", [1] * before.npartitions)
    unit = sizes[0] if len(set(sizes)) == 1 else None
    weight, t = exact(nodes), Fraction(str(terms["tolerance"]))
    shares = {n: sum(sizes) * w / sum(weight.values()) for n, w in weight.items()}

    def inside(held):
        return all(
            (1 - t) * share <= held[n] <= (1 + t) * share
            or (unit and floor(share / unit) * unit <= held[n] <= ceil(share / unit) * unit)
            for n, share in shares.items()
        )

    after = {name: plan.loads[name].after for name in nodes}
    cost = plan.nbytes if "sizes" in terms else len(plan.moves)
    assert (after, cost) in every
    assert plan.lower_bound <= cost
    # Without terms, the rule for quotas may let a node keep one more than a share that is whole.
    plain = unit and not any(terms.get(what) for what in ("tolerance", "pinned", "banned", "capacities"))
    best = None if plain else min((moved for held, moved in every if inside(held)), default=None)
    if best is not None:
        assert inside(after)
        assert cost == best
    assert not unit or cost == plan.lower_bound
    assert plain or inside(after) == ("outside" not in str(plan))
    # A plan made again on its own result moves nothing, and its parts move nothing twice.
    assert plan_rebalance(plan.after, nodes, **terms).moves == ()
    if "capacities" in terms:
        return  # two full nodes that swap may need a larger budget
    seen = [move for part in follow(before, nodes, **terms, max_moves=budget) for move in part.moves]
    assert sorted(seen) == list(plan.moves)


def test_terms_may_name_a_node_that_the_plan_took_away():
    terms = {"banned": {"w3": [1]}, "sizes": [5] * 64, "capacities": {"w3": 500}}
    before, nodes = layout(), ["w0", "w1", "w2"]
    plans = follow(before, nodes, **terms, max_moves=5)
    assert [len(plan.moves) for plan in plans] == [5, 5, 5, 1]
    again = plan_rebalance(plans[-1].after, nodes, **terms)
    assert again.moves == ()
    assert RebalancePlan.from_json(again.to_json()) == again
    assert plan_rebalance(again.after, nodes, **terms).moves == ()
    with pytest.raises(ValueError, match="no node 'w3'"):
        plan_rebalance(plan_rebalance(again.after, nodes).after, nodes, **terms)


def test_a_node_beyond_its_capacity_gives_part_by_part():
    before = layout(8, ["a"])
    terms = {"sizes": [10] * 8, "capacities": {"a": 25}}
    assert [len(plan.moves) for plan in follow(before, ["a", "b"], **terms, max_moves=2)] == [2, 2, 2]


def test_a_plan_outside_the_tolerance_is_a_fixed_point():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 1000, 16)
    nodes = ["w0", "w1", "w2", "w3"]
    plan = plan_rebalance(layout(16, nodes[:3]), nodes, sizes=sizes)
    assert "No placement within the tolerance" in str(plan)
    assert plan_rebalance(plan.after, nodes, sizes=sizes).moves == ()
    # Nor does it move for next to nothing when sizes change a little.
    assert plan_rebalance(plan.after, nodes, sizes=sizes * 1000 + rng.integers(0, 9, 16)).moves == ()
    parts = follow(layout(16, nodes[:3]), nodes, sizes=sizes, max_moves=3)
    assert sorted(move for part in parts for move in part.moves) == list(plan.moves)


def test_bans_of_others_leave_a_node_with_much_and_the_rest_is_shared():
    before = layout(40, list("abcd")).with_assignment(["a"] * 22 + ["b"] * 12 + ["c"] * 4 + ["d"] * 2)
    plan = plan_rebalance(before, before.nodes, banned=dict.fromkeys("bcd", range(22)))
    assert plan.after.counts() == {"a": 22, "b": 6, "c": 6, "d": 6}
    assert len(plan.moves) == plan.lower_bound == 6
    assert "bans keep nodes from their shares, and the others share the rest" in " ".join(str(plan).split())


def test_bans_of_others_by_bytes():
    before = layout(40, list("abcd")).with_assignment(["a"] * 22 + ["b"] * 12 + ["c"] * 4 + ["d"] * 2)
    sizes = [100 + p for p in range(40)]
    plan = plan_rebalance(
        before, before.nodes, banned=dict.fromkeys("bcd", range(22)), sizes=sizes, tolerance=0.05
    )
    assert plan.after.counts()["a"] == 22
    assert all(0.95 <= plan.loads[name].after / (sum(sizes[22:]) / 3) <= 1.05 for name in "bcd")
    assert "bans keep nodes from their shares" in " ".join(str(plan).split())


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"pinned": range(55)},
        {"pinned": range(55), "sizes": [10] * 100},
        {"pinned": range(55), "sizes": [10] * 99 + [11]},
        {"capacities": {"b": 420}, "sizes": [10] * 100},
        {"capacities": {"b": 420}, "sizes": [10] * 99 + [11]},
    ],
)
def test_pins_and_capacities_within_the_band_do_not_widen_it(terms):
    before = layout(100, ["a", "b"]).with_assignment(["a"] * 66 + ["b"] * 34)
    plan = plan_rebalance(before, before.nodes, tolerance=0.2, **terms)
    assert plan.after.counts() == {"a": 60, "b": 40}
    assert len(plan.moves) == 6


def test_many_nodes_with_a_ban():
    before = layout(20_000, list(range(1000)), vnodes=4)
    nodes = [*range(1000), "new"]
    plan = plan_rebalance(before, nodes, banned={"new": range(10_000)})
    assert len(plan.moves) == plan.lower_bound == 19
    assert min(move.partition for move in plan.moves) >= 10_000


def test_partitions_of_no_bytes_are_counted():
    plan = plan_rebalance(layout(), ["w0", "w1"], sizes=[0] * 64)
    assert {name: load.after for name, load in plan.loads.items()} == {"w0": 32, "w1": 32, "w2": 0, "w3": 0}
    assert str(plan) == str(plan_rebalance(layout(), ["w0", "w1"]))


# A trace, and layouts that were split


@pytest.mark.parametrize("events", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_each_plan_of_a_trace_is_balanced_and_meets_its_bound(events):
    rng, partitions = np.random.default_rng(7), 4096
    nodes = [f"n{i}" for i in range(16)]
    current = layout(partitions, nodes, vnodes=64)
    moved = bounds = 0
    for event in range(events):
        if len(nodes) > 4 and rng.random() < 0.5:
            nodes.remove(nodes[rng.integers(len(nodes))])
        else:
            nodes.append(f"n{rng.integers(60)}" if rng.random() < 0.5 else f"m{event}")
            nodes = sorted(set(nodes))
        plan = plan_rebalance(current, nodes)
        moved, bounds, current = moved + len(plan.moves), bounds + plan.lower_bound, plan.after
        counts = current.counts()
        assert set(counts) == set(nodes)
        assert sum(counts.values()) == partitions
        assert max(counts.values()) - min(counts.values()) <= 1
        assert Layout.from_json(current.to_json()) == current
    assert moved == bounds


@given(asked(), st.integers(1, 3))
def test_children_stay_with_their_parent_until_a_plan_moves_them(given_, k):
    before, nodes, _ = given_
    finer = before.split(k)
    assert owners(finer) == [owner for owner in owners(before) for _ in range(k)]
    assert plan_rebalance(finer, finer.nodes, tolerance=0.999).before is finer
    plan = plan_rebalance(finer, nodes)
    check(plan, nodes, {})
    assert len(plan.moves) == plan.lower_bound


def test_a_plan_across_a_split_by_bytes():
    before = layout(32)
    sizes = [64 + p for p in range(32)]
    balanced = plan_rebalance(before, before.nodes, sizes=sizes, tolerance=0.05).after
    halves = [size // 2 + (i and size % 2) for size in sizes for i in (0, 1)]
    plan = plan_rebalance(balanced.split(2), balanced.nodes, sizes=halves, tolerance=0.05)
    assert plan.moves == ()
    plan = plan_rebalance(balanced.split(2), [*balanced.nodes, "w4"], sizes=halves, tolerance=0.05)
    assert {move.target for move in plan.moves} == {"w4"}


# As data, and for people


@examples(0.5)
@given(asked(), st.data())
def test_json_keeps_what_was_asked(given_, data):
    before, nodes, terms = given_
    total = before.npartitions
    terms["sizes"] = data.draw(st.none() | st.lists(st.integers(0, 9), min_size=total, max_size=total))
    plan = possible(before, nodes, **terms)
    again = RebalancePlan.from_json(plan.to_json(), before)
    assert again == plan
    assert str(again) == str(plan)
    assert plan._repr_html_().count("<table>") in (1, 2)


def test_a_plan_for_another_layout_is_refused():
    before = layout()
    text = plan_rebalance(before, ["w0", "w1"]).to_json()
    for other, message in (
        (layout(32), "not for layout"),
        (before.split(1), "not for layout .* at version 1"),
        (before.with_assignment(["w0"] * 64), "other owners or nodes"),
    ):
        with pytest.raises(ValueError, match=message):
            RebalancePlan.from_json(text, other)


STAYS = min(set(layout().partitions_of("w0").tolist()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terms": []}, "terms in plan JSON must be an object"),
        ({"terms": {"wish": 1}}, "terms in plan JSON must be an object"),
        ({"terms": {"pinned": 5}}, "pinned must be a list of partitions, got 5"),
        ({"rest": [[0, "nobody", "w0", "0"]]}, "rest in plan JSON does not start"),
        ({"rest": [[64, "w0", "w1", "0"]]}, "rest in plan JSON does not start"),
        ({"rest": [["x", "w0", "w1", "0"]]}, "rest in plan JSON must be a list"),
        ({"rest": [[STAYS, "w0", "nowhere", "0"]]}, "node 'nowhere' takes none"),
        ({"rest": [[STAYS, "w0", "w0", "0"]]}, "node 'w0' takes none"),
        ({"leaving": 5}, "leaving in plan JSON must be a list"),
        ({"leaving": "w0"}, "leaving in plan JSON must be a list"),
        ({"leaving": ["w0"]}, "node 'w0' takes none"),
        ({"lower_bound": 10**6}, "it is no bound"),
        ({"terms": {"pinned": [p for p in range(64) if layout().owner_of(p) == "w2"]}}, "leaves"),
        ({"terms": {"draining": ["w0"]}}, "node 'w0' takes none"),
        ({"terms": {"banned": {"w0": list(range(64))}}}, "banned from node 'w0'"),
        ({"terms": {"sizes": ["1"] * 64}}, "but its size is 1"),
        (
            {"terms": {"sizes": ["0"] * 64, "capacities": {"w0": "5"}, "banned": 5}},
            "banned must be a mapping",
        ),
        ({"rest": 5}, "rest in plan JSON must be a list"),
        ({"leaving": ["w9"]}, "no node 'w9'"),
    ],
)
def test_bad_json_is_refused(change, message):
    fields = json.loads(plan_rebalance(layout(), ["w0", "w1"]).to_json())
    with pytest.raises(ValueError, match=message):
        RebalancePlan.from_json(json.dumps({**fields, **change}))


def test_json_of_a_plan_that_breaks_its_own_terms_is_refused():
    plan = plan_rebalance(layout(), [*layout().nodes, "w4"], sizes=[1] * 64)
    first, fields = plan.moves[0], json.loads(plan.to_json())
    assert RebalancePlan.from_json(json.dumps(fields)) == plan
    for change, message in (
        ({"terms": {**fields["terms"], "pinned": [first.partition]}}, "but it is pinned"),
        ({"rest": [[first.partition, "w4", "w0", "1"]]}, "but it moves twice"),
        (
            {"terms": {**fields["terms"], "capacities": {"w4": "5"}}},
            "more on node 'w4' than its capacity of 5",
        ),
        ({"lower_bound": 13}, "it is no bound"),
    ):
        with pytest.raises(ValueError, match=message):
            RebalancePlan.from_json(json.dumps({**fields, **change}))


def test_the_page_on_plans_is_true():
    page = Path(__file__).parent.parent / "docs" / "plans.md"
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=options)
    assert not failed
    assert tried > 10
