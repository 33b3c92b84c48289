"""What a writer does with what is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import assert_sound, rows, write

from chash_partition import Layout, ShardedDataset
from chash_partition.parquet.store import DatasetError


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match=r"notes.txt is in the way"):
        write(tmp_path, rows(0, 9))


def test_a_mode_says_what_becomes_of_the_rows_that_are_there(place: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match="no dataset at"):
        ShardedDataset(**place)
    write(table=rows(0, 9), mode="append", **place)
    with pytest.raises(DatasetError, match="mode='append' or 'overwrite'"):
        write(table=rows(0, 9), **place)
    with pytest.raises(DatasetError, match="mode must be one of"):
        write(table=rows(0, 9), mode="add", **place)
    dataset = write(table=rows(9, 20), mode="overwrite", layout=Layout.create("row", 3, ["z"]), **place)
    assert (dataset.layout.on, dataset.layout.npartitions) == (("row",), 3)
    assert_sound(dataset, rows(9, 20))


def test_an_empty_table_leaves_one_file_with_the_schema(place: dict[str, Any]) -> None:
    dataset = write(table=rows(0, 0), **place)
    assert len(dataset.files()) == 1
    assert_sound(dataset, rows(0, 0))
    dataset.split(2)
    assert len(dataset.files()) == 1
    assert_sound(dataset, rows(0, 0))
    assert_sound(write(table=rows(0, 0), mode="append", **place), rows(0, 0))
    dataset = write(table=rows(0, 30), mode="append", **place)
    assert_sound(dataset, rows(0, 30))
    assert all(file.rows for file in dataset._now.files)
    assert_sound(write(table=rows(0, 0), mode="append", **place), rows(0, 30))
