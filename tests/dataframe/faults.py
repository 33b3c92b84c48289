"""What can go wrong on a cluster, made to happen at a known moment, in real processes."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, SchedulerPlugin, wait
from frames import assert_placed, assert_unchanged

from chash_partition import chash_repartition

PARTITIONS = 24
BLOCKS = 12
TIMEOUT = 120

SETTINGS = {
    # Otherwise a worker goes on trying to reach a dead one for half a minute.
    "distributed.comm.timeouts.connect": "3s",
    "distributed.p2p.comm.retry.delay.min": "5ms",
    "distributed.p2p.comm.retry.delay.max": "50ms",
}
# No worker has room in memory, so all that comes to it goes into its file.
ON_DISK = {
    "distributed.p2p.storage.buffer": "1 B",
    "distributed.worker.memory.target": 1e-6,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}

# The tasks of each phase, as their keys start, and the state in which they show it.
PHASES = {
    "transfer": ("chash-transfer-", "memory"),
    "barrier": ("shuffle-barrier-", "processing"),
    "unpack": ("chash-unpack-", "memory"),
}


def block(i: int, seed: int = 0, rows: int = 250) -> pd.DataFrame:
    rng = np.random.default_rng([seed, i])
    k = rng.integers(0, 400, rows)
    things = np.array([None, 1, "one", (1, 2), 2.5], dtype=object)
    return pd.DataFrame(
        {
            "k": k,
            "row": i * rows + np.arange(rows),
            "text": pd.array([f"text {n}" if n % 7 else None for n in k], dtype="str"),
            "thing": pd.Series(things[rng.integers(0, 5, rows)], dtype=object),
            "kind": pd.Categorical.from_codes(rng.integers(-1, 3, rows), ["a", "b", "c"]),
        }
    )


def frame(seed: int = 0, blocks: int = BLOCKS, rows: int = 250) -> tuple[dd.DataFrame, pd.DataFrame]:
    """A lazy frame, and the same rows in pandas."""
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = dd.from_map(block, range(blocks), seed=seed, rows=rows, meta=block(0)[:0])
    return lazy, pd.concat([block(i, seed, rows) for i in range(blocks)])


def placed(lazy: dd.DataFrame, on: str = "k", npartitions: int = PARTITIONS) -> dd.DataFrame:
    return lazy.pipe(chash_repartition, on=on, npartitions=npartitions, engine="p2p")


def assert_right(client: Client, result: dd.DataFrame, expected: pd.DataFrame) -> None:
    """The partitions of a placed frame hold just these rows, each where it belongs."""
    layout = result.chash.layout
    futures = client.compute(result.to_delayed())
    wait(futures, TIMEOUT)
    blocks = client.gather(futures)
    assert_placed(blocks, layout)
    assert_unchanged(blocks, expected)


def until(condition: Callable[[], object], timeout: float = 60) -> None:
    """Wait for something of which Dask tells nobody when it happens."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.01)


def traces(client: Client) -> dict[str, Any]:
    """Shuffle runs that are open on each worker, and files, also without a name, that it has of them."""

    def look(dask_worker: Any) -> list[str]:
        here = dask_worker.local_directory
        found = [str(run) for run in dask_worker.plugins["shuffle"].shuffle_runs._runs]
        found += [
            str(path) for path in Path(here).rglob("*") if "chash" in path.name or "shuffle" in path.name
        ]
        for fd in Path("/proc/self/fd").iterdir():
            try:
                target = os.readlink(fd)
            except FileNotFoundError:
                continue
            if target.startswith(here) and target.endswith("(deleted)"):
                found.append(target)
        return found

    return {worker: found for worker, found in client.run(look, on_error="ignore").items() if found}


def assert_no_trace(client: Client) -> None:
    """After the frames have been let go of."""
    gc.collect()
    try:
        until(lambda: not traces(client), 20)
    except AssertionError:
        raise AssertionError(f"left behind: {traces(client)}") from None


class Trigger(SchedulerPlugin):
    """Acts once, in the scheduler, at the moment when the nth task of a phase shows it."""

    name = "trigger"

    def __init__(self, phase: str, nth: int, act: Callable[[], object]):
        self.prefix, self.state = PHASES[phase]
        self.left = nth
        self.act = act
        self.happened = threading.Event()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish != self.state or not (key[0] if isinstance(key, tuple) else key).startswith(self.prefix):
            return
        self.left -= 1
        if self.left == 0:
            self.act()
            self.happened.set()


@contextmanager
def at(cluster: LocalCluster, phase: str, nth: int, act: Callable[[], object]) -> Iterator[Trigger]:
    """From within the block, wait for the moment with `happened.wait`."""
    trigger = Trigger(phase, nth, act)

    async def add() -> None:
        cluster.scheduler.add_plugin(trigger)

    async def remove() -> None:
        cluster.scheduler.remove_plugin(trigger.name)

    cluster.sync(add)
    try:
        yield trigger
    finally:
        cluster.sync(remove)


def nth_of(phase: str, rng: random.Random) -> int:
    return {"transfer": rng.randrange(1, BLOCKS + 1), "barrier": 1, "unpack": rng.randrange(1, PARTITIONS)}[
        phase
    ]


def processes(client: Client) -> dict[str, int]:
    """Process id of each worker, by address."""
    return client.run(os.getpid)


def stop_all(pids: list[int], sign: signal.Signals = signal.SIGSTOP) -> None:
    for pid in pids:
        os.kill(pid, sign)
