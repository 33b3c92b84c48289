"""Group-bys and merges skip their shuffle where that is right, and never where it is wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import cycle
from typing import Any

import dask
import dask.dataframe as dd
import frames
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from frames import assert_placed, assert_same_rows, blocks_of, of_blocks, row_counts, sample, shuffles
from tiers import once, pairs, some, thorough

from chash_partition import chash_repartition

P = 3
FRAME = sample(rows=80, keys=17)
OTHER = sample(rows=40, keys=17, seed=1).rename(columns={"y": "w", "row": "v"})[["k", "w", "v"]]


def split(frame: pd.DataFrame, npartitions: int = 2) -> dd.DataFrame:
    return frames.split(frame, npartitions)


def place(frame: pd.DataFrame, on: Any = "k", npartitions: int = P, **how: Any) -> dd.DataFrame:
    return split(frame).pipe(chash_repartition, on, npartitions=npartitions, **how)


IN_MEMORY: dict[str, dd.DataFrame] = {}


def persisted(df: dd.DataFrame) -> dd.DataFrame:
    """The frame in memory, computed once for all tests."""
    if df._name not in IN_MEMORY:
        IN_MEMORY[df._name] = df.chash.persist()
    return IN_MEMORY[df._name]


STATES: dict[str, Callable[[dd.DataFrame], dd.DataFrame]] = {"lazy": lambda df: df, "persisted": persisted}


@pytest.fixture(params=["lazy", *thorough("persisted")])
def ready(request: pytest.FixtureRequest, local: None) -> Callable[[dd.DataFrame], dd.DataFrame]:
    """Hands placed frames over as they are, or persisted."""
    return STATES[request.param]


def assert_same(got: Any, expected: Any) -> None:
    """The same result, its index included where it has names: rows may come in any order."""
    got = got.compute()
    named = any(name is not None for name in expected.index.names)
    assert got.index.names == expected.index.names
    assert row_counts(got, index=named) == row_counts(expected, index=named)
    if isinstance(expected, pd.DataFrame):
        assert list(got.columns) == list(expected.columns)


# Group-bys


def _spread(group: pd.DataFrame) -> pd.Series:
    return pd.Series({"low": group["x"].min(), "rows": len(group)})


def _sorted(values: Any) -> list[int]:
    return sorted(map(int, values))


def _meta(df: Any, name: str) -> dict[str, Any]:
    return {"meta": (name, object)} if isinstance(df, dd.DataFrame) else {}


def _range(values: pd.Series) -> float:
    return values.max() - values.min()


SPREAD = pd.DataFrame({"low": [1], "rows": [1]})
RANGE = dd.Aggregation(
    "range",
    chunk=lambda s: (s.max(), s.min()),
    agg=lambda high, low: (high.max(), low.min()),
    finalize=lambda high, low: high - low,
)

EVERY = ("sum", "prod", "min", "max", "mean", "var", "std", "first", "last")

# On the key: name -> what to do in Dask, and in pandas if that is written otherwise.
Both = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _both(function: Callable[[Any], Any]) -> Both:
    return function, function


GROUPED: dict[str, Both] = {
    "apply": (
        lambda df: df.groupby("k")[["x"]].apply(_spread, meta=SPREAD),
        lambda df: df.groupby("k")[["x"]].apply(_spread),
    ),
    "apply to a column": (
        lambda df: df.groupby("k").x.apply(lambda s: s.max() - s.min(), meta=("x", "int64")),
        lambda df: df.groupby("k").x.apply(lambda s: s.max() - s.min()),
    ),
    "agg of a dict": _both(lambda df: df.groupby("k").agg({"x": "sum"})),
    "agg of a dict of lists": _both(
        lambda df: df.groupby("k").agg({"x": ["sum", "max"], "y": ["min", "count"]})
    ),
    "agg of a list": _both(lambda df: df.groupby("k")[["x", "y"]].agg(["sum", "min"])),
    "agg of a word": _both(lambda df: df.groupby("k")[["x", "y"]].agg("max")),
    "agg with a median": _both(lambda df: df.groupby("k").agg({"x": ["median", "sum"]})),
    "agg of our own": (
        lambda df: df.groupby("k").agg({"x": RANGE}),
        lambda df: df.groupby("k").agg({"x": lambda s: s.max() - s.min()}),
    ),
    **{
        f"agg into {out}": (
            lambda df, out=out: df.groupby("k").agg({"x": "sum", "y": ["max"]}, split_out=out),
            lambda df: df.groupby("k").agg({"x": "sum", "y": ["max"]}),
        )
        for out in (1, 3, P, 40, True)
    },
    "sum into 3": (
        lambda df: df.groupby("k").x.sum(split_out=3),
        lambda df: df.groupby("k").x.sum(),
    ),
    "unsorted": _both(lambda df: df.groupby("k", sort=False).agg({"x": "sum"})),
    "size": _both(lambda df: df.groupby("k").size()),
    "count": _both(lambda df: df.groupby("k").count()),
    "nunique": _both(lambda df: df.groupby("k").x.nunique()),
    "value_counts": _both(lambda df: df.groupby("k").j.value_counts()),
    "median": _both(lambda df: df.groupby("k").median()),
    "median of a column": _both(lambda df: df.groupby("k").x.median()),
    "transform": (
        lambda df: df.groupby("k").x.transform("sum", meta=("x", "int64")),
        lambda df: df.groupby("k").x.transform("sum"),
    ),
    "cumulated": (
        lambda df: df.groupby("k").x.transform(lambda s: s.sort_values().cumsum(), meta=("x", "int64")),
        lambda df: df.groupby("k").x.transform(lambda s: s.sort_values().cumsum()),
    ),
    **{
        name: _both(lambda df, name=name: getattr(df.groupby("k")[["x", "y"]], name)().round(6))
        for name in (*EVERY, "idxmin", "idxmax", "cumsum", "cumprod", "ffill", "bfill", "head", "tail")
    },
    "agg of every word": _both(
        lambda df: df.groupby("k").agg({"x": [*EVERY, "count", "size", "median"]}).round(6)
    ),
    "agg by name": _both(lambda df: df.groupby("k").agg(low=("x", "min"), high=("y", "max"))),
    "agg into lists": _both(lambda df: df.groupby("k").x.agg(list)),
    "cumcount": _both(lambda df: df.groupby("k").cumcount()),
    "cumsum, superset": _both(lambda df: df.groupby(["j", "k"]).x.cumsum()),
    "shift": (
        lambda df: df.groupby("k").x.shift(1, meta=("x", "float64")),
        lambda df: df.groupby("k").x.shift(1),
    ),
    "unique": _both(lambda df: df.groupby("k").j.unique().map(_sorted, **_meta(df, "j"))),
    "a key as Series": _both(lambda df: df.groupby(df.k).x.sum()),
    "superset": _both(lambda df: df.groupby(["k", "j"]).agg({"x": "sum"})),
    "superset, other order": _both(lambda df: df.groupby(["j", "k"]).agg({"x": ["median", "sum"]})),
    "superset, apply": (
        lambda df: df.groupby(["j", "k"])[["x"]].apply(_spread, meta=SPREAD),
        lambda df: df.groupby(["j", "k"])[["x"]].apply(_spread),
    ),
    "distinct rows": _both(lambda df: df[["k", "j"]].drop_duplicates()),
    "distinct rows by the key": _both(lambda df: df.drop_duplicates(subset=["j", "k"])),
    "distinct rows by the key, the last": _both(lambda df: df.drop_duplicates(subset="k", keep="last")),
    "distinct keys": _both(lambda df: df.k.drop_duplicates()),
    "distinct keys of filtered": _both(lambda df: df[df.x > 0].k.dropna().drop_duplicates()),
    "keys": (lambda df: df.k.unique(), lambda df: pd.Series(df.k.unique(), name="k")),
    "number of keys": (
        lambda df: df.k.to_frame().k.nunique().to_series(),
        lambda df: pd.Series(df.k.nunique()),
    ),
    "number of keys and nulls": (
        lambda df: df.k.nunique(dropna=False).to_series(),
        lambda df: pd.Series(df.k.nunique(dropna=False)),
    ),
    "rows a key": _both(lambda df: df.k.value_counts()),
    "rows a key and null": _both(lambda df: df.k.value_counts(dropna=False)),
    "rows a key, sorted": _both(lambda df: df.k.value_counts(sort=True, ascending=True)),
    "share of rows a key": _both(lambda df: df.k.value_counts(normalize=True).round(9)),
    "rows a key, of renamed": _both(lambda df: df.rename(columns={"k": "id"}).id.value_counts()),
    "of filtered": _both(lambda df: df[df.x > 0].groupby("k").agg({"y": ["median", "sum"]})),
    "of renamed": _both(lambda df: df.rename(columns={"k": "id"}).groupby("id").agg({"y": "median"})),
    "of assigned": _both(lambda df: df.assign(z=df.x + df.y).groupby("k").agg({"z": "median"})),
    "with what it was": _both(lambda df: df.assign(m=df.j).drop(columns="x").groupby(["k", "m"]).y.median()),
}


@pytest.mark.parametrize("how", GROUPED)
def test_a_groupby_on_the_key_shuffles_nothing(how: str, ready: Callable[[Any], Any]) -> None:
    in_dask, in_pandas = GROUPED[how]
    placed = ready(place(FRAME))
    got = in_dask(placed)
    assert shuffles(got) == shuffles(placed)
    assert_same(got, in_pandas(FRAME))


@pytest.mark.parametrize("how", some(GROUPED, [*GROUPED][::4]))
def test_a_groupby_on_the_key_in_one_partition(how: str, local: None) -> None:
    in_dask, in_pandas = GROUPED[how]
    assert_same(in_dask(place(FRAME, npartitions=1)), in_pandas(FRAME))


@pytest.mark.parametrize("how", some(GROUPED, [*GROUPED][1::4]))
def test_a_groupby_on_the_key_with_nulls(how: str, local: None) -> None:
    frame = FRAME.assign(k=FRAME.k.where(FRAME.k > 4).astype("float64"))
    in_dask, in_pandas = GROUPED[how]
    placed = place(frame)
    got = in_dask(placed)
    assert shuffles(got) == shuffles(placed)
    assert_same(got, in_pandas(frame))


@pytest.mark.parametrize("key", [0, 2.5, "", ("a", 1), pd.Timestamp("2020-01-01")], ids=repr)
def test_a_key_may_have_any_label(key: Any, local: None) -> None:
    def labelled(frame: pd.DataFrame) -> pd.DataFrame:
        names = [key if name == "k" else name for name in frame.columns]
        return frame.set_axis(pd.Index(names, dtype=object, tupleize_cols=False), axis=1)

    frame, other = labelled(FRAME), labelled(OTHER)
    ours = place(frame, [key])
    theirs = split(other).pipe(chash_repartition, [key], layout=ours.chash.layout)
    uses = {
        "merge": lambda df, other: df.merge(other, on=[key], how="outer"),
        "groups": lambda df, other: df.groupby([key]).agg({"x": "sum"}),
        "renamed": lambda df, other: df.rename(columns={key: "id"}).groupby("id").agg({"x": "sum"}),
        "keys": lambda df, other: df[[key]].drop_duplicates(),
        "counts": lambda df, other: df[key].value_counts(),
    }
    for name, use in uses.items():
        got, expected = use(ours, theirs), use(frame, other)
        assert len(shuffles(got)) == (2 if name == "merge" else 1)
        assert row_counts(got.compute(), index=name == "counts") == row_counts(
            expected, index=name == "counts"
        )


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("on", ["k", "c"])
def test_a_groupby_on_categories(on: str, observed: bool, local: None) -> None:
    """Those without rows are listed once if at all."""
    categories = pd.Categorical(FRAME.j.map({0: "a", 1: "b", 2: "c"}), categories=["z", "c", "b", "a", "y"])
    frame = FRAME.assign(c=categories)
    placed, by = place(frame, on), list(dict.fromkeys([on, "c"]))
    for out in (1, 3, True):
        got = placed.groupby(by, observed=observed).agg({"x": "sum"}, split_out=out)
        assert_same(got, frame.groupby(by, observed=observed).agg({"x": "sum"}))
    grouped, expected = placed.groupby(by, observed=observed), frame.groupby(by, observed=observed)
    got = grouped.x.median()
    assert_same(got, expected.x.median())
    assert_same(grouped.x.apply(_range, meta=("x", "float64")), expected.x.apply(_range))
    assert_same(grouped.x.transform("max", meta=("x", "int64")), expected.x.transform("max"))
    by_series = placed.groupby([placed[column] for column in by], observed=observed)
    assert_same(by_series.x.median(), expected.x.median())
    if observed:
        assert shuffles(got) == shuffles(placed)


@pytest.mark.parametrize("out", [3, *thorough(1, True)])
def test_null_keys_are_a_group_if_asked(out: Any, ready: Callable[[Any], Any]) -> None:
    frame = FRAME.assign(k=FRAME.k.where(FRAME.k > 4).astype("float64"))
    placed = ready(place(frame))
    got = placed.groupby("k", dropna=False).agg({"x": "sum"}, split_out=out)
    assert shuffles(got) == shuffles(placed)
    assert_same(got, frame.groupby("k", dropna=False).agg({"x": "sum"}))


def test_split_out_says_how_many_partitions_there_are(ready: Callable[[Any], Any]) -> None:
    placed = ready(place(FRAME))
    for out in (1, 3, P, 40, True):
        grouped = placed.groupby("k").agg({"x": "sum"}, split_out=out)
        assert len(blocks_of(grouped)) == grouped.optimize().npartitions


# Not by all of the key, as it was placed: name -> the key columns, Dask, pandas.
ELSEWHERE: dict[str, tuple[Any, Both]] = {
    "another column": (
        "k",
        (
            lambda df: df.groupby("j")[["x"]].apply(_spread, meta=SPREAD),
            lambda df: df.groupby("j")[["x"]].apply(_spread),
        ),
    ),
    "median by another column": ("k", _both(lambda df: df.groupby("j").x.median())),
    "derived from the key": ("k", _both(lambda df: df.groupby(df.k % 2).x.median())),
    "a series by the name of the key": ("k", _both(lambda df: df.groupby((df.k % 2).rename("k")).x.median())),
    "part of the key": (["k", "j"], _both(lambda df: df.groupby("k").x.median())),
    "other part of the key": (["k", "j"], _both(lambda df: df.groupby("j").agg({"x": "median"}))),
    "renamed to the key": (
        "k",
        _both(lambda df: df.rename(columns={"k": "j", "j": "k"}).groupby("k").x.median()),
    ),
    "assigned the key": ("k", _both(lambda df: df.assign(k=df.j).groupby("k").x.median())),
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_groupby_on_anything_else_shuffles(how: str, ready: Callable[[Any], Any]) -> None:
    on, (in_dask, in_pandas) = ELSEWHERE[how]
    placed = ready(place(FRAME, on))
    got = in_dask(placed)
    assert len(shuffles(got)) == len(shuffles(placed)) + 1
    assert_same(got, in_pandas(FRAME))


def test_a_groupby_on_the_key_as_a_series_is_right(local: None) -> None:
    placed = place(FRAME)
    assert_same(placed.groupby(placed.k).x.median(), FRAME.groupby(FRAME.k).x.median())
    assert_same(placed.groupby([placed.k, "j"]).x.sum(split_out=3), FRAME.groupby([FRAME.k, "j"]).x.sum())


# Of dask 2025.7 with numpy 2.4, where rows are sorted.
sorting = pytest.mark.filterwarnings("ignore:Passing more than 2 positional arguments")


@sorting
def test_reductions_and_duplicates_are_right(ready: Callable[[Any], Any]) -> None:
    """What is no group-by or merge is not told anything, and must not conclude anything."""
    frame = pd.concat([FRAME, FRAME.head(30)])
    placed = ready(place(frame))
    assert_same(placed.drop_duplicates(), frame.drop_duplicates())
    assert_same(placed.drop_duplicates(split_out=3), frame.drop_duplicates())
    assert_same(placed[["k", "j"]].drop_duplicates(split_out=3), frame[["k", "j"]].drop_duplicates())
    assert_same(placed.k.drop_duplicates(split_out=3), frame.k.drop_duplicates())
    assert_same(placed.k.value_counts(split_out=3), frame.k.value_counts())
    assert sorted(placed.k.unique().compute()) == sorted(frame.k.unique())
    assert placed.k.nunique().compute() == frame.k.nunique()
    assert len(placed) == len(frame)
    assert placed.x.sum().compute() == frame.x.sum()
    assert_same(placed.nlargest(5, "row"), frame.nlargest(5, "row"))
    sorted_ = placed.sort_values("row").compute()
    assert sorted_.row.tolist() == sorted(frame.row)
    assert_same(placed.set_index("row"), frame.set_index("row"))
    distinct = placed.drop_duplicates(subset=["k", "j"], split_out=3)
    assert_same(distinct.groupby("k").j.sum(), frame.drop_duplicates(subset=["k", "j"]).groupby("k").j.sum())


# Merges of a placed frame with a plain one


def _reduced(df: Any) -> Any:
    return df.groupby("k").agg({df.columns[-1]: "max"}).reset_index()


SIDES: dict[str, Callable[[Any], Any]] = {
    "whole": lambda df: df,
    "filtered": lambda df: df[df.k % 3 != 1],
    "renamed": lambda df: df.rename(columns={"k": "id"}).rename(columns={"id": "k"}),
    "reduced": _reduced,
    "of its own columns": lambda df: df[["k", df.columns[-1]]],
    "assigned": lambda df: df.assign(extra=df.k + 1),
}
HOW = ["inner", "left", "right", "outer"]


THIRD = OTHER.rename(columns={"w": "third"})[["k", "third"]]

# What is done to a merged frame: in Dask, and in pandas.
NEXT: dict[str, Both] = {
    "nothing": _both(lambda df: df),
    "groups": (
        lambda df: df.groupby("k").agg({"w": "sum"}, split_out=3),
        lambda df: df.groupby("k").agg({"w": "sum"}),
    ),
    "a merge with a plain frame": (
        lambda df: df.merge(split(THIRD, 4), on="k"),
        lambda df: df.merge(THIRD, on="k"),
    ),
    "a merge with a placed frame": (
        lambda df: df.merge(place(THIRD), on="k", how="left"),
        lambda df: df.merge(THIRD, on="k", how="left"),
    ),
}


def assert_same_after(then: str, got: dd.DataFrame, expected: pd.DataFrame) -> None:
    in_dask, in_pandas = NEXT[then]
    assert_same(in_dask(got), in_pandas(expected))


@pairs(how=HOW, then=NEXT, npartitions=[1, 2, P], placed_is=["left", "right"], state=STATES)
def test_merges_with_a_plain_frame_are_right(
    how: str, then: str, npartitions: int, placed_is: str, state: str, local: None
) -> None:
    placed, plain = STATES[state](place(FRAME)), split(OTHER, npartitions)
    if placed_is == "left":
        assert_same_after(then, placed.merge(plain, on="k", how=how), FRAME.merge(OTHER, on="k", how=how))
    else:
        assert_same_after(then, plain.merge(placed, on="k", how=how), OTHER.merge(FRAME, on="k", how=how))


@once(
    ours=SIDES,
    theirs=["whole", "filtered", "renamed", "reduced"],
    merge=["placed first", "plain first", "outer"],
)
def test_merges_after_either_side_was_changed_are_right(
    ours: str, theirs: str, merge: str, local: None
) -> None:
    placed, plain = SIDES[ours](place(FRAME)), SIDES[theirs](split(OTHER, 4))
    frame, other = SIDES[ours](FRAME), SIDES[theirs](OTHER)
    if merge == "placed first":
        assert_same(placed.merge(plain, on="k"), frame.merge(other, on="k"))
    elif merge == "plain first":
        assert_same(plain.merge(placed, on=["k"]), other.merge(frame, on=["k"]))
    else:
        outer, expected = plain.merge(placed, on="k", how="outer"), other.merge(frame, on="k", how="outer")
        assert_same(outer, expected)
        assert_same(outer.groupby("k").size(), expected.groupby("k").size())


# Partitions of the placed frame and of the small one, and what Dask is asked for.
BROADCASTS = {"by default": (17, 2, None), "if asked": (5, 3, True), "of one partition": (5, 1, True)}


@pairs(
    broadcast=BROADCASTS,
    then=NEXT,
    placed_is=["left", "right"],
    keeps=["common keys", "all of the placed frame"],
)
def test_merges_after_a_broadcast_join_are_right(
    broadcast: str, then: str, placed_is: str, keeps: str, local: None
) -> None:
    """Dask says of a broadcast join that its rows were shuffled by the merge keys; they were not."""
    of_placed, of_small, asked = BROADCASTS[broadcast]
    placed, small = persisted(place(FRAME, npartitions=of_placed)), split(OTHER, of_small)
    words: dict[str, Any] = {"on": "k", "how": "inner" if keeps == "common keys" else placed_is}
    if placed_is == "left":
        got, expected = placed.merge(small, **words, broadcast=asked), FRAME.merge(OTHER, **words)
    else:
        got, expected = small.merge(placed, **words, broadcast=asked), OTHER.merge(FRAME, **words)
    assert ("BroadcastJoin" in shuffles(got)) == (of_small > 1)
    assert_same_after(then, got, expected)


def test_merges_after_a_broadcast_join_by_another_column_are_right(local: None) -> None:
    placed, small = place(FRAME, "j", npartitions=17), split(OTHER, 2)
    merged, expected = placed.merge(small, on="k"), FRAME.merge(OTHER, on="k")
    assert "BroadcastJoin" in shuffles(merged)
    assert_same(merged.merge(split(THIRD, 17), on="k"), expected.merge(THIRD, on="k"))
    assert_same(merged.groupby("k").x.sum(split_out=3), expected.groupby("k").x.sum())


@pytest.mark.parametrize("npartitions", [P, *thorough(1)])
def test_a_merge_takes_all_words_that_it_has_in_dask(npartitions: int, local: None) -> None:
    placed, plain = place(FRAME), split(OTHER.rename(columns={"v": "x"}), npartitions)
    other = OTHER.rename(columns={"v": "x"})
    for words in (
        {"on": "k", "suffixes": ("_ours", "_theirs")},
        {"on": "k", "indicator": True, "how": "outer"},
        {"on": ["k", "x"], "how": "outer"},
        {"on": ["x", "k"], "how": "left"},
        {"on": "x", "how": "outer"},
        {"left_on": "k", "right_on": "x", "how": "outer"},
        {"left_on": "x", "right_on": "k", "suffixes": ("", "_theirs")},
        {"left_on": ["k"], "right_on": ["k"], "how": "right"},
        {"left_on": ["k", "j"], "right_on": ["x", "k"], "how": "left"},
    ):
        assert_same(placed.merge(plain, **words), FRAME.merge(other, **words))
    for words in ({"npartitions": 9}, {"shuffle_method": "disk"}, {"broadcast": 0.9}, {"broadcast": False}):
        assert_same(placed.merge(plain, on="k", how="left", **words), FRAME.merge(other, on="k", how="left"))
    assert_same(
        placed.merge(plain, left_on="k", right_index=True), FRAME.merge(other, left_on="k", right_index=True)
    )
    assert_same(placed.join(plain[["w"]], on="k"), FRAME.join(other[["w"]], on="k"))


# Merges of placed frames


def same_layout(frame: pd.DataFrame, like: dd.DataFrame, on: Any = "k") -> dd.DataFrame:
    return split(frame).pipe(chash_repartition, on, layout=like.chash.layout.rename(on))


BY_THE_KEY: dict[str, dict[str, Any]] = {
    "on": {"on": "k"},
    "on a list": {"on": ["k"]},
    "by a name of each": {"left_on": "k", "right_on": ["k"]},
    "with an indicator": {"on": "k", "indicator": True},
}


@once(how=HOW, words=BY_THE_KEY, state=STATES)
def test_frames_of_one_layout_merge_without_a_shuffle(how: str, words: str, state: str, local: None) -> None:
    ours = STATES[state](place(FRAME))
    theirs = STATES[state](same_layout(OTHER, ours))
    merged = ours.merge(theirs, how=how, **BY_THE_KEY[words])
    assert shuffles(merged) == shuffles(ours) + shuffles(theirs)
    assert merged.npartitions == merged.optimize().npartitions == P
    expected = FRAME.merge(OTHER, how=how, **BY_THE_KEY[words])
    blocks = blocks_of(merged)
    assert_placed(blocks, ours.chash.layout)
    assert_same_rows(blocks, expected)
    assert_same(merged.groupby("k").agg({"w": "sum"}), expected.groupby("k").agg({"w": "sum"}))
    assert len(shuffles(merged.groupby("k").agg({"w": "sum"}, split_out=3))) == len(shuffles(merged))


@once(ours=SIDES, theirs=SIDES, how=HOW)
def test_changed_frames_of_one_layout_merge_without_a_shuffle(
    ours: str, theirs: str, how: str, local: None
) -> None:
    placed = persisted(place(FRAME))
    left, right = SIDES[ours](placed), SIDES[theirs](persisted(same_layout(OTHER, placed)))
    merged = left.merge(right, on="k", how=how)
    if "reduced" not in (ours, theirs):  # which is in one partition
        assert shuffles(merged) == []
    assert_same(merged, SIDES[ours](FRAME).merge(SIDES[theirs](OTHER), on="k", how=how))


def test_a_merge_by_the_key_and_more_shuffles_nothing(ready: Callable[[Any], Any]) -> None:
    ours = ready(place(FRAME))
    other = OTHER.assign(j=OTHER.w % 4)
    theirs = ready(same_layout(other, ours))
    for words in ({"on": ["k", "j"]}, {"on": ["j", "k"], "how": "outer"}):
        merged = ours.merge(theirs, **words)
        assert shuffles(merged) == shuffles(ours) + shuffles(theirs)
        assert_same(merged, FRAME.merge(other, **words))


@pytest.mark.parametrize("length", [4, *thorough(8)])
def test_a_chain_of_merges_shuffles_each_frame_once(length: int, local: None) -> None:
    frame = sample(rows=40, keys=12).drop_duplicates("k")
    placed, expected = place(frame[["k", "x"]]), frame[["k", "x"]]
    for i in range(length):
        other = frame[["k", "y"]].rename(columns={"y": f"y{i}"})
        placed, expected = placed.merge(place(other), on="k"), expected.merge(other, on="k")
        placed, expected = placed.assign(x=placed.x + 1), expected.assign(x=expected.x + 1)
        placed, expected = placed[placed[f"y{i}"] >= 0], expected[expected[f"y{i}"] >= 0]
    got = placed.groupby("k").agg({"x": "sum"})
    assert len(shuffles(got)) == 1 + length
    assert_same(got, expected.groupby("k").agg({"x": "sum"}))


@once(how=HOW, key=["k", "id"], state=STATES)
def test_keys_of_two_names_merge_without_a_shuffle(how: str, key: str, state: str, local: None) -> None:
    """And whatever is done by either name afterwards is right."""
    ours = STATES[state](place(FRAME))
    other = OTHER.rename(columns={"k": "id"})
    theirs = STATES[state](same_layout(other, ours, "id"))
    merged = ours.merge(theirs, left_on="k", right_on="id", how=how)
    expected = FRAME.merge(other, left_on="k", right_on="id", how=how)
    assert shuffles(merged) == shuffles(ours) + shuffles(theirs)
    assert_same(merged, expected)
    assert_same(merged.groupby(key).agg({"w": "sum"}, split_out=3), expected.groupby(key).agg({"w": "sum"}))
    words: dict[str, Any] = {"left_on": key, "right_on": "k", "suffixes": ("", "_again")}
    assert_same(merged.merge(ours[["k", "y"]], **words), expected.merge(FRAME[["k", "y"]], **words))


def test_a_merge_shuffles_nothing_by_all_columns_of_the_key_alone(ready: Callable[[Any], Any]) -> None:
    other = OTHER.assign(j=OTHER.w % 4)
    ours = ready(place(FRAME, ["k", "j"]))
    theirs = ready(same_layout(other, ours, ["k", "j"]))
    both = len(shuffles(ours)) + len(shuffles(theirs))
    for words, more in (
        ({"on": ["k", "j"]}, 0),
        ({"on": ["j", "k"], "how": "outer"}, 0),
        ({"left_on": ["j", "k"], "right_on": ["j", "k"], "how": "left"}, 0),
        ({"on": "k", "how": "outer"}, 2),
        ({"on": ["j"]}, 2),
        ({"left_on": ["k", "j"], "right_on": ["j", "k"]}, 2),
    ):
        merged = ours.merge(theirs, **words)
        assert len(shuffles(merged)) == both + more, words
        assert_same(merged, FRAME.merge(other, **words))
    crossed = ready(same_layout(other, ours.rename(columns={"k": "j", "j": "k"}), ["j", "k"]))
    assert_same(ours.merge(crossed, on=["k", "j"]), FRAME.merge(other, on=["k", "j"]))


OTHER_LAYOUTS: dict[str, dict[str, Any]] = {
    "more partitions": {"npartitions": P + 1},
    "twice as many": {"npartitions": 2 * P},
    "another seed": {"seed": 1},
    "another key": {"on": "w"},
    "one partition": {"npartitions": 1},
}


@once(layout=OTHER_LAYOUTS, then=NEXT, first=["ours", "theirs"], state=STATES)
def test_frames_of_different_layouts_shuffle(
    layout: str, then: str, first: str, state: str, local: None
) -> None:
    ours, theirs = STATES[state](place(FRAME)), STATES[state](place(OTHER, **OTHER_LAYOUTS[layout]))
    if first == "ours":
        got, expected = ours.merge(theirs, on="k"), FRAME.merge(OTHER, on="k")
    else:
        got, expected = theirs.merge(ours, on="k"), OTHER.merge(FRAME, on="k")
    if layout != "one partition":
        assert len(shuffles(got)) == len(shuffles(ours)) + len(shuffles(theirs)) + 2
    assert_same_after(then, got, expected)


def test_who_owns_the_partitions_does_not_matter(ready: Callable[[Any], Any]) -> None:
    ours, theirs = ready(place(FRAME, nodes=["a", "b"])), ready(place(OTHER, nodes={"c": 2, "a": 1}))
    merged = ours.merge(theirs, on="k")
    assert shuffles(merged) == shuffles(ours) + shuffles(theirs)
    assert_same(merged, FRAME.merge(OTHER, on="k"))


def test_a_frame_merges_with_itself(ready: Callable[[Any], Any]) -> None:
    placed = ready(place(FRAME))
    largest, expected = placed.groupby("k").x.max().reset_index(), FRAME.groupby("k").x.max().reset_index()
    assert_same(placed.merge(largest, on=["k", "x"]), FRAME.merge(expected, on=["k", "x"]))
    assert_same(placed.merge(placed, on="k"), FRAME.merge(FRAME, on="k"))
    low, high = placed[placed.x < 0], placed[placed.x >= 0][["k", "y"]]
    assert_same(
        low.merge(high, on="k", how="outer", suffixes=("_low", "_high")),
        FRAME[FRAME.x < 0].merge(
            FRAME[FRAME.x >= 0][["k", "y"]], on="k", how="outer", suffixes=("_low", "_high")
        ),
    )
    assert shuffles(placed.merge(placed, on="k")) == shuffles(placed)


def test_a_semi_join_of_one_layout_shuffles_nothing(ready: Callable[[Any], Any]) -> None:
    ours = ready(place(FRAME))
    expected = FRAME[FRAME.k.isin(OTHER.k[OTHER.w > 500])]
    theirs = ready(same_layout(OTHER, ours))
    merged = ours.merge(theirs[theirs.w > 500][["k"]], on="k", how="leftsemi")
    assert_same(merged, expected)
    assert shuffles(merged) == shuffles(ours) + shuffles(theirs)
    for npartitions in (1, 2, 5):
        plain = split(OTHER, npartitions)
        assert_same(ours.merge(plain[plain.w > 500][["k"]], on="k", how="leftsemi"), expected)


# df.chash.merge


CHASH_MERGES: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "by itself": ({}, lambda n: split(OTHER, n)),
    "on": ({"on": "k"}, lambda n: split(OTHER, n)),
    "by a name of each": ({"left_on": ["k"], "right_on": "k"}, lambda n: split(OTHER, n)),
    "with a pandas frame": ({"on": "k"}, lambda n: OTHER),
    "with other words": (
        {"on": "k", "suffixes": ("_a", "_b"), "indicator": True},
        lambda n: split(OTHER.rename(columns={"w": "x", "v": "row"}), n),
    ),
}


@once(how=HOW, npartitions=[1, 2, P + 2], words=CHASH_MERGES, state=STATES)
def test_chash_merge_shuffles_only_the_plain_frame(
    how: str, npartitions: int, words: str, state: str, local: None
) -> None:
    placed = STATES[state](place(FRAME))
    said, right = CHASH_MERGES[words]
    other = right(npartitions)
    merged = placed.chash.merge(other, how=how, **said)
    assert len(shuffles(merged)) == len(shuffles(placed)) + 1
    frame = other if isinstance(other, pd.DataFrame) else other.compute()
    blocks = blocks_of(merged)
    assert_placed(blocks, placed.chash.layout)
    assert_same_rows(blocks, FRAME.merge(frame, how=how, **(said or {"on": "k"})))


def test_chash_merge_leaves_a_frame_of_the_layout_alone(ready: Callable[[Any], Any]) -> None:
    ours = ready(place(FRAME))
    theirs = ready(same_layout(OTHER, ours))
    merged = ours.chash.merge(theirs)
    assert shuffles(merged) == shuffles(ours) + shuffles(theirs)
    assert_same(merged, FRAME.merge(OTHER, on="k"))
    elsewhere = ready(place(OTHER, npartitions=9, seed=3))
    assert len(shuffles(ours.chash.merge(elsewhere))) == len(shuffles(ours)) + len(shuffles(elsewhere)) + 1
    assert_same(ours.chash.merge(elsewhere), FRAME.merge(OTHER, on="k"))


def test_chash_merge_by_other_names_and_several_keys(ready: Callable[[Any], Any]) -> None:
    other = OTHER.assign(j=OTHER.w % 4).rename(columns={"k": "id"})
    for placed in (ready(place(FRAME)), ready(place(FRAME, ["j", "k"]))):
        for words in (
            {"left_on": ["k", "j"], "right_on": ["id", "j"], "how": "left"},
            {"left_on": ["j", "k"], "right_on": ["j", "id"], "how": "outer"},
        ):
            merged = placed.chash.merge(split(other), **words)
            assert len(shuffles(merged)) == len(shuffles(placed)) + 1
            assert_same(merged, FRAME.merge(other, **words))


# Keys of other types that are equal


def _keys(ours: Any, theirs: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    return (
        pd.DataFrame({"k": ours, "x": range(len(ours))}),
        pd.DataFrame({"k": theirs, "w": range(100, 100 + len(theirs))}),
    )


def _strings(values: list[Any], dtype: Any = None) -> pd.Series:
    return pd.Series(values, dtype=dtype)


KEYS: dict[str, tuple[Any, Any]] = {
    "int64, float64": (np.arange(12) % 5, np.array([0.0, 3.0, np.nan, 2.5, -0.0, 7.0])),
    "float64, int64": (np.array([0.0, 3.0, np.nan, 2.5, -0.0, 4.0]), np.arange(12) % 5),
    "float64, float64": (np.array([np.nan, -0.0, 0.5, np.inf]), np.array([0.0, np.nan, np.nan, np.inf])),
    "int8, int64": (np.arange(12, dtype="int8"), np.arange(-3, 9)),
    "uint8, int16": (np.arange(12, dtype="uint8"), np.arange(-3, 9, dtype="int16")),
    "uint64, int64": (np.arange(12, dtype="uint64"), np.arange(-3, 9)),
    "float32, float64": (np.array([0.5, np.nan, 3], "float32"), np.array([0.5, 3.0, np.nan])),
    "Int64, int64": (pd.array([1, None, 3, 4], dtype="Int64"), np.array([4, 3, 9])),
    "Int64, float64": (pd.array([1, None, 3, 4], dtype="Int64"), np.array([4, 3, np.nan])),
    "Int64, Int8": (pd.array([1, None, 3, 4], dtype="Int64"), pd.array([4, None, None], dtype="Int8")),
    "bool, bool": (np.array([True, False]), np.array([True, True, False])),
    "str, category": (_strings(["a", "b", None, "c"]), pd.Categorical(["c", "a", None, "z"])),
    "category, str": (pd.Categorical(["c", "a", None, "z"]), _strings(["a", "b", None, "c"])),
    "category, category": (
        pd.Categorical(["c", "a", None, "z"], categories=["z", "a", "c"]),
        pd.Categorical(["a", "c", None], categories=["c", "q", "a"]),
    ),
    "object, string": (_strings(["a", None, "c"], object), _strings(["c", None, "a"], "string[python]")),
    "str, str": (_strings(["a", None, "c"]), _strings(["c", None, None])),
    "ns, us": (
        pd.to_datetime(["2020", None, "2021"]).astype("M8[ns]"),
        pd.to_datetime(["2021", "2020", None]).astype("M8[us]"),
    ),
    "zoned": (
        pd.to_datetime(["2020", "2021"]).tz_localize("UTC"),
        pd.to_datetime(["2021", "2020"]).tz_localize("UTC"),
    ),
}


# Of dtypes that differ Dask warns wherever it merges, and pandas of floats that are no integers.
of_other_types = pytest.mark.filterwarnings(
    "ignore:Merging dataframes with merge column data type mismatches",
    "ignore:You are merging on int and float columns",
)


@of_other_types
@once(kind=KEYS, how=["inner", "outer"], right=["placed", "plain"])
def test_equal_keys_of_any_type_meet(kind: str, how: str, right: str, local: None) -> None:
    frame, other = _keys(*KEYS[kind])
    ours, theirs = of_blocks([frame[:2], frame[2:]]), of_blocks([other[:1], other[1:]])
    placed = ours.pipe(chash_repartition, "k", npartitions=P)
    if right == "placed":
        theirs = theirs.pipe(chash_repartition, "k", npartitions=P)
    merged = placed.chash.merge(theirs, on="k", how=how)
    assert len(shuffles(merged)) == 2
    assert_same(merged, frame.merge(other, on="k", how=how))


def test_null_keys_are_joined_as_pandas_joins_them(ready: Callable[[Any], Any]) -> None:
    frame, other = _keys(np.array([np.nan, 1, np.nan, 2]), np.array([np.nan, np.nan, 1]))
    placed = ready(place(frame))
    for how in HOW:
        for right in (split(other), same_layout(other, placed)):
            assert_same(placed.merge(right, on="k", how=how), frame.merge(other, on="k", how=how))
    two, three = frame.assign(j=[1, None, None, 2]), other.assign(j=[None, 1, None])
    placed = ready(place(two, ["k", "j"]))
    assert_same(placed.chash.merge(split(three)), two.merge(three, on=["k", "j"]))


BIG = 2**53 + 1


@of_other_types
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.array([1, BIG]), np.array([1.0, 2.0])),
        (np.array([1, -BIG]), np.array([1.0, 2.0])),
        (np.array([1, 2]), np.array([1.0, 2.0**54])),
        (np.array([1.0, 2.0**54, np.nan]), np.array([1, 2])),
        (pd.array([1, BIG, None], dtype="Int64"), np.array([1.0, 2.0])),
    ],
    ids=repr,
)
def test_numbers_that_pandas_would_round_are_refused(ours: Any, theirs: Any, local: None) -> None:
    frame, other = _keys(ours, theirs)
    placed = place(frame)
    with pytest.raises(ValueError, match=r"'k'.*2\*\*53.*astype"):
        # Those that are beyond may be in a partition without a partner.
        placed.chash.merge(split(other), on="k", how="outer").compute()


@of_other_types
def test_a_key_that_pandas_would_change_is_refused(local: None) -> None:
    tenths = [i / 10 for i in range(1, 20)]
    frame = pd.DataFrame({"k": pd.Series(tenths, dtype="Float32"), "x": range(19)})
    other = pd.DataFrame({"k": tenths, "w": range(19)})
    with pytest.raises(
        ValueError, match=r"'k' to 'k', Float32 and float64, pandas changed keys, .*one dtype"
    ):
        place(frame).merge(place(other), on="k", how="outer").compute()


@of_other_types
@once(
    how=HOW,
    dtype=["int8", "int64", "float32", "Int64", "uint8"],
    first=["categories", "numbers"],
)
def test_categories_of_numbers_meet_numbers(how: str, dtype: str, first: str, local: None) -> None:
    left = pd.DataFrame({"k": pd.Categorical([*range(9), None] * 2), "x": range(20)})
    right = pd.DataFrame({"k": pd.Series(range(5, 14), dtype=dtype), "w": range(9)})
    if first == "numbers":
        left, right = right, left
    expected = left.astype({"k": "Int64"}).merge(right.astype({"k": "Int64"}), on="k", how=how)
    assert_same(place(left).merge(place(right), on="k", how=how), expected)


@of_other_types
def test_numbers_that_pandas_does_not_round_are_joined(local: None) -> None:
    for ours, theirs in (
        (np.array([1, BIG]), np.array([BIG, BIG - 1, 2])),
        (np.array([1, BIG], dtype="uint64"), np.array([1, BIG - 1])),
        (np.array([1, 2**53]), np.array([2.0**53, 1.0])),
        (np.array([1, 2]), np.array([np.inf, -np.inf, 1.0])),
        (np.array([1.0, 2.0**60]), np.array([2.0**60])),
    ):
        frame, other = _keys(ours, theirs)
        assert_same(place(frame).chash.merge(split(other), on="k"), frame.merge(other, on="k"))


# One read, one shuffle

DERIVED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda df: df,
    "renamed": lambda df: df.rename(columns={"x": "q"}),
    "prefixed": lambda df: df.add_prefix("p_").rename(columns=lambda name: name[2:]),
    "assigned": lambda df: df.assign(x=df.x + 1),
    "filtered": lambda df: df[df.x > 0],
    "without nulls": lambda df: df.dropna(),
    "dropped": lambda df: df.drop(columns="row"),
    "cast": lambda df: df.astype({"x": "float64"}),
    "mapped": lambda df: df.map_partitions(lambda block: block),
    "added to": lambda df: df + 1,
}
USED: dict[str, Callable[[Any], Any]] = {
    "assigned": lambda df: df.assign(z=df.y + df.k),
    "filtered": lambda df: df[(df.y > 0) & (df.k > 2)].j,
    "filtered by the whole": lambda df: df[df.y > df.y.mean()],
    "added up": lambda df: df.y.sum() + df.k.sum(),
    "chosen": lambda df: df.y.where(df.k > 2),
    "grouped": lambda df: df.assign(z=df.y).groupby("k").z.median(),
}


@pytest.mark.parametrize("how", DERIVED)
def test_rows_travel_once_however_often_a_frame_is_used(how: str, local: None) -> None:
    placed = DERIVED[how](place(FRAME))
    plain = DERIVED[how](split(FRAME).shuffle("k", npartitions=P))
    for use in USED.values():
        assert len(shuffles(use(placed))) == len(shuffles(use(plain)))


# What a frame is no longer


def _rewritten(df: pd.DataFrame) -> pd.DataFrame:
    return df.assign(k=df.k // 2)


def _halved(group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": group.y // 100, "x": group.x})


HALVED = pd.DataFrame({"k": [1], "x": [1]})


def _relabelled(df: Any, labels: list[str]) -> Any:
    df = df.copy()
    df.columns = labels
    return df


def _set(df: Any) -> Any:
    df = df.copy()
    df["k"] = df["x"]
    return df


CHANGES: dict[str, Both] = {
    "assigned": _both(lambda df: df.assign(k=df.x % 5)),
    "assigned of itself": _both(lambda df: df.assign(k=df.k // 2)),
    "assigned a constant": _both(lambda df: df.assign(k=1)),
    "set": _both(_set),
    "assigned by a function": _both(lambda df: df.assign(k=lambda d: d.y % 5)),
    "cast": _both(lambda df: df.astype({"k": "float64"})),
    "all cast": _both(lambda df: df.astype("float64")),
    "filled": _both(lambda df: df.assign(k=df.k.where(df.k > 5)).fillna({"k": 1})),
    "all filled": _both(lambda df: df.fillna(1)),
    "replaced": _both(lambda df: df.replace(3, 4)),
    "masked": _both(lambda df: df.mask(df.k > 5, 2)),
    "where": _both(lambda df: df.where(df.x > 0, 2)),
    "clipped": _both(lambda df: df.clip(3, 9)),
    "added to": _both(lambda df: df + 1),
    "compared": _both(lambda df: (df > 5).astype("int64")),
    "evaluated": _both(lambda df: df.eval("k = x")),
    "relabelled": _both(lambda df: _relabelled(df, ["j", "k", "x", "y", "row"])),
    "swapped": _both(lambda df: df.rename(columns={"k": "x", "x": "k"})),
    "swapped by a function": _both(
        lambda df: df.rename(columns=lambda c: {"k": "j", "j": "k"}.get(c, c)),
    ),
    "dropped, and another renamed": _both(lambda df: df.drop(columns="k").rename(columns={"x": "k"})),
    "left out, and another renamed": _both(lambda df: df[["j", "y"]].rename(columns={"j": "k"})),
    "renamed over": _both(lambda df: df.rename(columns={"k": "old"}).assign(k=df.j)),
    "suffixed": _both(lambda df: df.rename(columns={"x": "k_x", "k": "z"}).rename(columns={"k_x": "k"})),
    "of blocks rewritten": (lambda df: df.map_partitions(_rewritten), _rewritten),
    "of groups rewritten": (
        lambda df: df.groupby("k", group_keys=False)[["x", "y"]].apply(_halved, meta=HALVED),
        lambda df: df.groupby("k", group_keys=False)[["x", "y"]].apply(_halved),
    ),
    "of groups": _both(lambda df: df.groupby("j").agg({"k": "max", "x": "sum"}).reset_index()),
    "in fewer partitions": (lambda df: df.repartition(npartitions=2), lambda df: df),
    "in more partitions": (lambda df: df.repartition(npartitions=3 * P), lambda df: df),
    "in one partition": (lambda df: df.repartition(npartitions=1), lambda df: df),
    "in as many partitions": (
        lambda df: df.repartition(npartitions=2).repartition(npartitions=df.npartitions),
        lambda df: df,
    ),
    "shuffled": (lambda df: df.shuffle("j"), lambda df: df),
    "shuffled by the key": (lambda df: df.shuffle("k"), lambda df: df),
    "sorted": (lambda df: df.sort_values("x"), lambda df: df),
    "by another index": _both(lambda df: df.set_index("row").reset_index()),
    "placed by another": (lambda df: df.pipe(chash_repartition, "j", npartitions=P), lambda df: df),
    "placed by more": (lambda df: df.pipe(chash_repartition, ["k", "j"], npartitions=P), lambda df: df),
    "placed by another seed": (
        lambda df: df.pipe(chash_repartition, "k", npartitions=P, seed=1),
        lambda df: df,
    ),
    "concatenated": (lambda df: dd.concat([df, split(FRAME)]), lambda df: pd.concat([df, FRAME])),
    "concatenated behind": (lambda df: dd.concat([split(FRAME), df]), lambda df: pd.concat([FRAME, df])),
    "concatenated with itself": (lambda df: dd.concat([df, df]), lambda df: pd.concat([df, df])),
    "concatenated in blocks": (
        lambda df: dd.concat([df, df.assign(k=df.x)], interleave_partitions=True),
        lambda df: pd.concat([df, df.assign(k=df.x)]),
    ),
    "suffixed by a merge": (
        lambda df: df.merge(split(OTHER), left_on="x", right_on="w", how="left").rename(columns={"k_y": "k"}),
        lambda df: df.merge(OTHER, left_on="x", right_on="w", how="left").rename(columns={"k_y": "k"}),
    ),
    "one side's key of an outer merge": (
        lambda df: df.rename(columns={"k": "id"}).merge(
            place(OTHER), left_on="id", right_on="k", how="outer"
        ),
        lambda df: df.rename(columns={"k": "id"}).merge(OTHER, left_on="id", right_on="k", how="outer"),
    ),
    "one side's key of a left merge": (
        lambda df: df.rename(columns={"k": "id"}).merge(place(OTHER), left_on="id", right_on="k", how="left"),
        lambda df: df.rename(columns={"k": "id"}).merge(OTHER, left_on="id", right_on="k", how="left"),
    ),
    "the other side's key of a left merge": (
        lambda df: place(OTHER.rename(columns={"k": "id"}), "id").merge(
            df, left_on="id", right_on="k", how="left"
        ),
        lambda df: OTHER.rename(columns={"k": "id"}).merge(df, left_on="id", right_on="k", how="left"),
    ),
    "merged by another key": (
        lambda df: df.merge(split(OTHER.rename(columns={"k": "j"})), on="j", how="outer"),
        lambda df: df.merge(OTHER.rename(columns={"k": "j"}), on="j", how="outer"),
    ),
    "joined to the index": (
        lambda df: df.join(split(OTHER[["w"]].set_index(OTHER.v - 1000)), how="outer"),
        lambda df: df.join(OTHER[["w"]].set_index(OTHER.v - 1000), how="outer"),
    ),
    "exploded": (
        lambda df: (
            df.assign(k=df.k.map(lambda v: [v, v + 1], meta=("k", object))).explode("k").astype({"k": int})
        ),
        lambda df: df.assign(k=df.k.map(lambda v: [v, v + 1])).explode("k").astype({"k": int}),
    ),
    "persisted plainly": (lambda df: df.persist(), lambda df: df),
    "melted": (
        lambda df: df.melt(id_vars=["j"], value_vars=["k", "x"], value_name="n").rename(columns={"j": "k"}),
        lambda df: df.melt(id_vars=["j"], value_vars=["k", "x"], value_name="n").rename(columns={"j": "k"}),
    ),
}


LAST = OTHER.rename(columns={"w": "w2", "v": "v2"})


def _value(df: Any) -> str:
    """A column of numbers beside the key."""
    dtypes = df.dtypes.items()
    return next(name for name, dtype in dtypes if name != "k" and dtype.kind in "if")


# What would be wrong if something were concluded: in Dask, and in pandas.
CONCLUSIONS: dict[str, Both] = {
    "rows": _both(lambda df: df),
    "sums": (
        lambda df: df.groupby("k").agg({_value(df): "sum"}, split_out=3),
        lambda df: df.groupby("k").agg({_value(df): "sum"}),
    ),
    "medians": _both(lambda df: df.groupby("k")[_value(df)].median()),
    "a merge with a plain frame": (
        lambda df: df.merge(split(LAST), on="k"),
        lambda df: df.merge(LAST, on="k"),
    ),
    "a merge with a placed frame": (
        lambda df: df.merge(place(LAST), on="k"),
        lambda df: df.merge(LAST, on="k"),
    ),
    "a merge with a frame placed in as many partitions": (
        lambda df: df.merge(place(LAST, npartitions=df.npartitions), on="k"),
        lambda df: df.merge(LAST, on="k"),
    ),
    "an outer merge of a placed frame with it": (
        lambda df: place(LAST).merge(df, on="k", how="outer"),
        lambda df: LAST.merge(df, on="k", how="outer"),
    ),
}


@sorting
@of_other_types
@pytest.mark.parametrize(
    ("change", "conclusion"),
    [
        pytest.param(change, conclusion, marks=() if conclusion == shown else pytest.mark.thorough)
        for change, shown in zip(
            CHANGES, cycle(["sums", "a merge with a frame placed in as many partitions"])
        )
        for conclusion in CONCLUSIONS
    ],
)
def test_nothing_is_concluded_from_what_a_frame_was(change: str, conclusion: str, local: None) -> None:
    got, expected = (
        then(now(was))
        for now, then, was in zip(
            CHANGES[change], CONCLUSIONS[conclusion], (place(FRAME), FRAME), strict=True
        )
    )
    if conclusion == "rows":
        assert_same_rows(got.compute(), expected)
    else:
        assert_same(got, expected)


PARTS = {"the first": [0, 1, 2], "backwards": [4, 3, 2, 1, 0], "every other": [0, 2, 4], "one": [3]}


@once(part=PARTS, then=["groups", "plain", "placed", "in as many partitions"], state=STATES)
def test_nothing_is_concluded_from_a_slice_of_partitions(
    part: str, then: str, state: str, local: None
) -> None:
    placed, kept = STATES[state](place(FRAME, npartitions=5)), PARTS[part]
    expected = FRAME[np.isin(placed.chash.layout.partition_of(FRAME), kept)]
    got = placed.partitions[kept]
    if then == "groups":
        assert_same(got, expected)
        assert_same(got.groupby("k").agg({"x": "sum"}, split_out=3), expected.groupby("k").agg({"x": "sum"}))
        return
    npartitions = len(kept) if then == "in as many partitions" else 5
    right = split(OTHER) if then == "plain" else place(OTHER, npartitions=npartitions)
    assert_same(got.merge(right, on="k", how="outer"), expected.merge(OTHER, on="k", how="outer"))
    assert_same(right.merge(got, on="k", how="left"), OTHER.merge(expected, on="k", how="left"))


@of_other_types
@pytest.mark.parametrize("how", ["shift", "diff", "cumsum", "ffill", "rank"])
def test_nothing_is_concluded_from_rows_moved_past_each_other(how: str, local: None) -> None:
    """The same is done to a plain frame of the same blocks."""
    functions: dict[str, Callable[[Any], Any]] = {
        "shift": lambda df: df.assign(k=df.k.shift(1)),
        "diff": lambda df: df.diff(),
        "cumsum": lambda df: df.cumsum(),
        "ffill": lambda df: df.assign(k=df.k.where(df.k > 5)).ffill(),
        "rank": lambda df: df.assign(k=df.x.map_partitions(lambda s: s.rank(), meta=("x", "float64"))),
    }
    placed = place(FRAME)
    got, expected = functions[how](placed), functions[how](of_blocks(blocks_of(placed))).compute()
    assert_same_rows(got.compute(), expected)
    assert_same(got.groupby("k").agg({"x": "sum"}, split_out=3), expected.groupby("k").agg({"x": "sum"}))
    assert_same(got.merge(place(OTHER), on="k"), expected.merge(OTHER, on="k"))


# Everything else that is done with a Dask frame

USES: dict[str, Callable[[Any], Any]] = {
    "compute": lambda df: len(df.compute()),
    "compute as written": lambda df: len(df.compute(optimize_graph=False)),
    "length": lambda df: len(df),
    "head": lambda df: len(df.head(1000, npartitions=-1)),
    "hand to delayed": lambda df: dask.delayed(len)(df).compute(),
    "hand what was filtered to delayed": lambda df: dask.delayed(len)(df[df.row >= 0]).compute(),
    "hand groups to delayed": lambda df: dask.delayed(sum)(df.groupby("k").size()).compute(),
    "delayed blocks": lambda df: sum(len(block.compute()) for block in df.to_delayed()),
    "blocks": lambda df: sum(len(block.compute()) for block in df.partitions),
    "array": lambda df: len(df.to_dask_array().compute()),
    "bag": lambda df: len(df.to_bag().compute()),
    "rows": lambda df: len(list(df.itertuples())),
    "split at random": lambda df: sum(map(len, dask.compute(*df.random_split([0.5, 0.5], random_state=0)))),
    "compute together": lambda df: len(dask.compute(df.x.sum(), df, df.groupby("k").x.median())[1]),
    "persist": lambda df: len(dask.persist(df)[0].compute()),
    "reduce": lambda df: df.reduction(len, aggregate=sum).compute(),
    "map blocks": lambda df: len(df.map_partitions(lambda block: block, meta=df._meta)[["k"]].compute()),
    "map what was filtered": lambda df: len(
        df[df.x >= df.x.min()].map_partitions(lambda block: block, meta=df._meta)[["k"]].compute()
    ),
    "map what was repartitioned": lambda df: (
        df.repartition(npartitions=2)
        .map_partitions(lambda block: block, meta=df._meta)
        .groupby("k")
        .x.count()
        .sum()
        .compute()
    ),
    "map groups": lambda df: len(
        df.merge(
            df.groupby("k")
            .agg({"x": "max"})
            .reset_index()
            .map_partitions(lambda block: block.rename(columns={"x": "most"}))[["k", "most"]],
            on="k",
        ).compute()
    ),
    "map with a sum": lambda df: len(
        df.map_partitions(lambda block, n: block[block.x < n], df.y.sum(), meta=df._meta)[["k"]].compute()
    ),
    "pickle": lambda df: len(pickle.loads(pickle.dumps(df[df.row >= 0])).compute()),
}


@pytest.mark.parametrize("use", USES)
def test_whatever_dask_does_with_a_placed_frame_sees_all_rows(use: str, ready: Callable[[Any], Any]) -> None:
    assert USES[use](ready(place(FRAME))) == len(FRAME)


# On a cluster


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["lazy", "persisted"])
def test_groupbys_and_merges_on_a_cluster_are_right(state: str, client: Client) -> None:
    placed = split(FRAME).pipe(chash_repartition, "k", npartitions=P)
    other = split(OTHER).pipe(chash_repartition, "k", layout=placed.chash.layout)
    if state == "persisted":
        placed, other = placed.chash.persist(), other.chash.persist()
    for how in ("agg into 3", "median", "superset, apply"):
        in_dask, in_pandas = GROUPED[how]
        assert shuffles(in_dask(placed)) == shuffles(placed)
        assert_same(in_dask(placed), in_pandas(FRAME))
    merged, expected = placed.merge(other, on="k", how="outer"), FRAME.merge(OTHER, on="k", how="outer")
    assert shuffles(merged) == shuffles(placed) + shuffles(other)
    assert_same(merged.groupby("k").agg({"w": "sum"}, split_out=3), expected.groupby("k").agg({"w": "sum"}))
    with_plain = placed.chash.merge(split(OTHER), how="outer")
    assert len(shuffles(with_plain)) == len(shuffles(placed)) + 1
    assert_same(with_plain, expected)
    assert_same(placed.merge(split(OTHER), on="k", how="outer"), expected)
    for npartitions in (1, 2):
        third = placed.merge(split(OTHER, npartitions), on="k").merge(split(FRAME), on="k")
        assert_same(third, FRAME.merge(OTHER, on="k").merge(FRAME, on="k"))
    rewritten = placed.map_partitions(_rewritten)
    assert_same(rewritten.merge(other, on="k"), _rewritten(FRAME).merge(OTHER, on="k"))
