"""Clusters whose workers come, go and die."""

from __future__ import annotations

from collections.abc import Iterator

import dask.config
import pytest
from clusters import MORTALS, SETTINGS, local_cluster, until, workers
from distributed import Client, LocalCluster


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """For the clusters that a test starts, too."""
    with dask.config.set(SETTINGS):
        yield


def started(n: int) -> Iterator[LocalCluster]:
    with dask.config.set(SETTINGS):
        cluster = local_cluster(n)
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def five() -> Iterator[LocalCluster]:
    """Five worker processes, for layouts on some of them: scaling that starts no process."""
    yield from started(5)


@pytest.fixture
def client(five: LocalCluster) -> Iterator[Client]:
    """The active client of one test, on `five`; what it kept on the cluster goes with it."""
    with Client(five) as client:
        client.wait_for_workers(5)
        yield client


@pytest.fixture(scope="session")
def mortal_cluster() -> Iterator[LocalCluster]:
    """Workers that may be killed: their nannies start them again."""
    yield from started(MORTALS)


@pytest.fixture
def mortal(mortal_cluster: LocalCluster) -> Iterator[Client]:
    """The active client on `mortal_cluster`, with all workers there."""
    with Client(mortal_cluster) as client:
        until(lambda: len(workers(client)) == MORTALS)
        yield client
