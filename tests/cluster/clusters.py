"""What the tests of a live cluster share: rows, and what Dask itself says of where they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import dask.dataframe as dd
import pandas as pd
from distributed import Client, Event, LocalCluster, futures_of, wait

from chash_partition import chash_repartition
from chash_partition.cluster.handle import AutobalanceHandle

PARTITIONS = 64
MORTALS = 4
FOUR = ["0", "1", "2", "3"]
SETTINGS = {
    # A stolen task fetches its partition, which would be counted with the transfers of a move.
    "distributed.scheduler.work-stealing": False,
    # Dask's own policies see every instant of a move, not one in two seconds.
    "distributed.scheduler.active-memory-manager.interval": "20ms",
    # Otherwise a worker goes on trying to reach a dead one for half a minute.
    "distributed.comm.timeouts.connect": "3s",
}


def local_cluster(n: int, memory_limit: str | int = 0) -> LocalCluster:
    return LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=":0", memory_limit=memory_limit)


def rows(n: int = 4000) -> pd.DataFrame:
    """Rows with 400 different keys and some null ones."""
    keys = [None if i % 50 == 0 else f"user-{i % 400}" for i in range(n)]
    return pd.DataFrame({"k": keys, "x": range(n), "y": 0.5})


def placed(pdf: pd.DataFrame, nodes: object = FOUR, **options: object) -> dd.DataFrame:
    """A lazy placed frame of the rows, whose layout no other test shares."""
    if "layout" not in options:
        options = {"npartitions": PARTITIONS, "nodes": nodes, "seed": uuid4().int % 2**64, **options}
    return dd.from_pandas(pdf, npartitions=4).pipe(chash_repartition, on="k", **options)


def workers(client: Client) -> dict[str, str]:
    """Address of each worker, by name."""
    return client.run_on_scheduler(
        lambda dask_scheduler: {str(ws.name): address for address, ws in dask_scheduler.workers.items()}
    )


def keys_of(*frames: dd.DataFrame) -> list[object]:
    """The keys of the partitions of persisted frames, in order."""
    found = []
    for frame in frames:
        found += sorted((future.key for future in futures_of(frame)), key=lambda key: key[1])
    return found


def holders(client: Client, frame: dd.DataFrame) -> list[list[str]]:
    """Names of the workers that hold each partition, as Dask reports it."""
    keys = keys_of(frame)

    def who_has(dask_scheduler):
        return [sorted(str(ws.name) for ws in dask_scheduler.tasks[key].who_has or ()) for key in keys]

    return client.run_on_scheduler(who_has)


def assert_on_owners(client: Client, frame: dd.DataFrame) -> None:
    """Each partition is where the layout says and nowhere else, by Dask's word and by ours."""
    wait(frame)
    layout = frame.chash.layout
    owners = [layout.owner_of(p) for p in range(layout.npartitions)]
    assert holders(client, frame) == [[owner] for owner in owners]
    assert frame.chash.placement().tolist() == owners
    nbytes = client.nbytes(keys_of(frame), summary=False)
    assert frame.chash.sizes().tolist() == [nbytes[key] for key in keys_of(frame)]


def arrivals(client: Client) -> Counter[object]:
    """How often each key has come to a worker from another one."""

    def log(dask_worker):
        return [key for entry in dask_worker.transfer_incoming_log for key in entry["keys"]]

    return Counter(key for keys in client.run(log).values() for key in keys)


@contextmanager
def counted(client: Client) -> Iterator[Counter[object]]:
    """Filled at the end with how often each key came to a worker meanwhile."""
    before, meanwhile = arrivals(client), Counter()
    yield meanwhile
    meanwhile.update(arrivals(client) - before)


def until(condition: Callable[[], object], timeout: float = 30) -> None:
    """Wait for something of which Dask tells nobody when it happens."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.01)


def settled(follows: AutobalanceHandle, *names: str, n: int = 0) -> None:
    """Wait until a layout has come to rest: on these workers, if named, or on that many."""

    def there() -> bool:
        status = follows.status()  # once: another may be of another moment
        here = status.workers
        return status.state == "settled" and here == (names or here) and len(here) == (n or len(here))

    until(there, 60)


def kill(client: Client, *names: str) -> None:
    """kill -9, and wait for the scheduler to see it."""
    addresses = workers(client)
    pids = client.run(os.getpid, workers=[addresses[name] for name in names])
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not {addresses[name] for name in names} & set(workers(client).values()))


@contextmanager
def stopped(client: Client, name: str) -> Iterator[None]:
    """A worker process that does nothing meanwhile."""
    [pid] = client.run(os.getpid, workers=[workers(client)[name]]).values()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


@contextmanager
def partitions_in_use(client: Client, frame: dd.DataFrame, partitions: Iterable[int]) -> Iterator[None]:
    """A task reads each of these partitions from within the block until its end.

    A partition cannot leave a worker as long as a task there reads it.
    """
    name = uuid4().hex

    def read(block: pd.DataFrame, i: int) -> int:
        Event(f"{name}-{i}").set()
        Event(name).wait()
        return len(block)

    blocks = {future.key[1]: future for future in futures_of(frame)}
    futures = [client.submit(read, blocks[p], p, pure=False) for p in partitions]
    try:
        for p in partitions:
            assert Event(f"{name}-{p}", client).wait(30)
        yield
    finally:
        Event(name, client).set()
        wait(futures, 60)


def now(client: Client) -> float:
    """The time by which the scheduler dates what it logs."""

    def clock():
        from distributed.metrics import time

        return time()

    return client.run_on_scheduler(clock)


def sums(frame):
    return frame.groupby("k", dropna=False).agg({"x": "sum", "y": "mean"})


def assert_same_rows(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Equal, in any order and with any kind of strings."""
    columns = list(expected.columns)
    found, expected = (
        frame[columns]
        .assign(k=frame["k"].astype(object).where(frame["k"].notna(), None))
        .sort_values(columns, ignore_index=True)
        for frame in (found, expected)
    )
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def assert_right(frame: dd.DataFrame, pdf: pd.DataFrame, timeout: float = 60) -> None:
    """The group-by and the rows on the cluster equal pandas', in finite time."""
    client = futures_of(frame)[0].client
    results = client.compute([sums(frame), frame])
    wait(results, timeout)
    groups, whole = client.gather(results)
    assert_same_rows(groups.reset_index(), sums(pdf).reset_index())
    assert_same_rows(whole, pdf)


@contextmanager
def worker_process(
    client: Client, name: str | None, *arguments: str, **config: str
) -> Iterator[subprocess.Popen]:
    """`dask worker` from the command line, until the end of the block; config as in the environment."""
    named = ["--name", name] if name is not None else []
    before = set(workers(client).values())
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address, "--no-nanny"),
            *("--nthreads", "1", "--no-dashboard", *named, *arguments),
        ],
        env={**os.environ, **config, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: set(workers(client).values()) - before)
        yield process
    finally:
        process.kill()
        process.wait()
