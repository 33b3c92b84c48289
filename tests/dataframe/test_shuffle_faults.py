"""What happens to a shuffle when workers die or join, connections break, or a disk is full."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import re
import signal
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, wait
from distributed.shuffle._exceptions import P2POutOfDiskError
from faults import (
    ON_DISK,
    SETTINGS,
    TIMEOUT,
    Processes,
    assert_no_trace,
    assert_right,
    at,
    frame,
    held,
    nth_of,
    placed,
    plain,
    processes,
    start_cutting,
    stop_cutting,
    until,
    workers,
)
from frames import assert_same_rows, assert_unchanged

from chash_partition import ShardedDataset, chash_repartition, read_parquet
from chash_partition.cluster import live
from chash_partition.dataframe.shuffle import BlockShare, SpillError, SpillFile

WORKERS = 3


@pytest.fixture(scope="module", params=["memory", "disk"])
def mortals(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[LocalCluster]:
    """Workers that are started again when killed, with room for the shares in memory, or none."""
    config = SETTINGS | (ON_DISK if request.param == "disk" else {})
    with (
        dask.config.set(config),
        LocalCluster(
            name=request.param,
            n_workers=WORKERS,
            threads_per_worker=1,
            dashboard_address=":0",
            memory_limit="4GiB",
            local_directory=str(tmp_path_factory.mktemp("local")),
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(mortals: LocalCluster) -> Iterator[Client]:
    with Client(mortals) as client:
        until(lambda: len(client.scheduler_info()["workers"]) == WORKERS)
        yield client


def workers_die(cluster: LocalCluster, client: Client, phase: str, seed: int) -> None:
    """One, or in every fifth run two."""
    rng = random.Random(f"{phase} {seed}")
    until(lambda: len(client.scheduler_info()["workers"]) == WORKERS)
    lazy, expected = frame(seed)
    victims = rng.sample(sorted(processes(client).values()), 2 if seed % 5 == 4 else 1)

    def kill() -> None:
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    if phase == "persisted":
        result = placed(lazy).chash.persist()
        wait(result, TIMEOUT)
        kill()
    else:
        with at(cluster, phase, nth_of(phase, rng), kill) as trigger:
            result = placed(lazy).chash.persist()
            assert trigger.happened.wait(TIMEOUT)
    assert_right(client, result, expected)
    del result
    assert_no_trace(client)


def a_worker_joins(cluster: LocalCluster, client: Client, phase: str, seed: int) -> None:
    rng = random.Random(f"{phase} {seed}")
    lazy, expected = frame(seed)
    try:
        if phase == "persisted":
            result = placed(lazy).chash.persist()
            wait(result, TIMEOUT)
            cluster.scale(WORKERS + 1)
            client.wait_for_workers(WORKERS + 1, TIMEOUT)
        else:
            with held(cluster, client, phase, rng) as reached:
                result = placed(lazy).chash.persist()
                reached()
                cluster.scale(WORKERS + 1)
                client.wait_for_workers(WORKERS + 1, TIMEOUT)
        assert_right(client, result, expected)
        del result
        assert_no_trace(client)
    finally:
        cluster.sync(cluster.scale_down, [max(cluster.worker_spec)])
        until(lambda: len(client.scheduler_info()["workers"]) == WORKERS)


EVENTS = pytest.mark.parametrize("event", [workers_die, a_worker_joins])
AT = pytest.mark.parametrize("phase", ["transfer", "barrier", "unpack", "persisted"])


@EVENTS
@AT
def test_workers_come_and_go(mortals: LocalCluster, client: Client, phase: str, event: Any) -> None:
    event(mortals, client, phase, 0)


@pytest.mark.long
@EVENTS
@AT
def test_workers_come_and_go_again(mortals: LocalCluster, client: Client, phase: str, event: Any) -> None:
    for seed in range(1, 21):
        event(mortals, client, phase, seed)


@pytest.mark.parametrize(
    "phase", [*(pytest.param(phase, marks=pytest.mark.long) for phase in ("transfer", "barrier")), "write"]
)
def test_a_worker_dies_while_partitions_are_written(
    mortals: LocalCluster, client: Client, phase: str, tmp_path: Path
) -> None:
    rng = random.Random(phase)
    lazy, expected = (rows.drop(columns="thing") for rows in frame(0))
    victim = rng.choice(sorted(processes(client).values()))
    with at(mortals, phase, nth_of(phase, rng), lambda: os.kill(victim, signal.SIGKILL)) as trigger:
        placed(lazy).chash.to_parquet(tmp_path / "x")
        assert trigger.happened.is_set()
    dataset = ShardedDataset(tmp_path / "x")
    dataset.vacuum(timedelta(0))
    assert dataset.verify() == []
    assert_same_rows(read_parquet(tmp_path / "x").compute(), expected)
    assert_no_trace(client)


def cut_connections(client: Client, seed: int) -> int:
    lazy, expected = frame(seed, blocks=40)
    start_cutting(client, seed)
    try:
        result = placed(lazy).chash.persist()
        wait(result, TIMEOUT)
    finally:
        cuts = stop_cutting(client)
    assert_right(client, result, expected)
    del result
    assert_no_trace(client)
    return cuts


def test_connections_break(client: Client) -> None:
    assert sum(cut_connections(client, seed) for seed in range(2))


@pytest.mark.long
def test_connections_break_again_and_again(client: Client) -> None:
    assert sum(cut_connections(client, seed) for seed in range(2, 22)) > 100


def test_two_at_once(client: Client) -> None:
    (lazy, expected), (other, others) = frame(0), frame(1)
    results = [placed(lazy), placed(lazy, "text", 17), placed(other), placed(lazy, npartitions=5)]
    results = [result.chash.persist() for result in results]
    for result, rows in zip(results, (expected, expected, others, expected), strict=True):
        assert_right(client, result, rows)
    del results, result
    assert_no_trace(client)


def test_one_of_another(client: Client) -> None:
    lazy, expected = frame(0)
    for result in (placed(placed(lazy), "text", 17), placed(placed(placed(lazy), "k", 7), "text")):
        assert_right(client, result.chash.persist(), expected)
    del result
    assert_no_trace(client)


def test_the_same_again(client: Client) -> None:
    lazy, expected = frame(0)
    for _ in range(3):
        result = placed(lazy).chash.persist()
        assert_right(client, result, expected)
        del result
        assert_no_trace(client)


@pytest.mark.parametrize("phase", ["transfer", "unpack"])
@pytest.mark.parametrize("how", ["cancel", "release", "close"])
def test_given_up_half_way(mortals: LocalCluster, client: Client, phase: str, how: str) -> None:
    lazy, expected = frame(0)
    with held(mortals, client, phase, random.Random(how)) as reached, Client(mortals) as other:
        result = placed(lazy).chash.persist()
        reached()
        if how == "cancel":
            other.cancel(result, force=True)
        elif how == "close":
            other.close()
        del result
        gc.collect()
        with client.as_current():
            again = placed(lazy).chash.persist()
    assert_right(client, again, expected)
    del again
    assert_no_trace(client)


def test_no_worker_that_takes_part_is_scaled_down(mortals: LocalCluster, client: Client) -> None:
    def closable(dask_scheduler: Any) -> list[str]:
        return dask_scheduler.workers_to_close(n=WORKERS)

    lazy, expected = frame(0)
    assert len(client.run_on_scheduler(closable)) == WORKERS
    with held(mortals, client, "transfer", random.Random(0)) as reached:
        result = placed(lazy).chash.persist()
        reached()
        assert not client.run_on_scheduler(closable)
    assert_right(client, result, expected)
    del result
    assert_no_trace(client)
    assert len(client.run_on_scheduler(closable)) == WORKERS


# What the page reads of each worker's heartbeat.
SHOWN = {"memory_limit", "total", "memory", "buckets", "avg_duration", "avg_size", "read", "written"}


def test_heartbeats_have_what_the_dashboard_shows(mortals: LocalCluster, client: Client) -> None:
    async def heartbeat(dask_worker: Any) -> None:
        await dask_worker.heartbeat()

    def beats(dask_scheduler: Any) -> dict[str, Any]:
        [beats] = dask_scheduler.plugins["shuffle"].heartbeats.values()
        return {address: dict(beat) for address, beat in beats.items()}

    lazy, expected = frame(0)
    with held(mortals, client, "barrier", random.Random(0)) as reached:
        result = placed(lazy).chash.persist()
        going = reached()
        client.run(heartbeat, workers=going)
        found = client.run_on_scheduler(beats)
    assert found.keys() >= set(going)
    for beat in (found[address] for address in going):
        assert beat["comm"].keys() >= SHOWN
        assert beat["disk"].keys() >= SHOWN
        assert beat["disk"]["total"] > 0
        # Where the shares are, as this cluster is there for.
        assert (beat["disk"]["written"] > 0) == (mortals.name == "disk")
    assert_right(client, result, expected)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


def disk_used(client: Client, name: str) -> int:
    """Bytes on the disk of a worker, by any file."""

    def used(dask_worker: Any) -> int:
        disk = os.statvfs(dask_worker.local_directory)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    return client.run(used, workers=[workers(client)[name]])[workers(client)[name]]


def fill(client: Client, name: str, left: int) -> None:
    """Leave that many bytes on the disk of a worker."""

    def write(dask_worker: Any) -> None:
        filler = Path(dask_worker.local_directory) / "filler"
        filler.unlink(missing_ok=True)
        disk = os.statvfs(dask_worker.local_directory)
        filler.write_bytes(b"x" * max(0, disk.f_bavail * disk.f_frsize - left))

    client.run(write, workers=[workers(client)[name]])


def full_disk(started: Processes, lefts: Iterable[int]) -> list[bool]:
    """With so many bytes left, rows are right or there is one clear error; which of the two."""
    _, expected = frame(0, rows=1000)
    started.scheduler()
    started.worker("big")
    started.worker("small", disk="2m")
    fits = []
    with Client(scheduler_file=str(started.file)) as client:
        client.wait_for_workers(2, TIMEOUT)
        for left in lefts:
            fill(client, "small", left)
            before = disk_used(client, "small")
            try:
                rows = placed(plain(expected)).compute()
            except P2POutOfDiskError as error:
                message = str(error)
            else:
                assert_unchanged(rows, expected)
                message = ""
            fits.append(not message)
            assert fits[-1] or re.search(f"^no space left in {started.directory}/small/.*{REMEDY}", message)
            assert_no_trace(client)
            assert disk_used(client, "small") == before
        result = placed(plain(expected.iloc[:100])).chash.persist()
        assert_right(client, result, expected.iloc[:100])
    return fits


REMEDY = "give the workers more memory, or set `temporary-directory`"


def test_a_disk_is_full(started: Processes) -> None:
    assert full_disk(started, [2**18, 0, 2**16, 2**21]) == [False, False, False, True]


@pytest.mark.long
def test_a_disk_is_full_at_any_moment(started: Processes) -> None:
    fits = full_disk(started, range(0, 2**20, 2**15))
    assert fits == sorted(fits)
    assert len({*fits}) == 2


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    share = BlockShare([], np.array([0, 1]), [[np.zeros(1)]])
    with pytest.raises(SpillError) as error:
        SpillFile(str(tmp_path / "gone")).put(share)
    text = f"^cannot write \\(No such file or directory\\) in {tmp_path}/gone on .*{REMEDY}"
    assert re.search(text, str(pickle.loads(pickle.dumps(error.value))))


def test_a_scheduler_without_the_package(started: Processes) -> None:
    _, expected = frame(0)
    started.scheduler(package=False)
    started.worker("a")
    with Client(scheduler_file=str(started.file)) as client:
        client.wait_for_workers(1, TIMEOUT)
        with pytest.raises(RuntimeError, match=r"^the scheduler cannot import chash_partition.*install"):
            placed(plain(expected))


NOT_THERE = r"^worker bad \(tcp.*cannot import chash_partition.*install"


def test_workers_without_the_package(started: Processes) -> None:
    _, expected = frame(0)
    started.scheduler()
    started.worker("a")
    with Client(scheduler_file=str(started.file)) as client:
        client.wait_for_workers(1, TIMEOUT)
        result = placed(plain(expected))
        started.worker("bad", package=False)
        client.wait_for_workers(2, TIMEOUT)
        for act in (result.chash.persist, lambda: placed(plain(expected))):
            with pytest.raises(RuntimeError, match=NOT_THERE):
                act()
        # It cannot read what the scheduler sends it, and leaves.
        assert_right(client, result, expected)
        assert workers(client).keys() == {"a"}
        assert_no_trace(client)


def test_a_worker_that_does_not_answer_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_asked", set())
    monkeypatch.setattr(live, "ANSWER_TIMEOUT", 0.1)
    lazy, expected = frame(0)
    pid = max(processes(client).values())
    os.kill(pid, signal.SIGSTOP)
    try:
        result = placed(lazy)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_right(client, result, expected)


def used_as_ever(expected: pd.DataFrame) -> dd.DataFrame:
    return plain(expected).pipe(chash_repartition, on="k")


def test_without_a_client() -> None:
    _, expected = frame(0)
    assert_unchanged(used_as_ever(expected).compute(), expected)


def test_a_client_in_this_process() -> None:
    _, expected = frame(0)
    with Client(processes=False, n_workers=2, dashboard_address=":0") as client:
        assert_unchanged(used_as_ever(expected).compute(), expected)
        assert_no_trace(client)


@pytest.mark.parametrize("processes", [True, False])
def test_an_asynchronous_client(processes: bool) -> None:
    _, expected = frame(0)

    async def use() -> None:
        async with (
            LocalCluster(
                n_workers=2, processes=processes, dashboard_address=":0", asynchronous=True
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.wait_for_workers(2)
            result = used_as_ever(expected)
            assert result.npartitions == 32
            assert_unchanged(await client.compute(result), expected)
            workers = {*(await client.scheduler.identity(n_workers=-1))["workers"]}
            placed = client.persist(result)
            await wait(placed)
            held = await client.who_has(placed)
            assert {worker for holders in held.values() for worker in holders} == workers
            joined = result.merge(used_as_ever(expected), on=["k", "row"])
            assert len(await client.compute(joined)) == len(expected)

    asyncio.run(use())
