"""Operations on a dataset, killed at the n-th thing that they do to storage.

Two kinds of storage count: local disk, where a file is opened, written, synced, linked and unlinked, and a
killed write leaves half of it; and objects, where a file is put or deleted whole.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
from datasets import rows, write
from fsspec.implementations.local import LocalFileSystem

from chash_partition import Layout, ShardedDataset
from chash_partition.parquet import store

NODES = ("a", "b", "c")


class Counter:
    """Counts what is done; at the n-th, the process is killed."""

    def __init__(self, fatal: int):
        self.fatal, self.count, self.lock = fatal, 0, threading.Lock()

    def __call__(self, dying: Callable[[], Any] = lambda: None) -> None:
        with self.lock:
            self.count += 1
            if self.count == self.fatal:
                dying()
                os.kill(os.getpid(), signal.SIGKILL)


class Objects(LocalFileSystem):
    """Files in a local folder that come and go whole, as in an object store."""

    protocol = ("objects",)
    counter = Counter(0)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self.counter()
        path = self._strip_protocol(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{os.path.dirname(os.path.dirname(path))}.{uuid.uuid4().hex}"
        Path(temporary).write_bytes(value)
        try:
            if mode == "create":
                os.link(temporary, path)
            else:
                os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def rm_file(self, path: str) -> None:
        self.counter()
        os.remove(self._strip_protocol(path))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        path = str(path)
        return super()._strip_protocol(path[len("objects://") :] if path.startswith("objects://") else path)


fsspec.register_implementation("objects", Objects, clobber=True)
store.EXCLUSIVE.add("objects")


def count_on_disk(counter: Counter) -> None:
    """Have the counter asked before each thing that is done to a local disk."""

    folders: dict[Any, object] = {}

    def counted(name: str) -> None:
        real = getattr(os, name)

        def do(*args: Any, **kwargs: Any) -> Any:
            # Threads that make one folder at the same time ask for it, and those above it, twice or once.
            if name != "makedirs" or folders.setdefault(args[0], me := object()) is me:
                half = lambda: real(args[0], bytes(args[1])[: len(args[1]) // 2])  # noqa: E731
                counter(half if name == "write" else lambda: None)
            return real(*args, **kwargs)

        setattr(os, name, do)

    for name in ("open", "write", "fsync", "link", "unlink", "makedirs"):
        counted(name)


def roots_of(path: str) -> dict[str, str]:
    return {node: f"{path}-{node}" for node in NODES}


def prepare(operation: str, path: str) -> None:
    """What there is before the operation."""
    layout = Layout.create("k", 5, ["a", "b"])
    roots = roots_of(path) if operation == "rebalance" else None
    write(path, rows(0, 40), layout=layout, roots=roots)
    dataset = write(path, rows(40, 60), "append", roots=roots)
    if operation == "vacuum":
        dataset.compact()
        write(path, rows(60, 70), "append")
        for _ in range(12):
            dataset.assign(["a"])
            dataset.assign(["a", "b"])


def perform(operation: str, path: str) -> None:
    if operation in ("append", "overwrite"):
        write(path, rows(100, 130), operation, Layout.create("k", 5, ["a", "b"]))
    elif operation == "create":
        write(path, rows(100, 130), layout=Layout.create("k", 5, ["a"]))
    elif operation == "rebalance":
        ShardedDataset(path, roots=roots_of(path)).rebalance(["b", "c"])
    else:
        dataset = ShardedDataset(path)
        {
            "compact": dataset.compact,
            "split": lambda: dataset.split(2),
            "vacuum": lambda: dataset.vacuum(timedelta(0)),
            "assign": lambda: dataset.assign(["a", "b", "c"]),
        }[operation]()


OPERATIONS = ("append", "overwrite", "compact", "split", "rebalance", "vacuum", "assign")


def run(operation: str, path: str, fatal: int, report: str) -> None:
    """Perform it in this process, until it is killed; else write down how much there was to do."""
    counter = Counter(fatal)
    if path.startswith("objects://"):
        Objects.counter = counter
    else:
        count_on_disk(counter)
    perform(operation, path)
    total = counter.count
    counter.fatal = 0
    Path(report).write_text(str(total))
