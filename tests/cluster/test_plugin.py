"""What the scheduler knows of layouts and their frames."""

from __future__ import annotations

import gc
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from clusters import (
    FOUR,
    MORTALS,
    PARTITIONS,
    TIMEOUT,
    assert_on_owners,
    assert_right,
    counted,
    holders,
    keys_of,
    kill,
    partitions_in_use,
    placed,
    rows,
    until,
    workers,
)
from distributed import Client, futures_of, wait

from chash_partition import chash_repartition
from chash_partition.cluster import live


def registered(client):
    """Names of the frames that the scheduler has for each layout."""

    def look(dask_scheduler):
        layouts = dask_scheduler.plugins["chash"].layouts
        return {layout_id: set(entry.frames) for layout_id, entry in layouts.items()}

    return client.run_on_scheduler(look)


def gone(client, keys):
    gc.collect()
    return client.run_on_scheduler(
        lambda dask_scheduler: not any(key in dask_scheduler.tasks for key in keys)
    )


def test_frames_of_one_layout_move_together(client):
    pdf = rows(400)
    df = placed(pdf).chash.persist()
    frames = [
        df,
        placed(pdf.assign(z=1), layout=df.chash.layout).chash.persist(),
        df[df.x % 2 == 0].chash.persist(),
    ]
    wait(frames)
    with counted(client) as transfers:
        plan = frames[2].chash.rebalance(progress=False)
    assert len(plan.moves) == 4
    for frame in frames:
        assert frame.chash.layout.assignment.tolist() == plan.after.assignment.tolist()
        assert frame.chash.layout.version == 1
        assert_on_owners(client, frame)
        assert sum(transfers[key] for key in keys_of(frame)) == 4


def test_of_copies_that_tasks_fetched_the_owners_stay(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    client.amm.stop()
    try:
        for name in ("4", "1"):
            there = [workers(client)[name]]
            wait([client.submit(len, future, workers=there, pure=False) for future in futures_of(df)])
        assert all({"4", "1"} <= {*names} for names in holders(client, df))
    finally:
        client.amm.start()
    until(lambda: client.amm.run_once() or all(len(names) == 1 for names in holders(client, df)))
    assert_on_owners(client, df)


def test_a_frame_persisted_after_a_move_goes_where_the_others_are(client):
    lazy = placed(rows(400))
    df = lazy.chash.persist()
    plan = df.chash.rebalance(progress=False)
    assert lazy.chash.layout.version == 0
    late = lazy.assign(z=1).chash.persist()
    assert late.chash.layout == plan.after
    assert_on_owners(client, late)


def test_layouts_of_equal_arguments_but_other_clients_move_together(five, client):
    lazy = placed(rows(400))
    df = lazy.chash.persist()
    with Client(five, set_as_default=False) as other, other.as_current():
        theirs = lazy.assign(z=1).chash.persist()
        wait(theirs)
        df.chash.rebalance(progress=False)
        assert_on_owners(other, theirs)
        assert theirs.chash.layout == df.chash.layout


def test_deleting_a_frame_frees_its_memory(client):
    df = placed(rows(400)).chash.persist()
    df.chash.rebalance(progress=False)
    keys = keys_of(df)
    gc.disable()
    try:
        del df
        until(lambda: not client.run_on_scheduler(lambda dask_scheduler: keys[0] in dask_scheduler.tasks))
    finally:
        gc.enable()


def test_freed_frames_are_forgotten(client):
    lazy = placed(rows(400))
    df, mate = lazy.chash.persist(), lazy.assign(z=1).chash.persist()
    layout_id, kept, freed = df.chash.layout.id, keys_of(df), keys_of(mate)
    df.chash.rebalance(progress=False)
    assert registered(client)[layout_id] == {kept[0][0], freed[0][0]}
    del mate
    until(lambda: gone(client, freed))
    assert df.chash.layout.version == 1
    assert registered(client)[layout_id] == {kept[0][0]}
    del df
    until(lambda: gone(client, kept))
    again = lazy.chash.persist()
    assert again.chash.layout.version == 0
    assert_on_owners(client, again)


def test_a_frame_freed_before_it_was_looked_at_is_forgotten(client):
    lazy = placed(rows(400))
    mate = lazy.assign(z=1).chash.persist()
    wait(mate)
    keys = keys_of(mate)
    del mate
    until(lambda: gone(client, keys))
    df = lazy.chash.persist()
    wait(df)
    plan = df.chash.plan()
    assert df.chash.rebalance(plan, progress=False) == plan
    assert_on_owners(client, df)


def test_a_frame_freed_during_a_move_does_not_stop_it(client):
    pdf = rows(400)
    df = placed(pdf).chash.persist()
    mate = placed(pdf.assign(z=1), layout=df.chash.layout).chash.persist()
    wait([df, mate])
    plan = df.chash.plan()
    keys = keys_of(mate)
    with ThreadPoolExecutor(1) as pool:
        with partitions_in_use(client, df, [plan.moves[0].partition]):
            move = pool.submit(df.chash.rebalance, plan, progress=False)
            until(lambda: move.done() or workers_of(client, keys[plan.moves[-1].partition]) == ["4"])
            assert not move.done()
            del mate
            until(lambda: gone(client, keys))
        assert move.result(TIMEOUT) == plan
    assert_on_owners(client, df)


def test_a_frame_that_could_not_be_computed_does_not_stop_a_move(client):
    def fail(block):
        raise ZeroDivisionError("on purpose")

    lazy = placed(rows(400))
    df, broken = lazy.chash.persist(), lazy.map_partitions(fail, meta=rows(0))
    broken = broken.pipe(chash_repartition, on="k", layout=lazy.chash.layout).chash.persist()
    wait([df, broken])
    plan = df.chash.plan()
    assert df.chash.rebalance(plan, progress=False) == plan
    assert_on_owners(client, df)


def test_a_frame_persisted_during_a_move_goes_along(client):
    lazy = placed(rows(400))
    df = lazy.chash.persist()
    wait(df)
    plan = df.chash.plan()
    with ThreadPoolExecutor(1) as pool:
        with partitions_in_use(client, df, [plan.moves[0].partition]):
            move = pool.submit(df.chash.rebalance, plan, progress=False)
            last = keys_of(df)[plan.moves[-1].partition]
            until(lambda: move.done() or workers_of(client, last) == ["4"])
            assert not move.done()
            late = lazy.assign(z=1).chash.persist()
        assert move.result(TIMEOUT) == plan
    assert late.chash.layout == df.chash.layout == plan.after
    assert_on_owners(client, df)
    assert_on_owners(client, late)


def workers_of(client, key):
    def look(dask_scheduler):
        return [str(ws.name) for ws in dask_scheduler.tasks[key].who_has or ()]

    return client.run_on_scheduler(look)


@pytest.mark.parametrize("announced", [False, True])
def test_a_frame_persisted_while_a_move_begins_follows_it(client, monkeypatch, announced):
    """Its tasks go by the layout before the move, and reach the scheduler after it."""
    lazy = placed(rows(400))
    df = lazy.chash.persist()
    wait(df)
    before = df.chash.layout
    if announced:
        late = lazy.assign(z=1).chash.persist()
        (name, _), *_ = keys = keys_of(late)
        del late
        until(lambda: not client.run_on_scheduler(lambda dask_scheduler: keys[0] in dask_scheduler.tasks))
        live.register(client, before, name)
    df.chash.rebalance(progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(live, "current_layout", lambda client, layout: before)
        late = lazy.assign(z=1).chash.persist()
    wait(late)
    until(lambda: holders(client, late) == holders(client, df))
    assert_on_owners(client, late)


def test_one_move_of_a_layout_at_a_time(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    plan = df.chash.plan()
    with ThreadPoolExecutor(1) as pool:
        with partitions_in_use(client, df, [plan.moves[0].partition]):
            first = pool.submit(df.chash.rebalance, plan, progress=False)
            last = keys_of(df)[plan.moves[-1].partition]
            until(lambda: first.done() or workers_of(client, last) == ["4"])
            with pytest.raises(ValueError, match="is being moved already"):
                df.chash.rebalance(plan, progress=False)
        assert first.result(TIMEOUT) == plan
    assert_on_owners(client, df)


def test_a_second_rebalance_moves_nothing(client):
    df = placed(rows(400)).chash.persist()
    first = df.chash.rebalance(progress=False)
    with counted(client) as transfers:
        second = df.chash.rebalance(progress=False)
    assert second.moves == ()
    assert not transfers
    assert second.after.assignment.tolist() == first.after.assignment.tolist()
    assert df.chash.layout == second.after


def test_another_client_reads_plans_and_rebalances_a_published_frame(five):
    pdf = rows(400)
    with Client(five) as first:
        df = placed(pdf).chash.persist()
        first.publish_dataset(flights=df)
        wait(df)
        del df
    with Client(five) as second:
        df = second.get_dataset("flights")
        try:
            assert df.chash.layout.counts() == dict.fromkeys(FOUR, 5)
            assert_on_owners(second, df)
            plan = df.chash.plan()
            assert len(plan.moves) == 4
            assert df.chash.rebalance(plan, progress=False) == plan
            assert df.chash.layout == plan.after
            assert_on_owners(second, df)
            assert_right(df, pdf)
        finally:
            second.unpublish_dataset("flights")


def test_a_restarted_cluster_knows_no_layouts(mortal):
    pdf = rows(400)
    lazy = placed(pdf, nodes=FOUR, npartitions=16)
    df = lazy.chash.persist()
    wait(df)
    df.chash.rebalance(df.chash.plan({**dict.fromkeys(FOUR, 1), "0": 2}), progress=False)
    assert df.chash.layout.version == 1
    mortal.restart(timeout=TIMEOUT)
    assert registered(mortal) == {}
    for act in (df.chash.placement, df.chash.plan, df.chash.rebalance):
        with pytest.raises((RuntimeError, CancelledError), match=r"not in memory|Scheduler has restarted"):
            act()
    again = lazy.chash.persist()
    assert again.chash.layout.version == 0
    assert_on_owners(mortal, again)
    assert_right(again, pdf)


def test_each_frame_asks_the_cluster_that_keeps_it(client, new_cluster):
    pdf = rows(400)
    here = placed(pdf).chash.persist()
    with Client(new_cluster(2)) as other:
        lazy = placed(pdf, nodes=["0"], npartitions=8)
        there = lazy.chash.persist()
        # The active client is the other one; each frame asks the client that keeps it.
        assert here.chash.layout.npartitions == PARTITIONS
        assert here.chash.placement().nunique() == 4
        assert len(here.chash.plan().moves) == 4
        assert len(there.chash.plan().moves) == 4
        here.chash.rebalance(progress=False)
        there.chash.rebalance(progress=False)
        assert_on_owners(client, here)
        assert_on_owners(other, there)
        # A lazy frame made for this cluster, persisted on the one that is active then.
        with client.as_current():
            moved = lazy.chash.persist()
            assert futures_of(moved)[0].client is client
            assert_on_owners(client, moved)
            assert_right(moved, pdf)
        assert_right(there, pdf)
    assert_right(here, pdf)


def test_a_frame_uses_its_own_client_and_not_the_default(five):
    with Client(five, set_as_default=False) as client:
        with client.as_current():
            df = placed(rows(400)).chash.persist()
        assert df.chash.placement().nunique() == 4
        assert len(df.chash.rebalance(progress=False).moves) == 4


def test_workers_started_again_are_pinned_anew(mortal):
    """A nanny starts its worker again under its old name at a new address."""
    pdf = rows(400)
    lazy = placed(pdf, nodes=FOUR, npartitions=16)
    kill(mortal, "0", "1")
    until(lambda: len(workers(mortal)) == MORTALS)
    df = lazy.chash.persist()
    assert_on_owners(mortal, df)
    assert_right(df, pdf)
    kill(mortal, "0")
    assert_right(df, pdf)
    until(lambda: len(workers(mortal)) == MORTALS)
    df.chash.rebalance(progress=False)
    assert_on_owners(mortal, df)
