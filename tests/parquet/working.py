"""What processes do to one dataset at once, until their time is over."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import rows, whole, write

from chash_partition import ShardedDataset, hash_keys
from chash_partition.parquet.version import ConflictError

hash_keys(pa.array([1]))  # compiled once, before processes are forked

SPAN = 1_000_000  # rows that one process may number
APPEND = 10  # rows at a time
RETAIN = timedelta(seconds=20)  # longer than a reader stays with a version


def work(job: str, me: int, place: dict[str, Any], seconds: float, report: str) -> None:
    """Do one job again and again, and write down what was done."""
    end = time.monotonic() + seconds
    done: list[int] = []
    for turn in itertools.count():
        if time.monotonic() > end:
            break
        if job == "append":
            start = me * SPAN + turn * APPEND
            write(table=rows(start, start + APPEND), mode="append", **place)
            done.append(start)
        elif job == "compact":
            try:
                ShardedDataset(**place).compact()
            except ConflictError:
                done.append(turn)
        elif job == "vacuum":
            ShardedDataset(**place).vacuum(RETAIN)
        else:
            look(ShardedDataset(**place))
            done.append(turn)
    Path(report).write_text(" ".join(map(str, done)) if job == "append" else str(len(done)))


def look(dataset: ShardedDataset) -> None:
    """Every append that one version has, it has whole and once."""
    numbers = whole(dataset)["row"].to_pylist()
    assert len(set(numbers)) == len(numbers)
    assert set(Counter(number // APPEND for number in numbers).values()) <= {APPEND}
