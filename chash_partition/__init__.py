"""Consistent-hash partitioning for Dask DataFrames.

Rows are given to partitions by a hash of their key, and partitions to nodes by consistent
hashing, so that a change of nodes moves the fewest possible partitions.

    rows -> key hash -> partition -> node;    layout -> plan -> moves
"""

from pathlib import Path

import dask.config
import yaml

with (Path(__file__).parent / "chash-partition.yaml").open() as _file:
    dask.config.update_defaults(yaml.safe_load(_file))

from chash_partition.dataframe import chash_repartition, explain
from chash_partition.hashing import hash_keys
from chash_partition.layout import Layout
from chash_partition.parquet import ShardedDataset, read_parquet
from chash_partition.planner import Move, RebalancePlan, plan_rebalance
from chash_partition.ring import HashRing
from chash_partition.simulation import simulate

__all__ = [
    "HashRing",
    "Layout",
    "Move",
    "RebalancePlan",
    "ShardedDataset",
    "chash_repartition",
    "explain",
    "hash_keys",
    "plan_rebalance",
    "read_parquet",
    "simulate",
]
__version__ = "0.1.0"
