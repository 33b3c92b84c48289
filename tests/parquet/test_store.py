"""The two promises of a store: a file is created once, and is there whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from datasets import assert_sound, each_storage, rows, write

from chash_partition.parquet.log import name_of
from chash_partition.parquet.store import Store

CREATORS = 8


@each_storage
def test_one_of_many_creates_a_file(place: dict[str, Any]) -> None:
    """However many try at once."""
    store = Store(str(place["path"]), place.get("storage_options") or {})
    start = threading.Barrier(CREATORS)
    made: list[tuple[int, int]] = []

    def try_it(me: int) -> None:
        mine = Store(store.url, store.options)
        for number in range(20):
            start.wait(60)
            if mine.create(name_of(number), f"{me}".encode() * 1000):
                made.append((number, me))

    threads = [threading.Thread(target=try_it, args=(me,)) for me in range(CREATORS)]
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
