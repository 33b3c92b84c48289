"""What each process must find alike: test_reproducible.py compares what is printed here with its own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from dask.base import tokenize

from chash_partition import Layout, hash_keys, plan_rebalance
from chash_partition.hashing import hash_key


def results() -> dict[str, Any]:
    """Values made from sets, whose order is another one in each process."""
    frame = pd.DataFrame({"a": ["x", "y", None], "b": pd.Categorical(["u", "u", "v"]), "c": [1.5, 2, np.nan]})
    layout = Layout.create(["a", "b"], 50, {"w2", "w0", "w1", "w11"}, seed=3)
    before = Layout.create("k", 500, {"w1", "w11", "W1", "w1#1"})
    nodes = {"w1", "W1", "ä", "w2"}
    sizes = [100 + p * p % 89 for p in range(500)]
    by_bytes = plan_rebalance(before, nodes, sizes=sizes, tolerance=0.05, max_moves=40)
    return {
        "hashes of rows": hash_keys(frame, seed=3).tolist(),
        "hashes of columns": [hash_keys(frame[name]).tolist() for name in frame],
        "hash of a key": hash_key(("a", 1)),
        "layout": json.loads(layout.to_json()),
        "token": tokenize(layout),
        "plan": json.loads(plan_rebalance(before, nodes).to_json()),
        "plan by bytes": json.loads(by_bytes.to_json()),
    }


if __name__ == "__main__":
    print(json.dumps(results()))
