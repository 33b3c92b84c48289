"""A cluster that grows and shrinks under a stream of group-bys and joins, by hand and by adaptive scaling."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import dask.config
import pytest
from clusters import (
    SETTINGS,
    assert_on_owners,
    assert_right,
    assert_same_rows,
    keys_of,
    local_cluster,
    placed,
    rows,
    settled,
    sums,
    until,
)
from distributed import Client, wait

from chash_partition import plan_rebalance


@contextmanager
def stream(df, mate, pdf, others) -> Iterator[Counter[str]]:
    """Group-bys and joins, one after another, each compared with pandas; the number of each so far."""
    expected = {"group-by": sums(pdf).reset_index(), "join": pdf.merge(others, on="k")}
    made: Counter[str] = Counter()
    ended, failures = threading.Event(), []

    def go() -> None:
        try:
            while not ended.is_set():
                assert_same_rows(sums(df).compute().reset_index(), expected["group-by"])
                made["group-by"] += 1
                assert_same_rows(df.merge(mate, on="k").compute(), expected["join"])
                made["join"] += 1
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join(120)
    assert not failures, failures
    assert not thread.is_alive()


class Arrivals:
    """How often each key has come to a worker, those that have left meanwhile included."""

    def __init__(self, client: Client):
        self.client, self.seen = client, {}

    def look(self) -> Counter[object]:
        def log(dask_worker):
            return [key for entry in dask_worker.transfer_incoming_log for key in entry["keys"]]

        self.seen.update({a: Counter(keys) for a, keys in self.client.run(log).items()})
        return sum(self.seen.values(), Counter())


@pytest.mark.parametrize(
    "sizes",
    [(2, 4, 2, 3), pytest.param((4, 8, 3, 6), marks=pytest.mark.long)],
    ids=lambda s: "-".join(map(str, s)),
)
def test_scaling_under_a_stream_of_group_bys_and_joins(sizes):
    pdf, others = rows(), rows(500)[["k"]].drop_duplicates()
    start, *steps = sizes
    with dask.config.set(SETTINGS), local_cluster(start) as cluster, Client(cluster) as client:
        df = placed(pdf, nodes=None).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        size, log = start, Arrivals(client)
        with df.chash.autobalance() as follows, stream(df, mate, pdf, others) as made:
            for n in steps:
                before, seen, status = df.chash.layout, log.look(), follows.status()
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
                came = log.look() - seen
                transfers = sum(came[key] for key in keys_of(df, mate))
                print(f"{len(before.nodes)} -> {n}: {changed} moves, {transfers} transfers of 2 frames")
                assert 2 * changed <= transfers <= 1.02 * 2 * changed
            until(lambda: made["join"] >= 3)
        assert_right(df, pdf)


def test_adaptive_scaling_under_a_stream_of_group_bys_and_joins():
    def work(i: int) -> int:
        time.sleep(0.5)  # work itself: how long it takes is what adaptive scaling goes by
        return i

    pdf, others = rows(), rows(500)[["k"]].drop_duplicates()
    settings = {
        **SETTINGS,
        "chash-partition.autobalance.settle": "300ms",
        "distributed.adaptive.target-duration": "2s",
    }
    # Of workers without a memory limit adaptive scaling wants ever more.
    with dask.config.set(settings), local_cluster(2, "4GiB") as cluster, Client(cluster) as client:
        df = placed(pdf, nodes=None).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        log = Arrivals(client)
        with df.chash.autobalance() as follows:
            with stream(df, mate, pdf, others):
                cluster.adapt(minimum=2, maximum=4, interval="200ms", wait_count=5)
                futures = client.map(work, range(60), pure=False)
                until(lambda: len(follows.status().workers) == 4, 60)
                assert client.gather(futures) == list(range(60))
                del futures
                until(lambda: follows.status().moves > 0)
                log.look()
            settled(follows, n=2)
            for frame in (df, mate):
                assert_on_owners(client, frame)
            came = log.look()
            assert sum(came[key] for key in keys_of(df, mate)) <= 1.02 * 2 * follows.status().moves
            # Nothing was computed again: what left, was handed over.
            assert "lost" not in [event["action"] for _, event in client.get_events("chash")]
        assert_right(df, pdf)
