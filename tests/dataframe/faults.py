"""What can go wrong on a cluster, made to happen at a known moment, in real processes."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
from clusters import until
from distributed import Client, LocalCluster, SchedulerPlugin, wait
from frames import assert_placed, assert_unchanged

from chash_partition import chash_repartition

PARTITIONS = 12
BLOCKS = 9
ROWS = 100
TIMEOUT = 120

SETTINGS = {
    # Otherwise a worker goes on trying to reach a dead one for half a minute.
    "distributed.comm.timeouts.connect": "3s",
    # A cluster gives up a worker that happens to be dead this long after an earlier death.
    "distributed.deploy.lost-worker-timeout": "1h",
    "distributed.p2p.comm.retry.count": 100,
    "distributed.p2p.comm.retry.delay.min": "5ms",
    "distributed.p2p.comm.retry.delay.max": "50ms",
    # Each share of a block is sent by itself.
    "distributed.p2p.comm.message-bytes-limit": "1 B",
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
    "write": ("chash-write-", "memory"),
}


def as_environment(config: dict[str, Any]) -> dict[str, str]:
    """For a process that is started from the command line."""
    return {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(v) for key, v in config.items()}


def block(i: int, seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
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


def frame(seed: int = 0, blocks: int = BLOCKS, rows: int = ROWS) -> tuple[dd.DataFrame, pd.DataFrame]:
    """A lazy frame, and the same rows in pandas."""
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = dd.from_map(block, range(blocks), seed=seed, rows=rows, meta=block(0)[:0])
    return lazy, pd.concat([block(i, seed, rows) for i in range(blocks)])


def plain(expected: pd.DataFrame, blocks: int = BLOCKS) -> dd.DataFrame:
    """A lazy frame of these rows, which needs nothing of ours to be computed."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(expected, npartitions=blocks, sort=False)


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
                target, size = os.readlink(fd), fd.stat().st_size
            except FileNotFoundError:
                continue
            if target.startswith(here) and target.endswith("(deleted)") and size:
                found.append(target)
        return found

    return {worker: found for worker, found in client.run(look, on_error="ignore").items() if found}


def assert_no_trace(client: Client) -> None:
    """After the frames have been let go of."""
    gc.collect()
    try:
        until(lambda: not traces(client))
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
    most = {"transfer": BLOCKS, "barrier": 1, "unpack": PARTITIONS - 1, "write": PARTITIONS - 1}
    return rng.randint(1, most[phase])


def pids(client: Client) -> dict[str, int]:
    """Process id of each worker, by address."""
    return client.run(os.getpid)


@contextmanager
def held(
    cluster: LocalCluster, client: Client, phase: str, rng: random.Random
) -> Iterator[Callable[[], list[str]]]:
    """A shuffle started within the block stays in the phase until its end: a worker stands still.

    Yields what waits for that moment, and returns the addresses of the workers that go on.
    """
    others = pids(client)
    still = rng.choice(sorted(others))
    pid = others.pop(still)

    def stop() -> None:
        os.kill(pid, signal.SIGSTOP)

    with at(cluster, phase, nth_of(phase, rng), stop) as trigger:

        def reached() -> list[str]:
            assert trigger.happened.wait(TIMEOUT)
            return list(others)

        try:
            yield reached
        finally:
            os.kill(pid, signal.SIGCONT)


def start_cutting(client: Client, seed: int) -> None:
    """From now on each worker's connections to others break at random, while something is sent."""

    async def start(dask_worker: Any) -> None:
        rng = random.Random(f"{dask_worker.name} {seed}")
        dask_worker.cuts = 0

        async def cut() -> None:
            while True:
                await asyncio.sleep(rng.expovariate(1000))
                for address, comms in dask_worker.rpc.occupied.items():
                    for comm in list(comms):
                        if address != dask_worker.scheduler.address and rng.random() < 0.5:
                            comm.abort()
                            dask_worker.cuts += 1

        dask_worker.cutting = asyncio.create_task(cut())

    client.run(start)


def stop_cutting(client: Client) -> int:
    """How often a connection was cut."""

    async def stop(dask_worker: Any) -> int:
        dask_worker.cutting.cancel()
        return dask_worker.cuts

    return sum(client.run(stop).values())
