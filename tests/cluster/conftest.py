"""Clusters whose workers come, go and die."""

from __future__ import annotations

from collections.abc import Iterator

import dask.config
import pytest
from clusters import MORTALS, SETTINGS, TIMEOUT, local_cluster, shared, until, workers
from distributed import Client, LocalCluster

from chash_partition.cluster import autobalance


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """For the clusters that a test starts, too."""
    with dask.config.set(SETTINGS):
        yield


@pytest.fixture
def five(settings: None) -> LocalCluster:
    """Five worker processes, for layouts on some of them: scaling that starts no process."""
    return shared("five", lambda: local_cluster(5))


@pytest.fixture
def client(five: LocalCluster) -> Iterator[Client]:
    """The active client of one test, on `five`; what it kept on the cluster goes with it."""
    with Client(five) as client:
        client.wait_for_workers(5)
        yield client


@pytest.fixture
def mortal_cluster(settings: None) -> LocalCluster:
    """Workers that may be killed: their nannies start them again."""
    return shared("mortal_cluster", lambda: local_cluster(MORTALS))


@pytest.fixture
def mortal(mortal_cluster: LocalCluster) -> Iterator[Client]:
    """The active client on `mortal_cluster`, with all workers there."""
    with Client(mortal_cluster) as client:
        until(lambda: len(workers(client)) == MORTALS)
        yield client


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The workers settle soon, and a plan counts as quick though the machine is slow."""
    monkeypatch.setattr(autobalance, "BLOCKING", TIMEOUT)
    with dask.config.set({"chash-partition.autobalance.settle": "200ms"}):
        yield
