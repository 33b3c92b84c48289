"""A cluster that grows and shrinks under a stream of group-bys and joins, by hand and by adaptive scaling."""

from __future__ import annotations

import time

import dask.config
import pytest
from clusters import (
    Arrivals,
    assert_on_owners,
    assert_right,
    counted,
    keys_of,
    placed,
    rows,
    settled,
    stream,
    sums,
    until,
)
from distributed import Client, wait

from chash_partition import plan_rebalance


def queries(df, mate, pdf, others):
    """A group-by and a join, and what pandas makes of them."""
    return {
        "groups": (lambda: sums(df).reset_index(), sums(pdf).reset_index()),
        "joins": (lambda: df.merge(mate, on="k"), pdf.merge(others, on="k")),
    }


@pytest.mark.parametrize(
    ("npartitions", "start", "steps"),
    [
        pytest.param(20, 2, (4, 2, 3), marks=pytest.mark.thorough),
        pytest.param(64, 4, (8, 3, 6), marks=pytest.mark.long),
    ],
)
def test_scaling_under_a_stream_of_group_bys_and_joins(new_cluster, npartitions, start, steps):
    pdf, others = rows(), rows(500)[["k"]].drop_duplicates()
    cluster = new_cluster(start)
    with Client(cluster) as client:
        df = placed(pdf, nodes=None, npartitions=npartitions).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        size = start
        with df.chash.autobalance() as follows, stream(**queries(df, mate, pdf, others)) as made:
            for n in steps:
                before, status = df.chash.layout, follows.status()
                with counted(client) as transfers:
                    if n > size:
                        # Started together, workers may come seconds after one another, and each is a change.
                        follows.pause()
                        cluster.scale(n)
                        client.wait_for_workers(n)
                        follows.resume()
                    else:
                        leaving = sorted(map(int, before.nodes))[: size - n]
                        df.chash.retire(leaving, progress=False)
                        cluster.sync(cluster.scale_down, leaving)
                    settled(follows, n=n)
                size = n
                for frame in (df, mate):
                    assert_on_owners(client, frame)
                after, now = df.chash.layout, follows.status()
                changed = sum(before.owner_of(p) != after.owner_of(p) for p in range(before.npartitions))
                bound = plan_rebalance(before, after.nodes).lower_bound
                # A task of the stream may have brought a copy there already.
                assert now.moves - status.moves <= changed == bound
                came = sum(transfers[key] for key in keys_of(df, mate))
                print(f"{len(before.nodes)} -> {n}: {changed} moves, {came} transfers of 2 frames")
                assert 2 * changed <= came <= 1.02 * 2 * changed
            until(lambda: made["joins"] >= 3)
        assert_right(df, pdf)


def test_adaptive_scaling_under_a_stream_of_group_bys_and_joins(new_cluster):
    def work(i: int) -> int:
        time.sleep(0.5)  # work itself: how long it takes is what adaptive scaling goes by
        return i

    pdf, others = rows(), rows(500)[["k"]].drop_duplicates()
    settings = {
        "chash-partition.autobalance.settle": "300ms",
        "distributed.adaptive.target-duration": "2s",
    }
    # Of workers without a memory limit adaptive scaling wants ever more.
    cluster = new_cluster(2, "4GiB")
    with dask.config.set(settings), Client(cluster) as client:
        # So many that one transfer too many is less than 2 %.
        df = placed(pdf, nodes=None, npartitions=64).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        arrivals = Arrivals(client)
        with df.chash.autobalance() as follows:
            with stream(**queries(df, mate, pdf, others)) as made:
                cluster.adapt(minimum=2, maximum=4, interval="200ms", wait_count=5)
                # More than there is time for, so that no worker goes before it has partitions.
                futures = client.map(work, range(1000), pure=False, priority=-1)
                until(lambda: len(follows.status().workers) == 4 and follows.status().moves > 0)
                until(lambda: made["joins"] > 0)
                arrivals.look()
                client.cancel(futures)
            settled(follows, n=2)
            for frame in (df, mate):
                assert_on_owners(client, frame)
            came = arrivals.look()
            assert sum(came[key] for key in keys_of(df, mate)) <= 1.02 * 2 * follows.status().moves
            # Nothing was computed again: what left, was handed over.
            assert "lost" not in [event["action"] for _, event in client.get_events("chash")]
        assert_right(df, pdf)
