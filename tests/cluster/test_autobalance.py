"""A layout that follows the workers: they join, leave, retire and die, and all is where it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import dask.config
import pytest
from clusters import (
    FOUR,
    MORTALS,
    SETTINGS,
    assert_on_owners,
    assert_right,
    counted,
    holders,
    keys_of,
    kill,
    local_cluster,
    placed,
    rows,
    until,
    workers,
)
from distributed import Client, wait


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    with dask.config.set({"chash-partition.autobalance.settle": "200ms"}):
        yield


def settled(follows, *names: str, timeout: float = 60) -> None:
    """Wait until the layout has come to rest on these workers."""

    def there() -> bool:
        status = follows.status()
        return status.state == "settled" and (not names or status.workers == names)

    until(there, timeout)


def left_behind(client: Client) -> list[object]:
    """What may differ on the scheduler by something that was begun and has ended."""

    def look(dask_scheduler):
        manager = dask_scheduler.extensions["amm"]
        return [
            sorted((type(policy).__name__, id(policy)) for policy in manager.policies),
            manager.running,
            sorted(dask_scheduler.plugins),
            sorted(dask_scheduler.periodic_callbacks),
            [repr(task) for task in asyncio.all_tasks() if "chash" in repr(task)],
            {
                key: (sorted(ts.worker_restrictions or ()), ts.loose_restrictions)
                for key, ts in dask_scheduler.tasks.items()
            },
        ]

    return client.run_on_scheduler(look)


def transfers_between(transfers, *frames) -> dict[object, int]:
    return {key: transfers[key] for key in keys_of(*frames) if transfers[key]}


def moved(before, after) -> list[int]:
    return [p for p, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


@contextmanager
def small_cluster(n: int, **settings: object) -> Iterator[tuple[object, Client]]:
    with dask.config.set({**SETTINGS, **settings}), local_cluster(n) as cluster, Client(cluster) as client:
        yield cluster, client


def test_partitions_follow_workers_that_come_retire_and_are_scaled_down():
    pdf, others = rows(), rows(500)
    with small_cluster(3) as (cluster, client):
        df = placed(pdf, nodes=None, npartitions=24).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        with df.chash.autobalance() as follows:
            settled(follows, "0", "1", "2")
            assert df.chash.layout.version == 0

            before = holders(client, df)
            with counted(client) as transfers:
                cluster.scale(4)
                settled(follows, *FOUR)
            which = moved(before, holders(client, df))
            assert len(which) == 6
            frames = [keys_of(frame) for frame in (df, mate)]
            assert transfers_between(transfers, df, mate) == {keys[p]: 1 for keys in frames for p in which}
            for frame in (df, mate):
                assert frame.chash.layout.counts() == dict.fromkeys(FOUR, 6)
                assert_on_owners(client, frame)

            # Persisted while it follows: placed by the new layout.
            late = df.assign(z=1).chash.persist()
            assert_on_owners(client, late)

            before = holders(client, df)
            addresses = workers(client)
            with counted(client) as transfers:
                retired = client.retire_workers(workers=[addresses["1"], addresses["2"]])
                settled(follows, "0", "3")
            assert len(retired) == 2
            which = moved(before, holders(client, df))
            frames = [keys_of(frame) for frame in (df, mate, late)]
            assert len(which) == 12
            assert transfers_between(transfers, df, mate, late) == {
                keys[p]: 1 for keys in frames for p in which
            }
            for frame, its_rows in ((df, pdf), (mate, others), (late, pdf.assign(z=1))):
                assert_on_owners(client, frame)
                assert_right(frame, its_rows)
        assert follows.status().state == "ended"


def test_a_worker_with_20_partitions_retires_with_20_transfers_each_to_its_owner():
    pdf = rows(400)
    with small_cluster(5) as (_, client):
        df = placed(pdf, nodes=[*FOUR, "4"], npartitions=100).chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            settled(follows)
            leaving = df.chash.layout.partitions_of("2").tolist()
            assert len(leaving) == 20
            with counted(client) as transfers:
                client.retire_workers(workers=[workers(client)["2"]])
                settled(follows, "0", "1", "3", "4")
            assert transfers_between(transfers, df) == {keys_of(df)[p]: 1 for p in leaving}
            assert_on_owners(client, df)
        # The same by `retire`, which gives the plan.
        df = placed(pdf, nodes=["0", "1", "3", "4"], npartitions=40).chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            settled(follows)
            before = df.chash.layout
            with counted(client) as transfers:
                plan = df.chash.retire("0", progress=False)
            assert (plan.before, plan.after) == (before, df.chash.layout)
            assert len(plan.moves) == plan.lower_bound == 10
            assert transfers_between(transfers, df) == {keys_of(df)[move.partition]: 1 for move in plan.moves}
            assert_on_owners(client, df)
            assert workers(client).keys() == {"1", "3", "4"}
            assert_right(df, pdf)


def test_the_memory_manager_runs_meanwhile_where_config_stops_it():
    with small_cluster(3, **{"distributed.scheduler.active-memory-manager.start": False}) as (_, client):
        df = placed(rows(400), nodes=FOUR[:3], npartitions=12).chash.persist()
        wait(df)
        around = left_behind(client)
        assert around[1] is False
        with df.chash.autobalance() as follows:
            settled(follows)
            assert client.amm.running()
            client.retire_workers(workers=[workers(client)["1"]])
            settled(follows, "0", "2")
            assert_on_owners(client, df)
        assert left_behind(client)[:5] == around[:5]


def test_stopping_leaves_nothing_behind(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    around = left_behind(client)
    follows = df.chash.autobalance(replicas=2)
    settled(follows)
    assert left_behind(client) != around
    follows.stop()
    assert left_behind(client) == around
    assert follows.status().state == "ended"
    follows.stop()
    # A second copy is no longer protected.
    until(lambda: all(len(held) == 1 for held in holders(client, df)))
    with pytest.raises(RuntimeError, match="it has ended"):
        follows.resume()


def test_pause_and_resume(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    follows = df.chash.autobalance(dict.fromkeys(FOUR, 1) | {"4": 2})
    settled(follows)
    assert df.chash.layout.counts()["4"] in (21, 22)
    follows.pause()
    until(lambda: follows.status().state == "paused")
    assert df.chash.autobalance()._layout_id == follows._layout_id
    follows.resume()
    settled(follows)
    follows.stop()
    assert_on_owners(client, df)


def test_it_ends_with_the_last_frame(client):
    lazy = placed(rows(400))
    df = lazy.chash.persist()
    wait(df)
    follows = df.chash.autobalance()
    settled(follows)
    del df
    until(lambda: follows.status().state == "ended")
    events = [event for _, event in client.get_events("chash")]
    assert events[-1]["action"] == "autobalance-end"
    assert events[-1]["reason"] == "no frame of the layout is left"


def test_weights_from_the_workers(client):
    df = placed(rows(400), npartitions=10).chash.persist()
    wait(df)
    with pytest.raises(ValueError, match="have no memory limit"):
        df.chash.autobalance("memory")
    for wrong in ("disk", {"0": -1}, 3):
        with pytest.raises(ValueError, match="weight"):
            df.chash.autobalance(wrong)
    with pytest.raises(ValueError, match="replicas"):
        df.chash.autobalance(replicas=3)
    with df.chash.autobalance("threads") as follows:
        settled(follows)
        assert df.chash.layout.counts() == dict.fromkeys([*FOUR, "4"], 2)


def test_a_crash_moves_to_the_new_owners_and_a_worker_that_returns_gets_its_own_back(mortal):
    pdf = rows()
    df = placed(pdf, npartitions=32).chash.persist()
    wait(df)
    with df.chash.autobalance() as follows:
        settled(follows, *FOUR)
        own = set(df.chash.layout.partitions_of("1").tolist())
        kill(mortal, "1")
        settled(follows, *FOUR)  # its nanny has started it again
        assert len(workers(mortal)) == MORTALS
        assert_on_owners(mortal, df)
        assert_right(df, pdf)
        assert len(own & set(df.chash.layout.partitions_of("1").tolist())) >= 5
        assert set(df.chash.layout.counts().values()) == {8}


def test_one_crash_recomputes_nothing_with_a_second_copy(mortal):
    pdf = rows()
    df = placed(pdf, npartitions=32).chash.persist()
    wait(df)
    with df.chash.autobalance(replicas=2) as follows:
        settled(follows, *FOUR)
        assert all(len(held) == 2 for held in holders(mortal, df))

        def computed(dask_scheduler):
            return dask_scheduler.transition_counter, [
                t.key for t in dask_scheduler.transition_log if t.finish == "processing"
            ]

        before = len(mortal.run_on_scheduler(computed)[1])
        kill(mortal, "1")
        until(lambda: len(workers(mortal)) == MORTALS)
        settled(follows, *FOUR)
        assert len(mortal.run_on_scheduler(computed)[1]) == before
        held = holders(mortal, df)
        layout = df.chash.layout
        for p, names in enumerate(held):
            point = layout.point(p)
            owner = layout.owner_of(p)
            second = next(n for n in layout.ring.preference_at(point) if n != owner)
            assert names == sorted([owner, second])
        assert_right(df, pdf)
