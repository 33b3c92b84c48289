"""What all tests share: a real cluster, and a client for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster
from hypothesis import settings

WORKERS = 4

settings.register_profile("chash", deadline=None)
settings.load_profile("chash")


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Four worker processes, for every test that does not change the workers."""
    with LocalCluster(
        n_workers=WORKERS,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        memory_limit=0,
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """The active client of one test; what it kept on the cluster goes with it."""
    with Client(cluster) as client:
        client.wait_for_workers(WORKERS)
        yield client
