"""Where frames are computed."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import pytest


@pytest.fixture(params=["local-tasks", "local-disk", "cluster-tasks", "cluster-p2p"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine= to place with, each way that rows can travel in turn."""
    where, method = request.param.split("-")
    if where == "cluster":
        request.getfixturevalue("client")
        yield method
    else:
        with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": method}):
            yield "auto" if method == "disk" else method
