"""The numbered files of versions: which stay, and which are refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from datasets import assert_sound, at_once, rows, write

from chash_partition.parquet.log import name_of
from chash_partition.parquet.store import DatasetError

NOW = timedelta(0)


def test_what_vacuum_removed_is_not_committed(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write(table=rows(0, 20), **place)
    with pytest.raises(DatasetError, match="removed by vacuum"):
        at_once(
            monkeypatch,
            lambda: dataset.vacuum(NOW),
            lambda: write(table=rows(20, 40), mode="append", **place),
        )
    assert_sound(dataset.refresh(), rows(0, 20))


def test_old_versions_go_and_ten_stay(place: dict[str, Any]) -> None:
    for i in range(14):
        dataset = write(table=rows(i, i + 1), mode="append", **place)
    dataset.vacuum()
    assert dataset._home.log.numbers()[0] == 0
    dataset.vacuum(NOW)
    assert dataset._home.log.numbers() == list(range(4, 14))
    assert_sound(dataset, rows(0, 14))
    with pytest.raises(ValueError, match="negative"):
        dataset.vacuum(timedelta(-1))


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    dataset = write(tmp_path, rows(0, 9))
    with (tmp_path / name_of(1)).open("wb") as file:
        file.truncate(100 * 2**30)  # a hole: no disk is needed
    with pytest.raises(DatasetError, match="more than"):
        dataset.refresh()


def test_a_file_by_another_number_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, rows(0, 9))
    (tmp_path / name_of(1)).write_text(dataset._now.to_json())
    with pytest.raises(DatasetError, match="says that it is version 0"):
        dataset.refresh()
