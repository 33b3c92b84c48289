"""What a process of the tests has done before it is forked, and what it does then."""

import os

import cloudpickle
import dask.config
import distributed.cli.dask_scheduler
import distributed.cli.dask_worker
import distributed.nanny  # noqa: F401
import pyarrow.parquet  # noqa: F401

import chash_partition.cluster.plugin  # noqa: F401
from chash_partition import hashing
from chash_partition.dataframe import scatter

# Each process would take half a second to load these when it first hashes.
hashing._kernels()
scatter.kernels()


def call(function: bytes, config: dict[str, str]) -> None:
    """Do what was pickled, in silence, with Dask's configuration of the environment."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.environ.update(config)
    dask.config.refresh()
    cloudpickle.loads(function)()
