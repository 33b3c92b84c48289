"""Processes that append, compact and read at once: no append is lost, and nothing is read by halves."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from datasets import rows, whole, write
from distributed.utils import get_mp_context
from working import APPEND, work

from chash_partition import ShardedDataset

FEW = ["append", "append", "compact", "read", "vacuum"]
MANY = ["append"] * 4 + ["compact"] * 2 + ["read", "vacuum"]
HOUR = timedelta(hours=1)  # longer than any reader stays with a version


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if kind == "local":
        return {"path": str(tmp_path / "x")}
    name = f"s3://bucket/{uuid.uuid4().hex}"
    return {"path": name, "storage_options": request.getfixturevalue("s3")}


@pytest.mark.parametrize(
    ("kind", "jobs", "turns", "retain"),
    [
        ("local", MANY, 6, HOUR),
        pytest.param("s3", FEW, 2, HOUR, marks=pytest.mark.thorough),
        pytest.param("local", MANY, 40, HOUR, marks=pytest.mark.thorough),
        pytest.param("s3", MANY, 10, HOUR, marks=pytest.mark.thorough),
        # About a minute, in which files become old enough to be removed.
        pytest.param("local", MANY, 800, timedelta(seconds=20), marks=pytest.mark.long),
        pytest.param("s3", MANY, 200, timedelta(seconds=20), marks=pytest.mark.long),
    ],
    ids=lambda value: str(value) if isinstance(value, (str, int)) else "",
)
def test_processes_at_once(
    kind: str, jobs: list[str], turns: int, retain: timedelta, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = place_of(kind, request, tmp_path)
    write(table=rows(0, 0), **place)
    context = get_mp_context()
    end = context.Event()
    reports = [tmp_path / f"report-{i}" for i in range(len(jobs))]
    processes = [
        context.Process(target=work, args=(job, i, place, turns, retain, end, str(reports[i])))
        for i, job in enumerate(jobs)
    ]
    for process in processes:
        process.start()
    for job, process in zip(jobs, processes, strict=True):
        if job != "append":
            end.set()  # all have appended
        process.join()
        assert process.exitcode == 0
    writers = [report for job, report in zip(jobs, reports, strict=True) if job == "append"]
    appended = [int(n) for report in writers for n in report.read_text().split()]
    assert len(appended) == len(writers) * turns
    assert int(reports[jobs.index("read")].read_text()) >= 1
    dataset = ShardedDataset(**place)
    assert dataset.verify() == []
    assert Counter(whole(dataset)["row"].to_pylist()) == Counter(
        n for start in appended for n in range(start, start + APPEND)
    )
    dataset.vacuum(timedelta(0))
    assert dataset.verify() == []
