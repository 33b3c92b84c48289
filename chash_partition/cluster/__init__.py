"""A live cluster: where the partitions are, and bringing them to their owners."""
