"""What a process of the tests' clusters has done before it is forked."""

import distributed.nanny  # noqa: F401
import pyarrow.parquet  # noqa: F401

import chash_partition.cluster.plugin  # noqa: F401
from chash_partition import hashing
from chash_partition.dataframe import scatter

# Each process would take half a second to load these when it first hashes.
hashing._kernels()
scatter.kernels()
