"""What processes do to one dataset at once."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

from datasets import rows, whole, write

from chash_partition import ShardedDataset
from chash_partition.parquet.version import ConflictError

SPAN = 1_000_000  # rows that one process may number
APPEND = 10  # rows at a time


def work(
    job: str, me: int, place: dict[str, Any], turns: int, retain: timedelta, end: Event, report: str
) -> None:
    """Append so many times, or do another job again and again until the end; and write down what was done."""
    done: list[int] = []
    for turn in range(turns) if job == "append" else itertools.count():
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
            ShardedDataset(**place).vacuum(retain)
        else:
            look(ShardedDataset(**place))
            done.append(turn)
        if end.is_set():
            break
    Path(report).write_text(" ".join(map(str, done)) if job == "append" else str(len(done)))


def look(dataset: ShardedDataset) -> None:
    """Every append that one version has, it has whole and once."""
    numbers = whole(dataset)["row"].to_pylist()
    assert len(set(numbers)) == len(numbers)
    assert set(Counter(number // APPEND for number in numbers).values()) <= {APPEND}
