"""Clusters whose workers come, go and die."""

from __future__ import annotations

from collections.abc import Iterator

import dask.config
import pytest
from clusters import MORTALS, SETTINGS, local_cluster, until, workers
from distributed import Client, LocalCluster


@pytest.fixture(scope="session")
def five() -> Iterator[LocalCluster]:
    """Five worker processes, for layouts on some of them: scaling that starts no process."""
    with dask.config.set(SETTINGS), local_cluster(5) as cluster:
        yield cluster


@pytest.fixture
def client(five: LocalCluster) -> Iterator[Client]:
    """The active client of one test, on `five`; what it kept on the cluster goes with it."""
    with Client(five) as client:
        client.wait_for_workers(5)
        yield client


@pytest.fixture(scope="session")
def mortal_cluster() -> Iterator[LocalCluster]:
    with dask.config.set(SETTINGS), local_cluster(MORTALS) as cluster:
        yield cluster


@pytest.fixture
def mortal(mortal_cluster: LocalCluster) -> Iterator[Client]:
    """The active client on a cluster whose workers may be killed: their nannies start them again."""
    with Client(mortal_cluster) as client:
        until(lambda: len(workers(client)) == MORTALS)
        yield client
