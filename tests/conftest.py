"""What all tests share: a real cluster, and a client for each test that asks for one.

`make test` runs pytest three times at once: on the tests of clusters, which have several processes of their
own, on the others of frames, and on the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dask.config
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context
from hypothesis import settings

WORKERS = 4

# An idle worker takes 5 % of a core for its profiler and ticks, and a run of the tests has up to a dozen of
# them. A new one takes 3 s to import what it needs: here they are forked from a process that has done so.
os.environ |= {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
}
dask.config.refresh()
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
get_mp_context().set_forkserver_preload(["forked"])

settings.register_profile("chash", deadline=None)
settings.load_profile("chash")


@pytest.hookimpl(tryfirst=True)  # pytest selects by marks in this hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    @cache
    def of_clusters(path: Path) -> bool:
        text = path.read_text()
        return path.name == "test_examples.py" or "Client(" in text or "from clusters import" in text

    for item in items:
        if "client" in getattr(item, "fixturenames", ()) or "cluster-" in item.name or of_clusters(item.path):
            item.add_marker(pytest.mark.clusters)


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
