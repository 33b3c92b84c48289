"""A writer that is killed, at each thing that it does to storage."""

from __future__ import annotations

import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import OPERATIONS, perform, prepare, roots_of, run
from datasets import assert_sound, bare, counted, rows, whole
from distributed.utils import get_mp_context
from tiers import thorough

from chash_partition import ShardedDataset

pytestmark = pytest.mark.xdist_group("crashes")  # forked from a process that imports for some seconds

BEFORE = pa.concat_tables([rows(0, 40), rows(40, 60)])
AFTER = {
    "append": pa.concat_tables([BEFORE, rows(100, 130)]),
    "overwrite": rows(100, 130),
    "vacuum": pa.concat_tables([BEFORE, rows(60, 70)]),
}
STORAGE = ("", "objects://")


def killed(operation: str, path: str, fatal: int, report: Path) -> int | None:
    """Kill it at that point; or, beyond the last, None."""
    process = get_mp_context().Process(target=run, args=(operation, path, fatal, str(report)))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return None if process.exitcode == 0 else fatal


def opened(operation: str, path: str) -> ShardedDataset:
    return ShardedDataset(path, roots=roots_of(path) if operation == "rebalance" else None)


def check(folder: Path, storage: str, operation: str, fatal: int) -> bool:
    """Whether there was as much to do; and that all is well after it was killed there."""
    template = folder / f"{storage.strip(':/')}-{operation}"
    if not template.exists():
        template.mkdir()
        prepare(operation, f"{storage}{template / 'x'}")
    here = folder / "here"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(template, here)
    path = f"{storage}{here / 'x'}"
    before = opened(operation, path)
    rows_before, rows_after = counted(whole(before)), counted(AFTER.get(operation, BEFORE))
    if killed(operation, path, fatal, folder / "report") is None:
        return False
    reader = opened(operation, path)
    assert reader.version in (before.version, before.version + 1)
    done = reader.version > before.version
    assert counted(whole(reader)) == (rows_after if done else rows_before)
    if operation != "vacuum" and not done:
        assert reader.layout == before.layout
        assert counted(whole(before)) == rows_before
    reader.vacuum(timedelta(0))
    assert reader.verify() == []
    assert counted(whole(reader)) == (rows_after if done else rows_before)
    assert_clean(here, reader)
    # Again, it does what is left to do.
    if not (done and operation in ("append", "split")):
        perform(operation, path)
    assert counted(whole(reader.refresh())) == rows_after
    assert reader.verify() == []
    return True


def assert_clean(folder: Path, dataset: ShardedDataset) -> None:
    """Nothing is left but what the version names, and its log."""
    left = {str(file) for file in folder.rglob("*.parquet")}
    assert left == {file.removeprefix("objects://") for file in dataset.files()}
    assert not [file for file in folder.rglob("*") if ".tmp-" in file.name]


@pytest.mark.parametrize("at", ["middle", *thorough("start", "end")])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_killed_operation_is_done_or_not_and_leaves_nothing(
    tmp_path: Path, storage: str, operation: str, at: str
) -> None:
    total = run_to_the_end(tmp_path, storage, operation)
    fatal = {"start": 1, "middle": max(1, total // 2), "end": total}[at]
    assert check(tmp_path, storage, operation, fatal)


def run_to_the_end(folder: Path, storage: str, operation: str) -> int:
    """How much there is to do."""
    path = f"{storage}{folder / 'end' / 'x'}"
    (folder / "end").mkdir()
    prepare(operation, path)
    assert killed(operation, path, -1, folder / "report") is None
    assert_sound(opened(operation, path), AFTER.get(operation, BEFORE))
    return int((folder / "report").read_text())


@pytest.mark.long
def test_killed_at_every_point(tmp_path: Path) -> None:
    points = 0
    for storage in STORAGE:
        for operation in OPERATIONS:
            fatal = 1
            while check(tmp_path, storage, operation, fatal):
                fatal += 1
                points += 1
    assert points >= 300


def test_a_first_write_that_was_killed(tmp_path: Path) -> None:
    for n, fatal in enumerate((1, 5, 9, 20, 23)):
        path = tmp_path / str(n)
        assert killed("create", str(path), fatal, tmp_path / "report") == fatal
        if not list(path.glob("_chash/*.json")):
            perform("create", str(path))
        dataset = ShardedDataset(path)
        dataset.vacuum(timedelta(0))
        assert_sound(dataset, rows(100, 130))
        assert counted(bare(path)) == counted(rows(100, 130))
