"""Code for which plain Dask is wrong gives on placed frames what pandas gives."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr import new_collection
from frames import assert_placed, assert_same_rows, blocks_of, sample, split

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


@pytest.mark.parametrize("placed", ["all", "the first", "all but the first"])
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


@pytest.mark.parametrize("npartitions", [1, 2, 7])
@pytest.mark.parametrize("columns", [["x"], ["k"], ["x", "w"], ["w"]])
def test_concat_keeps_all_rows(columns: list[str], npartitions: int) -> None:
    other = FRAME[["k", "y"]].rename(columns={"y": "w"})
    for frames in ([FRAME, other], [other, FRAME], [FRAME, other, FRAME]):
        got = dd.concat([place(frames[0], npartitions), *map(split, frames[1:])])
        assert_same_rows(got[columns].compute(), pd.concat(frames)[columns])
        filtered = got[got.k > 3][columns]
        assert_same_rows(filtered.compute(), pd.concat(frames).query("k > 3")[columns])


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


@pytest.mark.parametrize("columns", ["k", "x", "y", ["x"], ["k", "x"], ["y", "k"]], ids=str)
@pytest.mark.parametrize("what", of_each_column(pd.DataFrame({"k": [1], "x": [1], "y": [1]})))
def test_what_is_said_for_each_column_and_then_some_columns(what: str, columns: Any) -> None:
    numbers = FRAME[["k", "x", "y"]]
    got = of_each_column(place(numbers))[what][columns]
    expected = of_each_column(numbers)[what][columns]
    assert_same_rows(got.compute(), expected)


@pytest.mark.parametrize("columns", ["k", "x", ["k"], ["y", "k"], ["x", "k"]], ids=str)
@pytest.mark.parametrize("npartitions", [1, 3])
def test_the_first_rows_by_some_columns_and_then_others(npartitions: int, columns: Any) -> None:
    frame = FRAME[["k", "x", "y"]].sample(frac=1, random_state=1)
    got = place(frame, npartitions)
    first = {"npartitions": -1, "compute": False}
    for theirs, ours in [
        (frame.nlargest(5, "x"), got.nlargest(5, "x")),
        (frame.nlargest(5, ["y", "x"]), got.nlargest(5, ["y", "x"])),
        (frame.nsmallest(5, ["x", "y"]), got.nsmallest(5, ["x", "y"])),
        (frame.sort_values("x").head(5), got.sort_values("x").head(5, **first)),
        (frame.sort_values("x").tail(5), got.sort_values("x").tail(5, compute=False)),
    ]:
        assert_same_rows(ours[columns].compute(), theirs[columns])
        assert_same_rows(ours.add_suffix("_")["k_"].compute(), theirs["k"].rename("k_"))


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
def test_they_keep_what_is_known(change: dict[str, Any], columns: list[str]) -> None:
    [(name, of_columns)] = change.items()
    got = getattr(place(FRAME[["k", "x", "y"]]), name)(of_columns)[columns].drop_duplicates()
    assert_placed(blocks_of(got), got.chash.layout)


@pytest.mark.parametrize("suffixes", [("_l", ""), ("", "_r"), ("_y", ""), ("_x", "_y"), ("_l", None)])
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_filters_of_merges_with_any_suffixes(how: str, suffixes: Any) -> None:
    other = FRAME[["k", "x"]].assign(x=-FRAME.x)[::2]
    for column in ("k", "x", "x_l", "x_r", "x_y", "x_x"):
        expected = FRAME.merge(other, on="k", how=how, suffixes=suffixes)
        if column in expected.columns:
            got = place(FRAME).merge(place(other), on="k", how=how, suffixes=suffixes)
            assert_same_rows(got[got[column] > 3].compute(), expected[expected[column] > 3])
            assert_same_rows(
                got[got[column] > 3][[column]].compute(), expected[expected[column] > 3][[column]]
            )


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


@pytest.mark.parametrize(
    "keys", [[1, 2, 3, 4, 5], [True, False], [1, 2, 3, "a", "b"], [b"a", b"b"]], ids=repr
)
def test_groups_of_objects_meet_their_rows_again(keys: list[Any]) -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        frame = pd.DataFrame({"k": pd.Series(keys * 6, dtype=object), "x": range(6 * len(keys))})
        for groups in (
            lambda df: df.groupby("k").x.median(),
            lambda df: df.groupby("k").x.sum(),
            lambda df: df.groupby(["k", "x"]).x.count(),
            lambda df: df.k.value_counts(),
        ):
            with_groups = [
                df.merge(groups(df).rename("t").reset_index(), on="k") for df in (place(frame), frame)
            ]
            assert_same_rows(with_groups[0].compute(), with_groups[1])


@pytest.mark.parametrize("npartitions", [1, 2, 7])
def test_sorting_keeps_all_rows(npartitions: int) -> None:
    placed = place(FRAME, npartitions)
    for first in (1, 3, 9):
        for second in (1, 2, 9):
            by_row = placed.sort_values("row", npartitions=first)
            assert_same_rows(by_row.sort_values("x", npartitions=second).compute(), FRAME)
            assert list(by_row.compute().row) == sorted(FRAME.row)
            indexed = by_row.set_index("row", npartitions=second)
            assert_same_rows(indexed.reset_index().compute()[FRAME.columns], FRAME)
    same = placed.assign(z=1).set_index("z").reset_index()
    assert len(same.drop_duplicates(subset=["z"]).compute()) == 1


SERIES = pd.Series({"k": 2, "x": 3, "y": 6})
OF_TWO = {
    "operator": lambda a, b, s: a + b,
    "method": lambda a, b, s: a.sub(b, fill_value=0),
    "method along rows": lambda a, b, s: a.sub(b.x, axis=0),
    "ufunc": lambda a, b, s: np.add(a, b),
    "ufunc of series": lambda a, b, s: np.maximum(a.x, b.x),
    "where": lambda a, b, s: a.where(b > 0.5),
    "where else": lambda a, b, s: a.where(a > 0.5, b),
    "mask": lambda a, b, s: a.mask(b > 0.5),
    "fillna": lambda a, b, s: a.where(a > 3).fillna(b),
    "combine_first": lambda a, b, s: a.where(a > 3).combine_first(b),
    "assign": lambda a, b, s: a.assign(w=b.x),
    "filter": lambda a, b, s: a[b.x > 3],
    "by labels of columns": lambda a, b, s: a - s,
    "from labels of columns": lambda a, b, s: s - a,
}


@pytest.mark.filterwarnings("ignore:Boolean Series key will be reindexed")
@pytest.mark.parametrize("series", ["pandas", 1, 2])
@pytest.mark.parametrize("operation", OF_TWO)
def test_two_frames_placed_otherwise_pair_by_index(operation: str, series: Any) -> None:
    if ("labels" in operation) != (series != "pandas") and operation != "by labels of columns":
        return
    one, two = FRAME[["k", "x", "y"]], FRAME[["k", "x", "y"]].sample(frac=1, random_state=3) + 1
    expected = OF_TWO[operation](one, two, SERIES)
    labelled = SERIES if series == "pandas" else dd.from_pandas(SERIES, npartitions=series)
    for mates in (place(two, 3), place(two, 4), split(two, 3)):
        got = OF_TWO[operation](place(one, 3), mates, labelled)
        assert_same_rows(got.compute(), expected, index=True)


def test_bounds_of_another_frame_are_refused() -> None:
    one, two = FRAME[["k", "x"]], FRAME[["k", "x"]].sample(frac=1, random_state=3)
    got = place(one)
    with pytest.raises(ValueError, match="merge that frame first"):
        got.x.clip(place(two).x, None).compute()
    assert_same_rows(got.x.clip(got.k, 20).compute(), one.x.clip(one.k, 20))
    assert_same_rows(got.clip(2, 20).compute(), one.clip(2, 20))
