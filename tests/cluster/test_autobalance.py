"""A layout that follows the workers: they join, leave, retire and die, and all is where it should be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask.config
import dask.dataframe as dd
import jsonschema
import pandas as pd
import pytest
import yaml
from clusters import (
    FOUR,
    assert_on_owners,
    assert_right,
    being_moved,
    changed,
    computed_since,
    counted,
    forked_process,
    forked_worker,
    holders,
    keys_of,
    kill,
    management,
    now,
    partitions_in_use,
    placed,
    rows,
    settled,
    transfers_of,
    until,
    workers,
)
from distributed import Client, wait
from frames import assert_same_rows
from tiers import thorough

import chash_partition

pytestmark = pytest.mark.usefixtures("soon")


def test_partitions_follow_workers_that_come_retire_and_are_scaled_down(new_cluster):
    pdf, others = rows(), rows(500)
    cluster = new_cluster(3)
    with Client(cluster) as client:
        df = placed(pdf, nodes=None, npartitions=12).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        with df.chash.autobalance() as follows:
            settled(follows, "0", "1", "2")
            assert df.chash.layout.version == 0

            before = holders(client, df)
            with counted(client) as transfers:
                cluster.scale(4)
                settled(follows, *FOUR)
            which = changed(before, holders(client, df))
            assert len(which) == 3
            frames = [keys_of(frame) for frame in (df, mate)]
            assert transfers_of(transfers, df, mate) == {keys[p]: 1 for keys in frames for p in which}
            for frame in (df, mate):
                assert frame.chash.layout.counts() == dict.fromkeys(FOUR, 3)
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
            which = changed(before, holders(client, df))
            frames = [keys_of(frame) for frame in (df, mate, late)]
            assert len(which) == 6
            assert transfers_of(transfers, df, mate, late) == {keys[p]: 1 for keys in frames for p in which}
            for frame, its_rows in ((df, pdf), (mate, others), (late, pdf.assign(z=1))):
                assert_on_owners(client, frame)
                assert_right(frame, its_rows)
        assert follows.status().state == "ended"


def test_a_worker_with_20_partitions_retires_with_20_transfers_each_to_its_owner(new_cluster, capsys):
    pdf = rows(400)
    with Client(new_cluster(5)) as client:
        nodes = {"0": 1, "1": 1, "2": 4, "3": 1, "4": 1}
        df = placed(pdf, nodes=nodes, npartitions=40).chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            settled(follows)
            leaving = df.chash.layout.partitions_of("2").tolist()
            assert len(leaving) == 20
            with counted(client) as transfers:
                client.retire_workers(workers=[workers(client)["2"]])
                settled(follows, "0", "1", "3", "4")
            assert transfers_of(transfers, df) == {keys_of(df)[p]: 1 for p in leaving}
            assert_on_owners(client, df)
            # The same by `retire`, which gives the plan.
            before = df.chash.layout
            with counted(client) as transfers:
                plan = df.chash.retire("0")
            assert "moved 10 partitions (" in capsys.readouterr().err
            assert (plan.before, plan.after) == (before, df.chash.layout)
            assert len(plan.moves) == plan.lower_bound == 10
            assert transfers_of(transfers, df) == {keys_of(df)[move.partition]: 1 for move in plan.moves}
            assert_on_owners(client, df)
            assert workers(client).keys() == {"1", "3", "4"}
            assert_right(df, pdf)


def test_work_on_a_worker_that_retires_takes_its_partitions_where_they_will_be(new_cluster):
    async def hold(dask_scheduler, layout):
        await dask_scheduler.plugins["chash"].layouts[layout].lock.acquire()

    async def release(dask_scheduler, layout):
        dask_scheduler.plugins["chash"].layouts[layout].lock.release()

    pdf, others = rows(400), rows(200)[["k"]].drop_duplicates()
    with Client(new_cluster(4)) as client, ThreadPoolExecutor(1) as pool:
        df = placed(pdf, npartitions=20).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        wait([df, mate])
        with df.chash.autobalance() as follows:
            settled(follows)
            leaving, layout = df.chash.layout.partitions_of("2").tolist(), df.chash.layout.id
            client.run_on_scheduler(hold, layout=layout)
            with counted(client) as transfers:
                retiring = pool.submit(client.retire_workers, [workers(client)["2"]])
                until(lambda: "2" not in follows.status().workers)
                assert_same_rows(df.merge(mate, on="k").compute(), pdf.merge(others, on="k"))
                assert_right(df, pdf)
                client.run_on_scheduler(release, layout=layout)
                settled(follows, "0", "1", "3")
                retiring.result()
            keys = [keys_of(frame)[p] for frame in (df, mate) for p in leaving]
            assert transfers_of(transfers, df, mate) == dict.fromkeys(keys, 1)
            for frame in (df, mate):
                assert_on_owners(client, frame)
            restricted = client.run_on_scheduler(
                lambda dask_scheduler: len(
                    next(p for n, p in dask_scheduler.plugins.items() if "autobalance" in n)._restricted
                )
            )
            assert not restricted


def test_the_memory_manager_runs_meanwhile_where_config_stops_it(new_cluster):
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        cluster = new_cluster(3)
    with Client(cluster) as client:
        df = placed(rows(400), nodes=FOUR[:3], npartitions=12).chash.persist()
        wait(df)
        around = management(client)
        assert not client.amm.running()
        with df.chash.autobalance() as follows:
            settled(follows)
            assert client.amm.running()
            client.retire_workers(workers=[workers(client)["1"]])
            settled(follows, "0", "2")
            assert_on_owners(client, df)
        until(lambda: management(client) == around)


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


def test_a_clients_moves_are_kept_and_second_copies_stay(client):
    """Second copies stay, weights are kept, and the end leaves each partition on its owner."""
    pdf = rows(400)
    df = placed(pdf, nodes=FOUR, npartitions=12).chash.persist()
    wait(df)
    follows = df.chash.autobalance(replicas=2)
    settled(follows, *FOUR, "4")

    def copies() -> set[int]:
        return {len(held) for held in holders(client, df)}

    until(lambda: copies() == {2})
    with counted(client) as transfers:
        df.chash.rebalance(progress=False)
        settled(follows)
    assert transfers_of(transfers, df) == {}  # none was dropped and made anew
    assert copies() == {2}
    df.chash.rebalance(df.chash.plan({**dict.fromkeys([*FOUR, "4"], 1), "0": 2}), progress=False)
    counts = df.chash.layout.counts()
    assert counts["0"] == 4
    follows.pause()
    follows.resume()
    settled(follows)
    assert df.chash.layout.counts() == counts
    assert copies() == {2}
    follows.stop()
    assert_on_owners(client, df)
    assert_right(df, pdf)


def test_a_paused_layout_retires_a_worker_to_all_that_came(new_cluster):
    pdf = rows(400)
    cluster = new_cluster(2)
    with Client(cluster) as client, dask.config.set({"chash-partition.autobalance.settle": "30s"}):
        df = placed(pdf, nodes=["0", "1"], npartitions=12).chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            follows.pause()
            cluster.scale(3)
            client.wait_for_workers(3)
            assert follows.status().state == "paused"
            df.chash.retire("0", progress=False)
            assert df.chash.layout.counts() == {"1": 6, "2": 6}
            assert_on_owners(client, df)
            with pytest.raises(ValueError, match="name at least one worker"):
                df.chash.retire([])


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
    pdf = rows(400)
    # With a seed, for it depends on the ring: of 4, all come back in 55 % of rings.
    df = placed(pdf, npartitions=16, seed=1).chash.persist()
    wait(df)
    with df.chash.autobalance() as follows:
        settled(follows, *FOUR)
        own = set(df.chash.layout.partitions_of("1").tolist())
        kill(mortal, "1")
        settled(follows, *FOUR, frames=[df])  # its nanny has started it again
        assert_on_owners(mortal, df)
        assert_right(df, pdf)
        assert own == set(df.chash.layout.partitions_of("1").tolist())
        assert set(df.chash.layout.counts().values()) == {4}


def test_one_crash_recomputes_nothing_with_a_second_copy(mortal):
    pdf = rows(400)
    df = placed(pdf, npartitions=16).chash.persist()
    wait(df)
    with df.chash.autobalance(replicas=2) as follows:
        settled(follows, *FOUR)
        assert all(len(held) == 2 for held in holders(mortal, df))
        since = now(mortal)
        kill(mortal, "1")
        settled(follows, *FOUR)
        assert computed_since(mortal, since) == []
        held = holders(mortal, df)
        layout = df.chash.layout
        for p, names in enumerate(held):
            point = layout.point(p)
            owner = layout.owner_of(p)
            second = next(n for n in layout.ring.preference_at(point) if n != owner)
            assert names == sorted([owner, second])
        assert_right(df, pdf)


def test_workers_that_move_partitions_are_not_chosen_for_scaling_down(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    plan = df.chash.plan()
    stuck = plan.moves[0]

    def candidates():
        return set(
            client.run_on_scheduler(
                lambda dask_scheduler: [
                    str(name) for name in dask_scheduler.workers_to_close(n=5, attribute="name")
                ]
            )
        )

    with partitions_in_use(client, df, [stuck.partition]):
        follows = df.chash.autobalance()
        until(lambda: being_moved(client))
        chosen = candidates()
    assert not chosen & {stuck.source, stuck.target}
    settled(follows)
    assert candidates() == {*FOUR, "4"}
    follows.stop()


# A worker of few bytes, which does not mind what its process needs.
FEARLESS = {
    f"DASK_DISTRIBUTED__WORKER__MEMORY__{k}": "False" for k in ("TARGET", "SPILL", "PAUSE", "TERMINATE")
}


def test_workers_of_different_kinds(new_cluster, processes):
    """Weights by memory and threads, names, memory without room, and one that is paused."""
    pdf = rows()
    with Client(new_cluster(0)) as client:

        def start(name, *arguments):
            processes.enter_context(forked_worker(client, name, *arguments, **FEARLESS))

        start("a", "--memory-limit", "4GiB")
        start("b", "--memory-limit", "8GiB", "--nthreads", "3")
        df = placed(pdf, nodes=["a", "b"], npartitions=24).chash.persist()
        wait(df)
        with df.chash.autobalance("memory") as follows:
            settled(follows, "a", "b")
            assert df.chash.layout.counts() == {"a": 8, "b": 16}
            df.chash.autobalance("threads")
            until(lambda: df.chash.layout.counts() == {"a": 6, "b": 18})
            df.chash.autobalance({"a": 1, "b": 1})
            until(lambda: df.chash.layout.counts() == {"a": 12, "b": 12})
            settled(follows, "a", "b")
            assert_on_owners(client, df)

        largest = int(df.chash.sizes().max())
        start("small", "--memory-limit", str(int(largest * 2.5)))
        with dask.config.set({"chash-partition.rebalance.stall-timeout": "300ms"}):
            follows = df.chash.autobalance()
            small = []

            def full() -> bool:
                status = follows.status()
                small[:] = [names for names in holders(client, df) if names == ["small"]]
                return status.state == "waiting" and status.out_of_place == 8 - len(small)

            until(full)
            assert 2 <= len(small) <= 4
            assert follows.status().failures >= 8 - len(small)
            follows.stop()
            with pytest.warns(RuntimeWarning, match="worker small has no room for it: it manages"):
                df.chash.rebalance(progress=False)
            limit = client.run_on_scheduler(
                lambda dask_scheduler: [
                    (ws.nbytes, ws.memory_limit)
                    for ws in dask_scheduler.workers.values()
                    if ws.name == "small"
                ]
            )
            assert limit[0][0] <= limit[0][1]
        df.chash.retire("small", progress=False)
        assert_right(df, pdf)

        def pause(status, dask_worker):
            from distributed.core import Status

            dask_worker.status = Status[status]

        address = workers(client)["b"]
        client.run(pause, "paused", workers=[address])
        start("c", "--memory-limit", "8GiB")
        with df.chash.autobalance({"a": 1, "b": 4, "c": 1}) as follows:
            until(lambda: follows.status().state == "waiting")
            assert sum(names == ["b"] for names in holders(client, df)) == 12
            client.run(pause, "running", workers=[address])
            settled(follows, "a", "b", "c")
            assert df.chash.layout.counts() == {"a": 4, "b": 16, "c": 4}
            assert_on_owners(client, df)

        start(None)
        with pytest.warns(UserWarning, match="started without a name"):
            follows = df.chash.autobalance()
        settled(follows)
        assert_on_owners(client, df)
        assert_right(df, pdf)


def test_a_partition_stays_until_that_of_each_frame_has_arrived(new_cluster, processes):
    """Here one frame has no room on the new worker."""
    pdf = rows(400)
    with Client(new_cluster(0)) as client:
        processes.enter_context(forked_worker(client, "a", "--memory-limit", "4GiB"))
        df = placed(pdf, nodes=["a"], npartitions=8).chash.persist()
        large = placed(pdf.assign(z="z" * 10_000), layout=df.chash.layout).chash.persist()
        wait([df, large])
        limit = int(large.chash.sizes().min()) // 2
        assert df.chash.sizes().sum() < limit
        processes.enter_context(forked_worker(client, "b", "--memory-limit", str(limit), **FEARLESS))
        client.amm.stop()
        why = "the same partition of another frame of the layout could not be moved|worker b has no room"
        with (
            dask.config.set({"chash-partition.rebalance.stall-timeout": "500ms"}),
            pytest.warns(RuntimeWarning, match=why),
        ):
            df.chash.rebalance(progress=False)
        assert all("a" in held for frame in (df, large) for held in holders(client, frame))
        assert_right(df, pdf)


def test_what_is_spilled_takes_no_room(new_cluster, processes):
    """A worker whose limit is far below what it gets, which it spills."""
    pdf = rows()
    settings = {**FEARLESS, "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.6"}
    with Client(new_cluster(0)) as client:
        processes.enter_context(forked_worker(client, "a", "--memory-limit", "4GiB"))
        df = placed(pdf, nodes=["a"], npartitions=40).chash.persist()
        wait(df)
        limit = int(df.chash.sizes().max()) * 6
        processes.enter_context(forked_worker(client, "b", "--memory-limit", str(limit), **settings))
        with df.chash.autobalance() as follows:
            settled(follows, "a", "b")
            assert follows.status().failures == 0
        assert df.chash.sizes()[df.chash.layout.partitions_of("b")].sum() > 2 * limit
        assert_on_owners(client, df)
        # And back, from what is spilled.
        df.chash.retire("b", progress=False)
        assert_on_owners(client, df)
        assert_right(df, pdf)


def test_a_client_that_is_killed_leaves_nothing_behind(client):
    mine = placed(rows(400)).chash.persist()
    wait(mine)
    address, around = client.scheduler.address, management(client)

    def follow() -> None:
        with Client(address):
            df = dd.from_pandas(pd.DataFrame({"k": range(100)}), npartitions=2)
            df = df.pipe(chash_partition.chash_repartition, on="k", npartitions=8, nodes=["0", "1"])
            df = df.chash.persist()
            wait(df)
            df.chash.autobalance()
            threading.Event().wait()

    with forked_process(follow):
        until(lambda: management(client)["plugins"] != around["plugins"])
    until(lambda: management(client) == around)
    with mine.chash.autobalance() as follows:
        settled(follows)
        assert_on_owners(client, mine)


def test_defaults_and_schema_of_the_configuration():
    folder = Path(chash_partition.__file__).parent
    defaults, schema = (
        yaml.safe_load((folder / f"chash-partition{kind}.yaml").read_text()) for kind in ("", "-schema")
    )
    jsonschema.validate(defaults, schema)
    assert dask.config.get("chash-partition.autobalance.settle")
    wrong = {"chash-partition": {"autobalance": {"settel": "1s"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_lost_shards_alone_are_read_again_where_they_will_belong(client, tmp_path):
    pdf = rows()
    placed(pdf, nodes=[*FOUR, "4", "extra"], npartitions=24).chash.to_parquet(tmp_path / "shards")
    with forked_worker(client, "extra") as extra:
        df = chash_partition.read_parquet(tmp_path / "shards").chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            settled(follows, *FOUR, "4", "extra")
            lost = df.chash.layout.partitions_of("extra").tolist()
            assert len(lost) == 4
            since = now(client)
            extra.kill()
            settled(follows, *FOUR, "4", frames=[df])
            # Each is read and then pinned to its owner.
            assert sorted(key[1] for key in computed_since(client, since)) == sorted(2 * lost)
            assert follows.status().moves == 0
            assert_on_owners(client, df)
            assert_right(df, pdf)


@pytest.mark.parametrize("engine", ["p2p", *thorough("tasks")])
def test_lost_partitions_are_computed_where_they_will_belong(client, engine):
    pdf = rows()
    with forked_worker(client, "extra") as extra:
        df = placed(pdf, nodes=["0", "1", "2", "3", "4", "extra"], npartitions=24, engine=engine)
        df = df.chash.persist()
        wait(df)
        with df.chash.autobalance() as follows:
            settled(follows, *FOUR, "4", "extra")
            assert len(df.chash.layout.partitions_of("extra")) == 4
            extra.kill()
            settled(follows, *FOUR, "4", frames=[df])
            assert follows.status().moves == 0
            assert [e["partitions"] for _, e in client.get_events("chash") if e["action"] == "lost"][-1] == 4
            assert_on_owners(client, df)
            assert_right(df, pdf)
