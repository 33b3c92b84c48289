"""What happens to a shuffle when workers die or join, connections break, or a disk is full."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import dask.config
import pytest
from distributed import Client, LocalCluster, wait
from faults import (
    ON_DISK,
    PHASES,
    SETTINGS,
    TIMEOUT,
    assert_no_trace,
    assert_right,
    at,
    frame,
    nth_of,
    placed,
    processes,
    until,
)

WORKERS = 3


@pytest.fixture(scope="module", params=["memory", "disk"])
def mortals(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[LocalCluster]:
    """Workers that are started again when killed, with room for the shares in memory, or none."""
    config = SETTINGS | (ON_DISK if request.param == "disk" else {})
    with (
        dask.config.set(config),
        LocalCluster(
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


def kill_a_worker(cluster: LocalCluster, client: Client, phase: str, seed: int) -> None:
    rng = random.Random(f"{phase} {seed}")
    until(lambda: len(client.scheduler_info()["workers"]) == WORKERS)
    lazy, expected = frame(seed)
    victim = rng.choice(sorted(processes(client).values()))

    def kill() -> None:
        os.kill(victim, signal.SIGKILL)

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


@pytest.mark.parametrize("phase", [*PHASES, "persisted"])
def test_a_worker_dies(mortals: LocalCluster, client: Client, phase: str) -> None:
    kill_a_worker(mortals, client, phase, 0)


@pytest.mark.long
@pytest.mark.parametrize("phase", [*PHASES, "persisted"])
def test_workers_die_again_and_again(mortals: LocalCluster, client: Client, phase: str) -> None:
    for seed in range(1, 21):
        kill_a_worker(mortals, client, phase, seed)
