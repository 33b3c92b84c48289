"""Code for which plain Dask is wrong gives on placed frames what pandas gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest
from frames import assert_same_rows, sample, split

from chash_partition import chash_repartition

PAGE = (Path(__file__).parents[2] / "docs/dask-faults.md").read_text()
START, *EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TITLES = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)[: len(EXAMPLES)]

pytestmark = [
    pytest.mark.usefixtures("local"),
    pytest.mark.filterwarnings("ignore:Passing more than 2 positional arguments"),  # in Dask 2025.7
]


def place(frame: pd.DataFrame, npartitions: int = 3) -> dd.DataFrame:
    return split(frame, npartitions).pipe(chash_repartition, "k", npartitions=npartitions)


@pytest.mark.parametrize("example", EXAMPLES, ids=TITLES)
def test_the_examples_are_right_on_placed_frames(example: str) -> None:
    names: dict[str, Any] = {}
    exec(START, names)
    names["dask"] = place
    exec(example, names)
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
