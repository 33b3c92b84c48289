"""`explain` says of each step whether it shuffles, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from frames import sample, shuffles, split

from chash_partition import chash_repartition, explain

FRAME = sample()
PLACED = split(FRAME).pipe(chash_repartition, "k", npartitions=40, nodes=["a", "b"])
OTHER = split(FRAME).pipe(chash_repartition, "k", npartitions=20, nodes=["a", "b"])
ONE = split(FRAME).pipe(chash_repartition, "k", npartitions=1, nodes=["a"])

STEPS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "group-by": (lambda: PLACED.groupby("k").x.sum(), ["no shuffle: group-by on k"]),
    "of others": (
        lambda: PLACED.groupby(["j", "x"]).agg({"y": "sum"}, split_out=3),
        ["group-by on j, x; .*placed by k, so"],
    ),
    "apply": (lambda: PLACED.groupby("k").apply(len, meta=("n", int)), ["no shuffle: group-by on k"]),
    "after": (
        lambda: PLACED.assign(k=1).groupby("k").agg({"x": "sum"}, split_out=3),
        ["not placed by a column: `Assign` may change"],
    ),
    "merge": (lambda: PLACED.merge(PLACED[["k", "y"]], on="k"), ["no shuffle: merge on k"]),
    "merge of names": (
        lambda: PLACED.merge(PLACED[["k", "y"]].rename(columns={"k": "q"}), left_on="k", right_on="q"),
        ["no shuffle: merge on k = q"],
    ),
    "merge with another": (
        lambda: PLACED.merge(OTHER, on="k"),
        ["merge on k; .*40 with seed 0 and 20 .*layout="],
    ),
    "merge with a plain one": (
        lambda: PLACED.merge(split(FRAME), on="k"),
        ["merge on k; the right frame is not placed .*not made by chash_repartition"],
    ),
    "merge of what was changed": (
        lambda: PLACED.repartition(npartitions=3).merge(PLACED, on="k"),
        ["the left frame is not placed by a column: `Repartition` may change"],
    ),
    "merge of groups": (
        lambda: PLACED.groupby("k").x.sum().reset_index().merge(PLACED, on="k"),
        ["no shuffle: group-by on k", "merge on k; .*`Sum` puts .* unless given split_out=True"],
    ),
    "merge on others": (lambda: PLACED.merge(PLACED, on="j"), ["merge on j; .*placed by k and k, which"]),
    "merge of one": (lambda: ONE.merge(ONE, on="k"), ["the left frame has one partition"]),
    "duplicates": (lambda: PLACED.drop_duplicates(subset=["k", "x"]), ["no shuffle: drop_duplicates"]),
    "duplicates of others": (
        lambda: PLACED.drop_duplicates(subset=["j"]),
        ["drop_duplicates; it is placed by k"],
    ),
    "duplicates in a column": (
        lambda: PLACED.j.drop_duplicates(),
        ["drop_duplicates; it is placed by k, so"],
    ),
    "keys": (lambda: PLACED.k.unique(), ["no shuffle: unique"]),
    "number of keys": (lambda: PLACED.k.nunique(), ["no shuffle: drop_duplicates"]),
    "rows a key": (lambda: PLACED.k.value_counts(), ["no shuffle: value_counts"]),
    "groups of a column": (lambda: PLACED.groupby("j").x.median(), ["group-by on j; it is placed by k, so"]),
    "two": (
        lambda: PLACED.groupby("k").agg({"x": "sum"}, split_out=True).reset_index().merge(PLACED, on="k"),
        ["no shuffle: group-by on k", "no shuffle: merge on k"],
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_explained(step: str, local: None) -> None:
    make, expected = STEPS[step]
    result = make()
    *lines, total = explain(result).split("\n")
    assert sum(line.startswith("shuffle: 3 blocks into") for line in lines) >= 1
    rest = [line for line in lines if not line.startswith("shuffle: 3 blocks")]
    assert len(rest) == len(expected)
    for line, words in zip(rest, expected, strict=True):
        assert line.startswith(("no shuffle: ", "as in plain Dask: "))
        assert re.search(words, line)
    n = len(shuffles(result))
    assert total == ("1 shuffle in all" if n == 1 else f"{n} shuffles in all")


def test_it_is_printed(local: None, capsys: pytest.CaptureFixture[str]) -> None:
    PLACED.chash.persist().chash.explain()
    assert capsys.readouterr().out == "no shuffle in all\n"


def test_only_dask_has_a_plan() -> None:
    with pytest.raises(TypeError, match="Dask DataFrame"):
        explain(FRAME)
