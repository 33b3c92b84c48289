"""Where datasets are."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

sys.path.append(str(Path(__file__).parents[1] / "dataframe"))


@pytest.fixture
def local() -> Iterator[None]:
    """No cluster: this thread alone, rows travelling as tasks."""
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        yield


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, Any]]:
    """storage_options of an S3 server with a bucket named bucket."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "key",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"},
    }
    import boto3

    boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    ).create_bucket(Bucket="bucket")
    yield options
    server.stop()


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """path and storage_options of a dataset to be, in each kind of storage in turn."""
    name = uuid.uuid4().hex
    if request.param == "s3":
        return {"path": f"s3://bucket/{name}", "storage_options": request.getfixturevalue("s3")}
    return {"path": tmp_path / name if request.param == "local" else f"memory://{name}"}
