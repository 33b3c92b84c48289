"""`df.chash`: what it says of a frame, what it computes, and what it refuses."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.callbacks import Callback
from distributed import Client, get_task_stream, wait
from frames import assert_same_rows, assert_unchanged, sample, shuffles, split

from chash_partition import Layout, chash_repartition, plan_rebalance

P = 7
FRAME = sample()


def place(on: Any = "k", frame: pd.DataFrame = FRAME, **how: Any) -> dd.DataFrame:
    return split(frame).pipe(chash_repartition, on, **{"npartitions": P, **how})


# Frames that are not placed


@pytest.mark.parametrize(
    "ask",
    [
        lambda df: df.chash,
        lambda df: df.chash.layout,
        lambda df: df.chash.persist(),
        lambda df: df.chash.merge(df),
        lambda df: df.chash.lookup(1),
        lambda df: df.chash.plan(["a"]),
        lambda df: df.chash.placement(),
    ],
)
def test_a_frame_that_is_not_placed_is_told_how(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"not placed.*df\.pipe\(chash_repartition, on=\.\.\.\)"):
        ask(split(FRAME))


def test_plain_persist_is_told_of_ours(local: None) -> None:
    with pytest.raises(ValueError, match=r"df\.persist\(\).*df\.chash\.persist\(\)"):
        _ = place().persist().chash


def test_a_frame_in_no_cluster_is_told_so(local: None) -> None:
    for placed in (place(), place().chash.persist()):
        for ask in (placed.chash.placement, placed.chash.sizes, placed.chash.rebalance):
            with pytest.raises(ValueError, match=r"in memory on a cluster.*df\.chash\.persist\(\)"):
                ask()
        with pytest.raises(ValueError, match=r"df\.chash\.persist\(\)"):
            placed.chash.retire("local")
        with pytest.raises(ValueError, match="nodes="):
            placed.chash.plan()


# Lookup


def test_lookup_gives_the_rows_of_a_key(engine: str) -> None:
    frame = FRAME.assign(s=FRAME.k.astype(str))
    placed = split(frame).pipe(chash_repartition, "k", npartitions=P, nodes=["0", "1"], engine=engine)
    persisted = placed.chash.persist()
    of_key = {key: split(frame[frame.k == key]).compute() for key in (0, 7)}
    for df, keys in ((placed, (7,)), (persisted, (0, 7, 7.0, np.int8(7)))):
        for key in keys:
            assert_same_rows(df.chash.lookup(key), of_key[int(key)], index=True)
        missing = df.chash.lookup(999)
        assert len(missing) == 0
        assert missing.dtypes.tolist() == df.dtypes.tolist()


def test_lookup_of_every_kind_of_key(local: None) -> None:
    values = [None, "a", "", "b", 1, 2.5, True, b"x", pd.Timestamp("2020"), 2**70]
    for ours in (values, ["a", "b", None], [1.0, float("nan"), -0.0], pd.to_datetime(["2020", None])):
        column = pd.Series(ours, dtype=object if ours is values else None)
        frame = pd.DataFrame({"k": column, "x": range(len(ours))})
        with dask.config.set({"dataframe.convert-string": ours is not values}):
            placed = place(frame=frame)
            for key in ours:
                expected = frame[frame.k.isna()] if pd.isna(key) else frame[frame.k == key]
                assert sorted(placed.chash.lookup(key).x) == expected.x.tolist()
    for null in (None, float("nan"), pd.NaT, pd.NA):
        assert placed.chash.lookup(null).x.tolist() == [1]


def test_lookup_among_objects_tells_kinds_apart(local: None) -> None:
    values = [b"a", "a", 0, pd.Timestamp(0), pd.Timedelta(0), datetime.time(0), False, None]
    with dask.config.set({"dataframe.convert-string": False}):
        frame = pd.DataFrame({"k": pd.Series(values, dtype=object), "row": range(len(values))})
        placed = split(frame).pipe(chash_repartition, "k", npartitions=4)
        for value, rows in zip(values, ([0], [1], [2, 6], [3], [4], [5], [2, 6], [7]), strict=True):
            assert sorted(placed.chash.lookup(value).row) == rows


def test_lookup_of_composite_keys(local: None) -> None:
    frame = FRAME.assign(j=FRAME.j.where(FRAME.j > 0))
    placed = place(["k", "j"], frame)
    for k, j in [(3, 1), (3, 2.0), (3, None), (999, 1), (3, 999)]:
        expected = frame[(frame.k == k) & (frame.j.isna() if j is None else frame.j == j)]
        assert_same_rows(placed.chash.lookup((k, j)), expected, index=True)
    with pytest.raises(ValueError, match="2"):
        placed.chash.lookup(3)
    with pytest.raises(ValueError, match="2"):
        placed.chash.lookup((3, 1, 1))


def test_lookup_follows_what_was_done_since(local: None) -> None:
    placed = place()
    got = placed[placed.x > 0].rename(columns={"k": "id"})[["id", "y"]].chash.lookup(7)
    expected = FRAME[(FRAME.x > 0) & (FRAME.k == 7)].rename(columns={"k": "id"})[["id", "y"]]
    assert_same_rows(got, expected, index=True)


def test_lookup_of_what_cannot_be_a_key(local: None) -> None:
    for key in ([1], {"a": 1}, 1j):
        with pytest.raises(TypeError, match=r"complex|list|dict"):
            place().chash.lookup(key)
    for frame, key in ((FRAME, "7"), (FRAME, pd.Timestamp(7)), (FRAME.assign(k=FRAME.k.astype(str)), 7)):
        with pytest.raises(TypeError, match=r"'k'.*dtype"):
            place(frame=frame).chash.lookup(key)


class Executed(Callback):
    """The keys of the tasks that run meanwhile."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        super().__init__(pretask=lambda key, dsk, state: self.keys.append(key))


def test_lookup_computes_one_partition(local: None) -> None:
    lazy = place(npartitions=64)
    persisted = lazy.chash.persist()
    with Executed() as executed:
        persisted.chash.lookup(7)
    assert len(executed.keys) <= 3
    with Executed() as whole:
        lazy.compute()
    with Executed() as one:
        lazy.chash.lookup(7)
    # All rows must be looked at; one partition of them is put together.
    assert len(one.keys) < len(whole.keys) - 60


def test_lookup_computes_one_partition_on_a_cluster(client: Client) -> None:
    placed = place(npartitions=64).chash.persist()
    wait(placed)
    with get_task_stream(client) as stream:
        got = placed.chash.lookup(7)
    assert_same_rows(got, FRAME[FRAME.k == 7], index=True)
    assert len(stream.data) <= 3  # the partition, handed on, and the search in it


# Persist


def test_persist_twice_is_once(local: None) -> None:
    placed = place().chash.persist()
    again = placed.chash.persist()
    assert again.chash.layout == placed.chash.layout
    assert_unchanged(again.compute(), FRAME)


def test_a_persisted_frame_can_be_sent_elsewhere(client: Client) -> None:
    placed = place(nodes=["0", "1"]).chash.persist()
    client.publish_dataset(flights=placed)
    with Client(client.scheduler.address, set_as_default=False) as other, other.as_current():
        there = other.get_dataset("flights")
        assert there.chash.layout == placed.chash.layout
        assert_same_rows(there.compute(), FRAME)
        assert shuffles(there.groupby("k").x.median()) == []
        assert_same_rows(there.groupby("k").x.median().compute(), FRAME.groupby("k").x.median())
    client.unpublish_dataset("flights")


def test_a_lazy_frame_can_be_pickled(local: None) -> None:
    placed = place(["k", "j"])
    again = pickle.loads(pickle.dumps(placed))
    assert again._name == placed._name
    assert again.chash.layout == placed.chash.layout
    assert_unchanged(again.compute(), FRAME)


def test_what_is_persisted_is_on_its_owners(client: Client) -> None:
    placed = place(npartitions=16)
    changed = placed[placed.x > 0].rename(columns={"k": "id"}).chash.persist()
    for df in (placed.chash.persist(), changed):
        layout = df.chash.layout
        owners = [layout.owner_of(p) for p in range(16)]
        placement = df.chash.placement()
        assert placement.tolist() == owners
        assert placement.index.tolist() == list(range(16))
        assert placement.index.name == "partition"
        sizes = df.chash.sizes()
        assert sizes.dtype == "int64"
        assert len(sizes) == 16
        assert (sizes > 0).all()
    assert changed.chash.layout == placed.chash.layout.rename("id")


# Plans


def test_a_plan_without_a_cluster(local: None) -> None:
    placed = place(nodes=["a", "b"], npartitions=16)
    assert (
        placed.chash.plan(["a", "b", "c"]).moves == plan_rebalance(placed.chash.layout, ["a", "b", "c"]).moves
    )


# Merge


def test_merge_words_that_do_not_fit(local: None) -> None:
    placed, plain = place(["k", "j"]), split(FRAME)
    for words, message in (
        ({"on": "k"}, r"'j'.*df\.merge"),
        ({"on": ["k", "x"]}, r"'j'.*df\.merge"),
        ({"left_on": ["k", "j"], "right_on": ["k"]}, "different numbers"),
        ({"left_on": ["k", "j"], "right_on": ["k", "nope"]}, "'nope'"),
        ({"left_on": ["k", "j"]}, "right_on"),
    ):
        with pytest.raises(ValueError, match=message):
            placed.chash.merge(plain, **words)


def test_merge_with_a_key_that_has_no_hash(local: None) -> None:
    other = pd.DataFrame({"k": np.zeros(3, complex)})
    with pytest.raises(TypeError, match=r"'k'.*complex"):
        place().chash.merge(split(other), on="k")


def test_the_layout_of_a_frame_on_no_cluster_is_its_own(local: None) -> None:
    layout = Layout.create("k", P, {"a": 1, "b": 2})
    placed = split(FRAME).pipe(chash_repartition, "k", layout=layout)
    assert placed.chash.layout == placed.chash.persist().chash.layout == layout
