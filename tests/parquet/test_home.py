"""What becomes of a change that another writer came before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets import assert_sound, at_once, each_storage, rows, write

from chash_partition import ShardedDataset
from chash_partition.parquet.store import DatasetError
from chash_partition.parquet.version import ConflictError


def test_appends_at_once_both_land(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write(table=rows(0, 20), **place)
    append = [
        lambda: write(table=rows(20, 40), mode="append", **place),
        lambda: write(table=rows(40, 60), mode="append", **place),
    ]
    at_once(monkeypatch, *append)
    assert_sound(ShardedDataset(**place), rows(0, 60))


def test_an_append_lands_on_what_was_compacted(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(table=rows(0, 20), **place)
    dataset = write(table=rows(20, 40), mode="append", **place)
    at_once(monkeypatch, dataset.compact, lambda: write(table=rows(40, 60), mode="append", **place))
    assert_sound(dataset.refresh(), rows(0, 60))
    at_once(monkeypatch, lambda: write(table=rows(60, 80), mode="append", **place), dataset.compact)
    assert_sound(dataset, rows(0, 80))


def test_rewrites_at_once_fail_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place: dict[str, Any] = {"path": tmp_path}
    write(table=rows(0, 20), **place)
    write(table=rows(20, 40), mode="append", **place)
    other = ShardedDataset(**place)
    rewrites: list[Callable[[ShardedDataset], Any]] = [
        lambda dataset: dataset.compact(),
        lambda dataset: dataset.split(2),
        lambda dataset: write(table=rows(0, 40), mode="overwrite", **place),
    ]
    for first in rewrites:
        for then in rewrites:
            write(table=rows(0, 20), mode="overwrite", **place)
            write(table=rows(20, 40), mode="append", **place)
            with pytest.raises(ConflictError, match="nothing was committed"), monkeypatch.context() as patch:
                at_once(patch, partial(first, other), partial(then, ShardedDataset(**place)))
            assert ShardedDataset(**place).version == other.refresh().version
            assert_sound(other, rows(0, 40))
    with pytest.raises(ConflictError, match="append again"):
        at_once(
            monkeypatch, lambda: other.split(2), lambda: write(table=rows(40, 60), mode="append", **place)
        )


@each_storage
def test_datasets_made_at_once(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConflictError, match="mode='overwrite'"):
        at_once(
            monkeypatch, lambda: write(table=rows(0, 9), **place), lambda: write(table=rows(9, 20), **place)
        )
    assert_sound(ShardedDataset(**place), rows(0, 9))


def test_what_is_gone_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write(tmp_path, rows(0, 20))
    there = set(dataset.files())

    def lose() -> None:
        for file in set(map(str, tmp_path.glob("data/**/*.parquet"))) - there:
            Path(file).unlink()

    with pytest.raises(DatasetError, match="is gone: nothing was committed"):
        at_once(monkeypatch, lose, lambda: write(tmp_path, rows(20, 40), "append"))
    assert_sound(dataset.refresh(), rows(0, 20))


def test_roots_must_differ(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="one of its own"):
        write(tmp_path / "x", rows(0, 9), roots={"a": str(tmp_path / "d"), "b": str(tmp_path / "d")})
    with pytest.raises(DatasetError, match="one of its own"):
        write(tmp_path / "x", rows(0, 9), roots={"a": str(tmp_path / "x"), "b": str(tmp_path / "d")})
