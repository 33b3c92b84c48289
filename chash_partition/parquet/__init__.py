"""The shard layout on disk: a Parquet dataset whose shards are the partitions of a layout."""

from chash_partition.parquet.collection import read_parquet
from chash_partition.parquet.dataset import ShardedDataset

__all__ = ["ShardedDataset", "read_parquet"]
