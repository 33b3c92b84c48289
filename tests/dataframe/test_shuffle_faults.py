"""What happens to a shuffle when workers die or join, connections break, or a disk is full."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count, product
from pathlib import Path
from typing import Any

import dask.config
import pytest
from clusters import local_cluster, shared, until, worker_process, workers
from distributed import Client, LocalCluster, wait
from distributed.shuffle._exceptions import P2POutOfDiskError
from faults import (
    ON_DISK,
    SETTINGS,
    TIMEOUT,
    as_environment,
    assert_no_trace,
    assert_right,
    at,
    frame,
    held,
    nth_of,
    pids,
    placed,
    plain,
    start_cutting,
    stop_cutting,
)
from frames import assert_same_rows, assert_unchanged
from tiers import once, thorough

from chash_partition import ShardedDataset, read_parquet
from chash_partition.cluster import live

WORKERS = 3


@contextmanager
def mortal_workers(room: str, directory: Path) -> Iterator[LocalCluster]:
    config = SETTINGS | (ON_DISK if room == "disk" else {})
    options: dict[str, Any] = {"memory_limit": "4GiB", "local_directory": str(directory)}
    with dask.config.set(config), local_cluster(WORKERS, name=room, **options) as cluster:
        yield cluster


@pytest.fixture(params=["memory", *thorough("disk")])
def mortals(request: pytest.FixtureRequest, tmp_path_factory: Any) -> LocalCluster:
    """Workers that are started again when killed, with room for the shares in memory, or none."""
    room: str = request.param
    return shared(f"mortals {room}", lambda: mortal_workers(room, tmp_path_factory.mktemp("local")))


@pytest.fixture
def client(mortals: LocalCluster) -> Iterator[Client]:
    with Client(mortals) as client:
        client.wait_for_workers(WORKERS, TIMEOUT)
        until(lambda: len(workers(client)) == WORKERS)
        yield client


def workers_die(cluster: LocalCluster, client: Client, phase: str, seed: int) -> None:
    """One, or in every fifth run two."""
    rng = random.Random(f"{phase} {seed}")
    lazy, expected = frame(seed)
    victims = rng.sample(sorted(pids(client).values()), 2 if seed % 5 == 4 else 1)

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
        cluster.scale(WORKERS)


STORAGE = ["memory", "disk"]
PHASES = ["transfer", "barrier", "unpack", "persisted"]


@pytest.mark.parametrize("seeds", [[0], *thorough([4]), pytest.param(range(1, 21), marks=pytest.mark.long)])
@once(
    indirect=["mortals"],
    mortals=STORAGE,
    phase=PHASES,
    event=[workers_die, a_worker_joins],
)
def test_rows_are_right_if_workers_come_or_go_meanwhile(
    mortals: LocalCluster, client: Client, phase: str, event: Callable[..., None], seeds: list[int]
) -> None:
    for seed in seeds:
        client.wait_for_workers(WORKERS, TIMEOUT)
        until(lambda: len(workers(client)) == WORKERS)
        event(mortals, client, phase, seed)


@pytest.mark.parametrize("phase", [*thorough("transfer", "barrier"), "write"])
def test_a_worker_dies_while_partitions_are_written(
    mortals: LocalCluster, client: Client, phase: str, tmp_path: Path
) -> None:
    rng = random.Random(phase)
    lazy, expected = (rows.drop(columns="thing") for rows in frame(0))
    victim = rng.choice(sorted(pids(client).values()))
    with at(mortals, phase, nth_of(phase, rng), lambda: os.kill(victim, signal.SIGKILL)) as trigger:
        placed(lazy).chash.to_parquet(tmp_path / "x")
        assert trigger.happened.is_set()
    dataset = ShardedDataset(tmp_path / "x")
    dataset.vacuum(timedelta(0))
    assert dataset.verify() == []
    assert_same_rows(read_parquet(tmp_path / "x").compute(), expected)
    assert_no_trace(client)


def cut_connections(client: Client, seed: int) -> int:
    lazy, expected = frame(seed, blocks=20)
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


@pytest.mark.parametrize("at_least", [1, *thorough(10), pytest.param(100, marks=pytest.mark.long)])
def test_rows_are_right_if_connections_break(client: Client, at_least: int) -> None:
    cuts, seeds = 0, count()
    while cuts < at_least:
        cuts += cut_connections(client, next(seeds))


def test_shuffles_run_side_by_side(client: Client) -> None:
    (lazy, expected), (other, others) = frame(0), frame(1)
    results = [placed(lazy), placed(lazy, "text", 17), placed(other), placed(lazy, npartitions=5)]
    results = [result.chash.persist() for result in results]
    for result, rows in zip(results, (expected, expected, others, expected), strict=True):
        assert_right(client, result, rows)
    del results, result
    assert_no_trace(client)


def test_a_placed_frame_is_placed_anew(client: Client) -> None:
    lazy, expected = frame(0)
    result = placed(placed(placed(lazy), "k", 7), "text", 17).chash.persist()
    assert_right(client, result, expected)
    del result
    assert_no_trace(client)


def test_a_frame_whose_rows_were_let_go_of_is_placed_anew(client: Client) -> None:
    lazy, expected = frame(0)
    for _ in range(2):
        result = placed(lazy).chash.persist()
        assert_right(client, result, expected)
        del result
        assert_no_trace(client)


GIVEN_UP = [
    ("memory", "transfer", "cancel"),
    ("disk", "unpack", "release"),
    ("disk", "transfer", "close"),
]


@pytest.mark.parametrize(
    ("mortals", "phase", "how"),
    [
        pytest.param(*case, marks=() if case in GIVEN_UP else pytest.mark.thorough)
        for case in product(STORAGE, ["transfer", "unpack"], ["cancel", "release", "close"])
    ],
    indirect=["mortals"],
)
def test_what_is_given_up_half_way_leaves_nothing_behind(
    mortals: LocalCluster, client: Client, phase: str, how: str
) -> None:
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
    until(lambda: len(client.run_on_scheduler(closable)) == WORKERS)
    with held(mortals, client, "transfer", random.Random(0)) as reached:
        result = placed(lazy).chash.persist()
        reached()
        assert not client.run_on_scheduler(closable)
    assert_right(client, result, expected)
    del result
    assert_no_trace(client)
    until(lambda: len(client.run_on_scheduler(closable)) == WORKERS)


# What the page reads of each worker's heartbeat.
SHOWN = {"memory_limit", "total", "memory", "buckets", "avg_duration", "avg_size", "read", "written"}


@pytest.mark.parametrize("mortals", STORAGE, indirect=True)
def test_heartbeats_have_what_the_dashboard_shows(mortals: LocalCluster, client: Client) -> None:
    async def heartbeat(dask_worker: Any) -> None:
        await dask_worker.heartbeat()

    def beats(dask_scheduler: Any) -> dict[str, Any]:
        shuffles = dask_scheduler.plugins["shuffle"]
        active = [shuffles.heartbeats[shuffle] for shuffle in shuffles.active_shuffles]
        return {address: dict(beat) for beats in active for address, beat in beats.items()}

    lazy, expected = frame(0)
    found: dict[str, Any] = {}
    with held(mortals, client, "barrier", random.Random(0)) as reached:
        result = placed(lazy).chash.persist()
        going = reached()

        def all_have_received() -> bool:
            client.run(heartbeat, workers=going)  # does nothing while there is one under way
            found.update(client.run_on_scheduler(beats))
            return found.keys() >= set(going) and all(found[a]["disk"]["total"] for a in going)

        until(all_have_received)
    for beat in (found[address] for address in going):
        assert beat["comm"].keys() >= SHOWN
        assert beat["disk"].keys() >= SHOWN
        # Where the shares are, as this cluster is there for.
        assert (beat["disk"]["written"] > 0) == (mortals.name == "disk")
    assert_right(client, result, expected)


def test_a_worker_that_does_not_answer_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_asked", set())
    monkeypatch.setattr(live, "ANSWER_TIMEOUT", 0.1)
    lazy, expected = frame(0)
    pid = max(pids(client).values())
    os.kill(pid, signal.SIGSTOP)
    try:
        result = placed(lazy)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_right(client, result, expected)


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


REMEDY = "give the workers more memory, or set `temporary-directory`"


@pytest.mark.parametrize("lefts", [[2**14, 0, 2**21], *thorough(range(0, 2**20, 2**15))])
def test_with_a_full_disk_rows_are_right_or_there_is_one_clear_error(
    lefts: list[int], new_cluster: Callable[..., LocalCluster], processes: ExitStack, tmp_path: Path
) -> None:
    """Of two workers, one has a small disk of its own, with so many bytes left at a time."""
    _, expected = frame(0, rows=500)
    here = tmp_path / "small"
    here.mkdir()
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = f'mount -t tmpfs -o size=2m none {here} && exec "$@"'
    config = ON_DISK | {"distributed.worker.memory.max-spill": "1 B"}  # Dask itself writes nothing
    fits = {}
    with dask.config.set(config), Client(new_cluster(1, "4GiB", local_directory=tmp_path)) as client:
        small = worker_process(
            client,
            "small",
            *("--memory-limit", "4GiB", "--local-directory", str(here)),
            within=[*unshare, "sh", "-c", mount, "sh"],
            **as_environment(config),
        )
        processes.enter_context(small)
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
            fits[left] = not message
            assert fits[left] or re.search(f"^no space left in {here}/.*{REMEDY}", message)
            assert_no_trace(client)
            until(lambda before=before: disk_used(client, "small") == before)
        result = placed(plain(expected.iloc[:100])).chash.persist()
        assert_right(client, result, expected.iloc[:100])
    assert [fits[left] for left in sorted(fits)] == sorted(fits.values())  # from some size on
    assert len({*fits.values()}) == 2


# As if it were not installed.
WITHOUT_THE_PACKAGE = ("--preload", "import sys; sys.modules['chash_partition'] = None")


def test_workers_without_the_package_are_named_and_leave(
    new_cluster: Callable[..., LocalCluster], processes: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ANSWER_TIMEOUT", TIMEOUT)  # whoever does not answer would pass for good
    _, expected = frame(0)
    with Client(new_cluster(1)) as client:
        result = placed(plain(expected))
        processes.enter_context(worker_process(client, "bad", *WITHOUT_THE_PACKAGE))
        for act in (result.chash.persist, lambda: placed(plain(expected))):
            with pytest.raises(
                RuntimeError, match=r"^worker bad \(tcp.*cannot import chash_partition.*install"
            ):
                act()
        # It cannot read what the scheduler sends it, and leaves.
        assert_right(client, result, expected)
        until(lambda: workers(client).keys() == {"0"})
        assert_no_trace(client)
