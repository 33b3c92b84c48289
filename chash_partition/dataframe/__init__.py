"""Dask DataFrames whose rows lie in partitions by consistent hash of a key."""

from chash_partition.dataframe.accessor import ChashAccessor
from chash_partition.dataframe.explain import explain
from chash_partition.dataframe.repartition import chash_repartition

__all__ = ["ChashAccessor", "chash_repartition", "explain"]
