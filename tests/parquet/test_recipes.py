"""The recipes of docs/parquet-layout.md, run."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from datasets import counted, rows, write

DOCS = Path(__file__).parents[2] / "docs" / "parquet-layout.md"
RECIPES = re.findall(
    r"^((?:duckdb|polars|pyarrow)\..*)$", DOCS.read_text().split("## Other engines")[1], re.MULTILINE
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe(tmp_path: Path, recipe: str) -> None:
    import duckdb
    import polars

    write(tmp_path, rows(0, 60))
    dataset = write(tmp_path, rows(60, 90), "append")
    dataset.compact()
    if "files()" not in recipe:
        dataset.vacuum(timedelta(0))
    names = {"duckdb": duckdb, "polars": polars, "pyarrow": pa, "dataset": dataset, "path": tmp_path}
    got = eval(recipe, names)
    got = got.collect().to_arrow() if recipe.startswith("polars") else got
    table = got.to_arrow_table() if recipe.startswith("duckdb") else got
    assert counted(table.select(rows(0, 0).column_names)) == counted(rows(0, 90))
    assert ("chash_shard" in table.column_names) == ("files()" not in recipe)


def test_there_are_recipes() -> None:
    assert len(RECIPES) == 6
