"""Code for which plain Dask is wrong gives on placed frames what pandas gives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr import new_collection
from frames import assert_placed, assert_same_rows, blocks_of, sample, split
from tiers import once, some, thorough

from chash_partition import chash_repartition

START, *SECTIONS = (Path(__file__).parents[2] / "docs/dask-faults.md").read_text().split("\n## ")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXAMPLES = {section.split("\n")[0]: code for section in SECTIONS for code in CODE.findall(section)}

pytestmark = [
    pytest.mark.usefixtures("local"),
    pytest.mark.filterwarnings("ignore:Passing more than 2 positional arguments"),  # in Dask 2025.7
]


def place(frame: pd.DataFrame, npartitions: int = 3) -> dd.DataFrame:
    return split(frame, npartitions).pipe(chash_repartition, "k", npartitions=npartitions)


@pytest.mark.parametrize("placed", ["all", *thorough("the first", "all but the first")])
@pytest.mark.parametrize("title", EXAMPLES)
def test_the_examples_are_right_on_placed_frames(title: str, placed: str) -> None:
    names: dict[str, Any] = {}
    exec(CODE.findall(START)[0], names)
    made = itertools.count()

    def dask(frame: pd.DataFrame, npartitions: int = 3) -> dd.DataFrame:
        first = next(made) == 0
        here = placed == "all" or first == (placed == "the first")
        return place(frame, npartitions) if here else split(frame, npartitions)

    names["dask"] = dask
    exec(EXAMPLES[title], names)
    if placed == "all but the first" and next(made) < 3:
        return  # what has no placed frame is Dask's own
    assert_same_rows(names["got"].compute(), names["expected"], index=names["expected"].index.name == "k")


FRAME = sample(rows=40, keys=8)


@once(
    columns=["x", "k", "x w", "w"], frames=["ab", "ba", "aba"], npartitions=[1, 2, 7], filtered=[False, True]
)
def test_concat_keeps_all_rows(columns: str, frames: str, npartitions: int, filtered: bool) -> None:
    of = {"a": FRAME, "b": FRAME[["k", "y"]].rename(columns={"y": "w"})}
    first, *others = (of[name] for name in frames)
    got, expected = dd.concat([place(first, npartitions), *map(split, others)]), pd.concat([first, *others])
    if filtered:
        got, expected = got[got.k > 3], expected[expected.k > 3]
    assert_same_rows(got[columns.split()].compute(), expected[columns.split()])


def of_each_column(frame: Any) -> dict[str, Any]:
    """What is said for each column, in all the ways that pandas takes it."""
    return {
        "fillna": frame.where(frame > 3).fillna({"k": 1, "x": 2}),
        "fillna by a series": frame.where(frame > 3).fillna(pd.Series({"k": 1, "x": 2})),
        "isin": frame.isin({"k": [4, 5], "x": [7]}),
        "mask": frame.mask(frame > 3),
        "where": frame.where(frame > 3, frame + 100),
        "replace": frame.replace({"k": {1: 2}, "x": {3: 4}}),
        "replace by one": frame.replace({"k": 1, "x": 3}, 99),
        "round": (frame + 0.126).round({"k": 1, "x": 2}),
        "twice": frame.where(frame > 3).fillna({"x": 1}).replace({"x": {1: 2}}),
    }


@once(
    what=of_each_column(pd.DataFrame({"k": [1], "x": [1], "y": [1]})),
    columns=["k", "x", "y", ("x",), ("k", "x"), ("y", "k")],
)
def test_some_columns_of_what_is_said_for_each_column(what: str, columns: Any) -> None:
    numbers = FRAME[["k", "x", "y"]]
    columns = list(columns) if isinstance(columns, tuple) else columns
    got = of_each_column(place(numbers))[what][columns]
    expected = of_each_column(numbers)[what][columns]
    assert_same_rows(got.compute(), expected)


NOT_COMPUTED = {"npartitions": -1, "compute": False}
FIRST: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "largest": (lambda df: df.nlargest(5, "x"), lambda df: df.nlargest(5, "x")),
    "largest by two": (lambda df: df.nlargest(5, ["y", "x"]), lambda df: df.nlargest(5, ["y", "x"])),
    "smallest by two": (lambda df: df.nsmallest(5, ["x", "y"]), lambda df: df.nsmallest(5, ["x", "y"])),
    "sorted, first": (
        lambda df: df.sort_values("x").head(5, **NOT_COMPUTED),
        lambda df: df.sort_values("x").head(5),
    ),
    "sorted, last": (
        lambda df: df.sort_values("x").tail(5, compute=False),
        lambda df: df.sort_values("x").tail(5),
    ),
}


@once(which=FIRST, columns=["k", "x", ("k",), ("y", "k"), ("x", "k"), "renamed"], npartitions=[1, 3])
def test_the_first_rows_by_some_columns_and_then_others(which: str, columns: Any, npartitions: int) -> None:
    frame = FRAME[["k", "x", "y"]].sample(frac=1, random_state=1)
    got, expected = (
        first(df) for first, df in zip(FIRST[which], (place(frame, npartitions), frame), strict=True)
    )
    if columns == "renamed":
        got, expected, columns = got.add_suffix("_"), expected.add_suffix("_"), "k_"
    columns = list(columns) if isinstance(columns, tuple) else columns
    assert_same_rows(got[columns].compute(), expected[columns])


@pytest.mark.parametrize("frac", [1.0, 0.5])
def test_samples_of_more_partitions_than_there_were_said_to_be(frac: float) -> None:
    """As of sorted rows, whose divisions Dask may find anew: one state was drawn, and there are 6."""
    of_one = place(FRAME, 1).sample(frac=frac, random_state=0).expr
    of_six = of_one.substitute(of_one.frame, place(FRAME, 6).expr)
    rows = new_collection(of_six).compute()["row"]
    assert rows.is_unique
    assert len(rows) == len(FRAME) if frac == 1 else 10 < len(rows) < 30


@pytest.mark.parametrize("columns", [["k", "x"], ["y", "k"], ["k"]], ids=str)
@pytest.mark.parametrize("change", [{"fillna": {"x": 1}}, {"round": {"x": 1, "y": 1}}], ids=str)
def test_a_frame_changed_column_by_column_stays_placed(change: dict[str, Any], columns: list[str]) -> None:
    [(name, of_columns)] = change.items()
    got = getattr(place(FRAME[["k", "x", "y"]]), name)(of_columns)[columns].drop_duplicates()
    assert_placed(blocks_of(got), got.chash.layout)


@once(
    how=["inner", "left", "right", "outer"],
    suffixes=[("_l", ""), ("", "_r"), ("_y", ""), ("_x", "_y"), ("_l", None)],
    by=["the key", "the left one's", "the right one's"],
    alone=[False, True],
)
def test_filters_of_merges_with_any_suffixes(how: str, suffixes: Any, by: str, alone: bool) -> None:
    other = FRAME[["k", "x"]].assign(x=-FRAME.x)[::2]
    expected = FRAME.merge(other, on="k", how=how, suffixes=suffixes)
    got = place(FRAME).merge(place(other), on="k", how=how, suffixes=suffixes)
    column = "k" if by == "the key" else "x" + (suffixes[by == "the right one's"] or "")
    got, expected = got[got[column] > 3], expected[expected[column] > 3]
    columns = [column] if alone else list(expected.columns)
    assert_same_rows(got[columns].compute() if alone else got.compute(), expected[columns])


def test_operators_of_frames_placed_otherwise_align() -> None:
    ours = place(FRAME)
    for theirs in (
        split(FRAME).pipe(chash_repartition, "k", npartitions=3, seed=1),
        split(FRAME).pipe(chash_repartition, "j", npartitions=5),
        split(FRAME.sample(frac=1, random_state=0)),
    ):
        assert_same_rows((ours.x + theirs.x).compute(), FRAME.x + FRAME.x, index=True)
        assert_same_rows(ours.x.add(theirs.y, fill_value=0).compute(), FRAME.x + FRAME.y, index=True)
        both = ["x", "y"]
        assert_same_rows((ours[both] * theirs[both]).compute(), FRAME[both] * FRAME[both], index=True)


def test_nunique_counts_all_groups() -> None:
    null = FRAME.assign(k=FRAME.k.where(FRAME.k > 3))
    by_null = [df.groupby("k", dropna=False).x.nunique() for df in (place(null), null)]
    assert_same_rows(by_null[0].compute(), by_null[1], index=True)
    listed = FRAME.assign(k=pd.Categorical(FRAME.k, categories=range(30)))
    by_category = [df.groupby("k", observed=False).x.nunique() for df in (place(listed), listed)]
    assert_same_rows(by_category[0].compute(), by_category[1], index=True)


OBJECTS = {
    "integers": [1, 2, 3, 4, 5],
    "bools": [True, False],
    "mixed": [1, 2, 3, "a", "b"],
    "bytes": [b"a", b"b"],
}
GROUPS: dict[str, Callable[[Any], Any]] = {
    "median": lambda df: df.groupby("k").x.median(),
    "sum": lambda df: df.groupby("k").x.sum(),
    "count": lambda df: df.groupby(["k", "x"]).x.count(),
    "value_counts": lambda df: df.k.value_counts(),
}


@once(keys=OBJECTS, groups=GROUPS)
def test_groups_of_objects_meet_their_rows_again(keys: str, groups: str) -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        values = OBJECTS[keys]
        frame = pd.DataFrame({"k": pd.Series(values * 6, dtype=object), "x": range(6 * len(values))})
        got, expected = (
            df.merge(GROUPS[groups](df).rename("t").reset_index(), on="k") for df in (place(frame), frame)
        )
        assert_same_rows(got.compute(), expected)


@once(npartitions=[1, 2, 7], first=[1, 3, 9], second=[1, 2, 9])
def test_sorting_keeps_all_rows(npartitions: int, first: int, second: int) -> None:
    by_row = place(FRAME, npartitions).sort_values("row", npartitions=first)
    assert_same_rows(by_row.sort_values("x", npartitions=second).compute(), FRAME)
    assert list(by_row.compute().row) == sorted(FRAME.row)
    indexed = by_row.set_index("row", npartitions=second)
    assert_same_rows(indexed.reset_index().compute()[FRAME.columns], FRAME)


@pytest.mark.parametrize("npartitions", [1, 2, 7])
def test_an_index_of_one_value_is_in_one_partition(npartitions: int) -> None:
    same = place(FRAME, npartitions).assign(z=1).set_index("z").reset_index()
    assert len(same.drop_duplicates(subset=["z"]).compute()) == 1


SERIES = pd.Series({"k": 2, "x": 3, "y": 6})
OF_TWO = {
    "operator": lambda a, b: a + b,
    "method": lambda a, b: a.sub(b, fill_value=0),
    "method along rows": lambda a, b: a.sub(b.x, axis=0),
    "ufunc": lambda a, b: np.add(a, b),
    "ufunc of series": lambda a, b: np.maximum(a.x, b.x),
    "where": lambda a, b: a.where(b > 0.5),
    "where else": lambda a, b: a.where(a > 0.5, b),
    "mask": lambda a, b: a.mask(b > 0.5),
    "fillna": lambda a, b: a.where(a > 3).fillna(b),
    "combine_first": lambda a, b: a.where(a > 3).combine_first(b),
    "assign": lambda a, b: a.assign(w=b.x),
    "filter": lambda a, b: a[b.x > 3],
}
TWO: dict[str, Callable[[pd.DataFrame], dd.DataFrame]] = {
    "placed in as many": lambda frame: place(frame, 3),
    "placed in more": lambda frame: place(frame, 4),
    "plain": lambda frame: split(frame, 3),
}


@pytest.mark.filterwarnings("ignore:Boolean Series key will be reindexed")
@pytest.mark.parametrize("other", some(TWO, ["placed in as many"]))
@pytest.mark.parametrize("operation", OF_TWO)
def test_two_frames_placed_otherwise_pair_by_index(operation: str, other: str) -> None:
    one, two = FRAME[["k", "x", "y"]], FRAME[["k", "x", "y"]].sample(frac=1, random_state=3) + 1
    got = OF_TWO[operation](place(one, 3), TWO[other](two))
    assert_same_rows(got.compute(), OF_TWO[operation](one, two), index=True)


@pytest.mark.parametrize("npartitions", [1, 2])
def test_a_series_labelled_by_columns_pairs_with_them(npartitions: int) -> None:
    frame = FRAME[["k", "x", "y"]]
    labelled = dd.from_pandas(SERIES, npartitions=npartitions)
    assert_same_rows((place(frame) - SERIES).compute(), frame - SERIES, index=True)
    assert_same_rows((place(frame) - labelled).compute(), frame - SERIES, index=True)
    assert_same_rows((labelled - place(frame)).compute(), SERIES - frame, index=True)


def test_bounds_of_another_frame_are_refused() -> None:
    one, two = FRAME[["k", "x"]], FRAME[["k", "x"]].sample(frac=1, random_state=3)
    got = place(one)
    with pytest.raises(ValueError, match="merge that frame first"):
        got.x.clip(place(two).x, None).compute()
    assert_same_rows(got.x.clip(got.k, 20).compute(), one.x.clip(one.k, 20))
    assert_same_rows(got.clip(2, 20).compute(), one.clip(2, 20))
