"""What the tests of a live cluster share: rows, and what Dask itself says of where they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any
from uuid import uuid4

import cloudpickle
import dask.dataframe as dd
import pandas as pd
from distributed import Client, Event, LocalCluster, futures_of, wait
from distributed.utils import get_mp_context
from frames import assert_same_rows

from chash_partition import chash_repartition
from chash_partition.cluster.handle import AutobalanceHandle
from chash_partition.hashing import hash_key

# As many on each of four workers, and of five: one of each of the four moves to the fifth.
PARTITIONS = 20
MORTALS = 4
FOUR = ["0", "1", "2", "3"]
# Seconds to wait for what takes a moment on an idle machine.
TIMEOUT = 120
SETTINGS = {
    # A stolen task fetches its partition, which would be counted with the transfers of a move.
    "distributed.scheduler.work-stealing": False,
    # Dask's own policies see every instant of a move, not one in two seconds.
    "distributed.scheduler.active-memory-manager.interval": "50ms",
    # Otherwise a worker goes on trying to reach a dead one for half a minute.
    "distributed.comm.timeouts.connect": "10s",
    # Tasks may see any number of workers die.
    "distributed.scheduler.allowed-failures": 50,
    # LocalCluster closes the nanny of a name that is away 15 s after it was away before.
    "distributed.deploy.lost-worker-timeout": "1h",
}


_running: dict[str, Any] = {}
# How many frames each test has placed.
_placed: Counter[str] = Counter()
_ends = ExitStack()


def shared(name: str, start: Callable[[], AbstractContextManager[Any]]) -> Any:
    """What the tests of one group share, such as a cluster: started by the first of them."""
    if name not in _running:
        _running[name] = _ends.enter_context(start())
    return _running[name]


def end_shared() -> None:
    """An idle cluster takes a part of a core, so each ends with the last test of its group."""
    _running.clear()
    _ends.close()


def local_cluster(n: int, memory_limit: str | int = 0, **options: Any) -> LocalCluster:
    """Worker processes, of one thread each unless an option says otherwise."""
    options = {"threads_per_worker": 1, **options}
    return LocalCluster(n_workers=n, dashboard_address=":0", memory_limit=memory_limit, **options)


def rows(n: int = 4000) -> pd.DataFrame:
    """Rows with 400 different keys and some null ones."""
    keys = [None if i % 50 == 0 else f"user-{i % 400}" for i in range(n)]
    return pd.DataFrame({"k": keys, "x": range(n), "y": 0.5})


def placed(pdf: pd.DataFrame, nodes: object = FOUR, **options: object) -> dd.DataFrame:
    """A lazy placed frame of the rows. No other has its layout, which is the same in each run of a test."""
    if "layout" not in options:
        test, _, _ = os.environ["PYTEST_CURRENT_TEST"].partition(" ")
        _placed[test] += 1
        seed = hash_key(f"{test} {_placed[test]}")
        options = {"npartitions": PARTITIONS, "nodes": nodes, "seed": seed, **options}
    return dd.from_pandas(pdf, npartitions=2).pipe(chash_repartition, on="k", **options)


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


class Arrivals:
    """How often each key has come to a worker from another one since this was made.

    Those that have left meanwhile count as of the last look.
    """

    def __init__(self, client: Client):
        self.client, self.logs = client, {}
        self.before = {}
        self.look()
        self.before = dict(self.logs)

    def look(self) -> Counter[object]:
        def log(dask_worker):
            return [key for entry in dask_worker.transfer_incoming_log for key in entry["keys"]]

        self.logs.update({address: Counter(keys) for address, keys in self.client.run(log).items()})
        return sum(
            (log - self.before.get(address, Counter()) for address, log in self.logs.items()), Counter()
        )


def transfers_of(transfers: Counter[object], *frames: dd.DataFrame) -> dict[object, int]:
    """Those of the partitions of these frames."""
    return {key: transfers[key] for key in keys_of(*frames) if transfers[key]}


def changed(before: Iterable[object], after: Iterable[object]) -> list[int]:
    """The places at which the two differ."""
    return [p for p, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


@contextmanager
def counted(client: Client) -> Iterator[Counter[object]]:
    """Filled at the end with how often each key came to a worker meanwhile."""
    arrivals, meanwhile = Arrivals(client), Counter()
    yield meanwhile
    meanwhile.update(arrivals.look())


def until(condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
    """Wait for something of which Dask tells nobody when it happens.

    Most conditions ask the scheduler, which has work to do meanwhile: they are asked ever less often.
    """
    end, pause = time.monotonic() + timeout, 0.01
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(pause)
        pause = min(1.3 * pause, 0.2)


def settled(follows: AutobalanceHandle, *names: str, n: int = 0, frames: Iterable[dd.DataFrame] = ()) -> None:
    """Wait until a layout has come to rest: on these workers, if named, or on that many.

    Partitions of the frames may have been lost, and are to be in memory again.
    """

    def there() -> bool:
        status = follows.status()  # once: another may be of another moment
        here = status.workers
        return status.state == "settled" and here == (names or here) and len(here) == (n or len(here))

    until(there)
    for frame in frames:
        wait(frame, TIMEOUT)
    if frames:
        until(there)  # what was computed elsewhere has come to its owner


def being_moved(client: Client) -> bool:
    """Whether partitions of a layout are on their way."""
    return client.run_on_scheduler(
        lambda dask_scheduler: any(
            entry.move is not None for entry in dask_scheduler.plugins["chash"].layouts.values()
        )
    )


def management(client: Client) -> dict[str, object]:
    """What is at work on the scheduler: what manages memory, plugins, and tasks of ours."""

    def look(dask_scheduler):
        import asyncio

        manager = dask_scheduler.extensions["amm"]
        return {
            "policies": sorted((type(p).__name__, id(p), p.manager is manager) for p in manager.policies),
            "running": manager.running,
            "plugins": sorted(dask_scheduler.plugins),
            "callbacks": sorted(dask_scheduler.periodic_callbacks),
            "tasks": [repr(task) for task in asyncio.all_tasks() if "chash" in repr(task)],
        }

    return client.run_on_scheduler(look)


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
            assert Event(f"{name}-{p}", client).wait(TIMEOUT)
        yield
    finally:
        Event(name, client).set()
        wait(futures, TIMEOUT)


def now(client: Client) -> float:
    """The time by which the scheduler dates what it logs."""

    def clock():
        from distributed.metrics import time

        return time()

    return client.run_on_scheduler(clock)


def computed_since(client: Client, since: float) -> list[object]:
    """The keys of the tasks that have run, by the scheduler's time."""
    return client.run_on_scheduler(
        lambda dask_scheduler: [
            t.key for t in dask_scheduler.transition_log if t.timestamp >= since and t.start == "processing"
        ]
    )


def sums(frame):
    if isinstance(frame, pd.DataFrame):
        return frame.groupby("k", dropna=False)[["x", "y"]].sum()
    # To one partition, without a shuffle.
    return frame.groupby("k", dropna=False)[["x", "y"]].sum(split_out=1)


def assert_right(frame: dd.DataFrame, pdf: pd.DataFrame) -> None:
    """The group-by and the rows on the cluster equal pandas', in finite time."""
    client = futures_of(frame)[0].client
    results = client.compute([sums(frame), frame])
    wait(results, TIMEOUT)
    groups, whole = client.gather(results)
    assert_same_rows(groups.reset_index(), sums(pdf).reset_index())
    assert_same_rows(whole, pdf)


@contextmanager
def stream(
    **queries: tuple[Callable[[], dd.DataFrame], pd.DataFrame],
) -> Iterator[Counter[str]]:
    """These, one after another until the end of the block, each compared with pandas; how often so far."""
    made: Counter[str] = Counter()
    ended, failures = threading.Event(), []

    def go() -> None:
        try:
            while not ended.is_set():
                for name, (query, expected) in queries.items():
                    assert_same_rows(query().compute(), expected)
                    made[name] += 1
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join(TIMEOUT)
    assert not failures, failures
    assert not thread.is_alive()


@contextmanager
def dask_process(
    *arguments: object, within: Sequence[str] = (), **config: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`dask ...` from the command line, until the end of the block; config as in the environment.

    `within` is a command that takes this one as its last arguments and becomes it.
    """
    process = subprocess.Popen(
        [*within, sys.executable, "-m", "dask", *map(str, arguments)],
        env={**os.environ, **config},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def worker_process(
    client: Client, name: str | None, *arguments: str, start: Any = dask_process, **options: Any
) -> Iterator[Any]:
    """`dask worker` from the command line, until the end of the block; options as for `dask_process`."""
    named = ["--name", name] if name is not None else []
    before = set(workers(client).values())
    given = ("worker", client.scheduler.address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
    with start(*given, *named, *arguments, **options) as process:
        until(lambda: set(workers(client).values()) - before)
        yield process


@contextmanager
def forked_process(function: Callable[[], object], **config: str) -> Iterator[BaseProcess]:
    """A process that does this, until the end of the block; config as in the environment.

    It is forked from one that has imported what it needs. A function within another one may use whatever
    it can see there.
    """
    import forked

    process = get_mp_context().Process(target=forked.call, args=(cloudpickle.dumps(function), config))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def forked_dask(*arguments: object, **config: str) -> AbstractContextManager[BaseProcess]:
    """`dask ...` as from the command line, in a forked process."""
    given = [*map(str, arguments)]

    def command() -> None:
        from distributed.cli import dask_scheduler, dask_worker

        {"scheduler": dask_scheduler, "worker": dask_worker}[given[0]].main(given[1:])

    return forked_process(command, **config)


def forked_worker(
    client: Client, name: str | None, *arguments: str, **config: str
) -> AbstractContextManager[BaseProcess]:
    """As `worker_process`, in a forked process."""
    return worker_process(client, name, *arguments, start=forked_dask, **config)
