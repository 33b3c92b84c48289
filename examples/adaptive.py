"""A placed frame follows a cluster that grows and shrinks by itself.

Orders are placed by user on two workers. Work arrives, and Dask's adaptive scaling starts two
more; it ends, and they are retired. Partitions follow, the fewest possible, and a group-by
gives the same result after every step.

Run it with `python examples/adaptive.py`.
"""

import logging
import os
import time

import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, futures_of, wait

from chash_partition import chash_repartition

MINUTES = 2


def orders(n: int = 200_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"user": rng.integers(0, 5_000, n), "amount": rng.integers(1, 100, n)})


def slow_sum(block: pd.DataFrame) -> int:
    time.sleep(1)
    return int(block.amount.sum())


def settled(follows, workers: int) -> None:
    """Wait until all partitions are in place on so many workers."""
    end = time.monotonic() + 60 * MINUTES
    while (status := follows.status()).state != "settled" or len(status.workers) != workers:
        if time.monotonic() > end:
            raise TimeoutError(f"not settled on {workers} workers in {MINUTES} minutes: {status}")
        time.sleep(0.1)


def show(df, follows, expected) -> None:
    counts = df.chash.placement().value_counts().sort_index()
    print(f"  on {len(counts)} workers: {counts.tolist()} partitions; {follows.status().moves} moved so far")
    found = df.groupby("user").amount.sum().compute().sort_index()
    pd.testing.assert_series_equal(found, expected, check_dtype=False)
    print("  amounts by user equal pandas'")


def main() -> None:
    # Dask logs each P2P shuffle as a warning, and a worker that closes as an error.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    pdf = orders()
    expected = pdf.groupby("user").amount.sum()
    local = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with local as cluster, Client(cluster) as client:
        df = dd.from_pandas(pdf, npartitions=8)
        df = df.pipe(chash_repartition, on="user", npartitions=32).chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            settled(follows, 2)
            show(df, follows, expected)

            print("Work arrives, and workers with it")
            with dask.config.set({"distributed.adaptive.target-duration": "2s"}):
                adaptive = cluster.adapt(minimum=2, maximum=4, interval="200ms", wait_count=5)
            work = client.map(slow_sum, futures_of(df))
            client.wait_for_workers(4, timeout=60 * MINUTES)
            assert sum(client.gather(work)) == pdf.amount.sum()
            del work

            print("It is done, and they are retired")
            settled(follows, 2)
            show(df, follows, expected)
            adaptive.stop()
        print(f"Stopped: {follows.status().state}")


if __name__ == "__main__":
    main()
