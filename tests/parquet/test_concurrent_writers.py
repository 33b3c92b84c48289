"""Processes that append, compact and read at once: no append is lost, and nothing is read by halves."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import uuid
from collections import Counter
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from datasets import assert_sound, rows, whole, write
from working import work

from chash_partition import ShardedDataset
from chash_partition.parquet.log import name_of
from chash_partition.parquet.store import Store

PROCESSES = 8
SPAN = 1_000_000  # rows that one process may number


@pytest.fixture(scope="module")
def server() -> Any:
    """Forks processes that have everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["working"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def at_work(server: Any, place: dict[str, Any], seconds: float, report: Path) -> None:
    """Let them work; then check what they say against what is there."""
    write(table=rows(0, 0), **place)
    jobs = ["append"] * 4 + ["compact"] * 2 + ["read", "vacuum"]
    assert len(jobs) == PROCESSES
    processes = [
        server.Process(target=work, args=(job, i, place, seconds, str(report / str(i))))
        for i, job in enumerate(jobs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds + 120)
        assert process.exitcode == 0
    appended = [int(n) for i in range(4) for n in (report / str(i)).read_text().split()]
    assert len(appended) >= 4
    assert int((report / "6").read_text()) >= 1
    dataset = ShardedDataset(**place)
    assert dataset.verify() == []
    assert Counter(whole(dataset)["row"].to_pylist()) == Counter(
        n for start in appended for n in range(start, start + 10)
    )
    dataset.vacuum(timedelta(0))
    assert dataset.verify() == []


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_processes_at_once(server: Any, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    at_work(server, place_of(kind, request, tmp_path), 3, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_processes_at_once_for_a_minute(
    server: Any, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    at_work(server, place_of(kind, request, tmp_path), 60, tmp_path)


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if kind == "local":
        return {"path": str(tmp_path / "x")}
    name = f"s3://bucket/{uuid.uuid4().hex}"
    return {"path": name, "storage_options": request.getfixturevalue("s3")}


def test_one_of_many_creates_a_file(place: dict[str, Any]) -> None:
    """However many try at once."""
    store = Store(str(place["path"]), place.get("storage_options") or {})
    start = threading.Barrier(PROCESSES)
    made: list[tuple[int, int]] = []

    def try_it(me: int) -> None:
        mine = Store(store.url, store.options)
        for number in range(20):
            start.wait(60)
            if mine.create(name_of(number), f"{me}".encode() * 1000):
                made.append((number, me))

    threads = [threading.Thread(target=try_it, args=(me,)) for me in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(number for number, _ in made) == list(range(20))
    for number, me in made:
        assert store.read(name_of(number)) == f"{me}".encode() * 1000
    assert [name for name, _, _ in store.list("_chash")] == [name_of(number) for number in range(20)]


def test_a_put_that_was_sent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the second finds the file of the first: it is committed, once."""
    dataset = write(tmp_path, rows(0, 20))
    create = Store.create

    def twice(self: Store, name: str, content: Any) -> bool:
        create(self, name, content)
        return create(self, name, content)

    monkeypatch.setattr(Store, "create", twice)
    write(tmp_path, rows(20, 30), "append")
    assert dataset.refresh().version == 1
    assert_sound(dataset, rows(0, 30))
