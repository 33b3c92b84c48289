"""What all tests share: where frames and datasets are, and which tests run in one process."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask.config
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context
from hypothesis import HealthCheck, settings

# Before they are imported, so that what they assert is explained when it fails.
pytest.register_assert_rewrite("clusters", "datasets", "faults", "frames", "layouts")

from clusters import end_shared, local_cluster, shared  # noqa: E402
from tiers import QUICK, thorough  # noqa: E402

WORKERS = 4
HERE = Path(__file__).parent

# An idle worker takes 5 % of a core for its profiler and ticks, and a run of the tests has up to a dozen of
# them. A new one takes 3 s to import what it needs: here they are forked from a process that has done so.
os.environ |= {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    # Processes that tests start import what the tests do.
    "PYTHONPATH": os.pathsep.join(
        [
            str(HERE),
            *(str(HERE / name) for name in ("cluster", "dataframe", "parquet")),
            os.environ.get("PYTHONPATH", ""),
        ]
    ).rstrip(os.pathsep),
}
dask.config.refresh()
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
get_mp_context().set_forkserver_preload(["forked"])

# The Makefile names the profile of each target.
for name, examples in {"quick": QUICK, "thorough": 200, "long": 3000}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
settings.load_profile("quick")

# Fixtures that start processes. Tests of one that outlives a test run in one process, one after another.
SHARED = ("mortals", "five", "mortal_cluster", "cluster", "s3")
CLUSTERS = (*SHARED[:-1], "new_cluster", "processes")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the package alone: reading the tests for some takes 2 s in each process."""
    return [found for found in (yield) if type(found) is pytest.Module]


@pytest.hookimpl(tryfirst=True)  # pytest selects by marks in this hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by the fixtures that they use; those of clusters, which wait a lot, begin first."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        # A parameter such as "s3" or "cluster-p2p" makes a fixture ask for another one.
        asked = {value.split("-")[0] for value in params.values() if isinstance(value, str)}
        used = {*getattr(item, "fixturenames", ()), *asked}
        # Each parameter of a shared fixture is a cluster of its own.
        shared = [f"{name} {params.get(name, '')}".strip() for name in SHARED if name in used]
        if shared:
            item.add_marker(pytest.mark.xdist_group(" ".join(shared)))
        if any(name in used for name in CLUSTERS):
            item.add_marker(pytest.mark.clusters)
    items.sort(key=lambda item: item.get_closest_marker("clusters") is None)


@pytest.hookimpl(trylast=True)  # the fixtures of the test have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or group_of(nextitem) != group_of(item):
        end_shared()


def group_of(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark else None


@pytest.fixture
def cluster() -> LocalCluster:
    """Four worker processes, for every test that does not change the workers."""
    return shared("cluster", lambda: local_cluster(WORKERS))


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """The active client of one test; what it kept on the cluster goes with it."""
    with Client(cluster) as client:
        client.wait_for_workers(WORKERS)
        yield client


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Starts clusters of the test's own, as `local_cluster` does; they end with it."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(local_cluster(*args, **kwargs))


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    """Other processes than clusters, entered by the test; they end with it."""
    with ExitStack() as processes:
        yield processes


@pytest.fixture
def local() -> Iterator[None]:
    """No cluster: this thread alone, rows travelling as tasks."""
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        yield


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url, region = f"http://{host}:{port}", "us-east-1"
    boto3.client(
        "s3", endpoint_url=url, region_name=region, aws_access_key_id="key", aws_secret_access_key="secret"
    ).create_bucket(Bucket="bucket")
    yield {"key": "key", "secret": "secret", "client_kwargs": {"endpoint_url": url, "region_name": region}}
    server.stop()


@pytest.fixture
def s3() -> dict[str, Any]:
    """storage_options of an S3 server with a bucket named bucket."""
    return shared("s3", s3_server)


@pytest.fixture(params=["local", "memory", *thorough("s3")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """path and storage_options of a dataset to be, in each kind of storage in turn."""
    name = uuid.uuid4().hex
    if request.param == "s3":
        return {"path": f"s3://bucket/{name}", "storage_options": request.getfixturevalue("s3")}
    return {"path": tmp_path / name if request.param == "local" else f"memory://{name}"}
