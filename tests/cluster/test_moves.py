"""Moving partitions on a live cluster: exactly those, once each, whatever else goes on."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import dask.config
import pytest
from clusters import (
    FOUR,
    MORTALS,
    TIMEOUT,
    assert_on_owners,
    assert_right,
    changed,
    counted,
    forked_worker,
    holders,
    keys_of,
    kill,
    management,
    partitions_in_use,
    placed,
    rows,
    stopped,
    stream,
    sums,
    transfers_of,
    until,
    workers,
)
from distributed import Client, wait

from chash_partition.cluster import moves


def once_each(plan, *frames):
    """The transfers that the plan needs: each moved partition of each frame, once."""
    return {keys_of(frame)[move.partition]: 1 for frame in frames for move in plan.moves}


def group_bys(df, pdf):
    """A stream of them, and what pandas makes of each."""
    return stream(groups=(lambda: sums(df).reset_index(), sums(pdf).reset_index()))


def one_more(made):
    """Wait for a group-by that ends from now on."""
    before = made["groups"]
    until(lambda: made["groups"] > before)


@contextmanager
def moving(client, frame, plan, stuck):
    """A rebalance that has come as far as it can: one partition stays in use until the block's end."""
    with ThreadPoolExecutor(1) as pool, partitions_in_use(client, frame, [stuck]):
        move = pool.submit(frame.chash.rebalance, plan, progress=False)

        def copied():
            held = holders(client, frame)
            return all(
                held[m.partition] == [m.target] or (m.partition == stuck and m.target in held[stuck])
                for m in plan.moves
            )

        until(lambda: move.done() or copied())
        assert not move.done()
        yield move


def test_scaling_out_and_in_moves_the_fewest_partitions_under_load(new_cluster):
    pdf, others = rows(), rows(500)
    cluster = new_cluster(4)
    with Client(cluster) as client:
        df = placed(pdf, nodes=None).chash.persist()
        mate = placed(others, layout=df.chash.layout).chash.persist()
        assert_on_owners(client, df)
        assert_on_owners(client, mate)
        before = holders(client, df)

        cluster.scale(5)
        client.wait_for_workers(5)
        plan = df.chash.plan()
        assert len(plan.moves) == plan.lower_bound == 4
        assert plan.nbytes == df.chash.sizes()[[move.partition for move in plan.moves]].sum()
        with counted(client) as transfers, group_bys(df, pdf) as made:
            one_more(made)
            done = df.chash.rebalance(plan, progress=False)
            one_more(made)
        assert done == plan
        for frame in (df, mate):
            assert frame.chash.layout == plan.after
            assert_on_owners(client, frame)
        assert len(changed(before, holders(client, df))) == 4
        assert transfers_of(transfers, df, mate) == once_each(plan, df, mate)

        before = holders(client, df)
        with counted(client) as transfers:
            done = df.chash.retire([1, "3"], progress=False)
            until(lambda: sorted(workers(client)) == ["0", "2", "4"])
        moved = changed(before, holders(client, df))
        assert len(done.moves) == done.lower_bound == len(moved)
        assert transfers_of(transfers, df, mate) == once_each(done, df, mate)
        cluster.sync(cluster.scale_down, [1, 3])
        assert df.chash.layout == done.after
        assert sorted(df.chash.layout.nodes) == ["0", "2", "4"]
        for frame, its_rows in ((df, pdf), (mate, others)):
            assert_on_owners(client, frame)
            assert_right(frame, its_rows)


@pytest.mark.parametrize("managed", [True, False], ids=["amm", "no-amm"])
def test_one_transfer_for_each_move_while_group_bys_run(client, managed):
    pdf = rows()
    df = placed(pdf).chash.persist()
    wait(df)
    if not managed:
        client.amm.stop()
    try:
        around = management(client)
        with counted(client) as transfers, group_bys(df, pdf) as made:
            one_more(made)
            plan = df.chash.rebalance(progress=False)
            one_more(made)
        assert client.amm.running() == managed
        assert management(client) == around
    finally:
        client.amm.start()
    assert len(plan.moves) == plan.lower_bound == 4
    assert transfers_of(transfers, df) == once_each(plan, df)
    assert_on_owners(client, df)


@pytest.mark.parametrize(("nbytes", "asked"), [(0, 4), (2**30, 6)])
def test_how_many_partitions_are_on_their_way_at_once(client, monkeypatch, nbytes, asked):
    """Four, or more if they are small together."""
    monkeypatch.setattr(moves, "BYTES_IN_FLIGHT", nbytes)
    df = placed(rows(400), npartitions=30).chash.persist()
    wait(df)
    address, keys = workers(client)["4"], keys_of(df)
    targets = {keys[move.partition]: (address,) for move in df.chash.plan().moves}
    assert len(targets) == 6

    def ask(dask_scheduler):
        move = moves.BringToOwners(targets)
        moves.ActiveMemoryManagerExtension(dask_scheduler, {move}, register=False, start=False)
        return len(list(move.run())), len(list(move.run()))

    # Asked again at once, it asks for no more of them.
    assert client.run_on_scheduler(ask) == (asked, 0)


def forget_times(dask_scheduler):
    """Of all tasks, so that they are believed to take half a second each."""
    for prefix in dask_scheduler.task_prefixes.values():
        prefix.duration_average = -1


def stolen(dask_scheduler, pins):
    """How many of these tasks have run, once some wait for their worker and no theft is under way."""
    states = Counter(dask_scheduler.tasks[pin].state for pin in pins if pin in dask_scheduler.tasks)
    stealing = dask_scheduler.extensions["stealing"]
    stealing.balance()
    return states["memory"] if states["processing"] and not stealing.in_flight else None


def test_work_stealing_leaves_partitions_where_they_are_and_no_copy_behind(new_cluster):
    pdf = rows()
    with dask.config.set({"distributed.scheduler.work-stealing": True}), Client(new_cluster(4)) as client:
        df = placed(pdf, nodes=FOUR[:3]).chash.persist()
        wait(df)
        # Of owners that are busy, an idle worker takes what there is to compute, and no partition.
        layout = df.chash.layout
        with partitions_in_use(client, df, [layout.partitions_of(name)[0] for name in FOUR[:3]]):
            client.run_on_scheduler(forget_times)
            halves = [df[df.x % 2 == i].chash.persist() for i in range(2)]
            pins = keys_of(*halves)
            for _ in range(10):
                until(lambda: client.run_on_scheduler(stolen, pins=pins) is not None)
            assert not client.run_on_scheduler(stolen, pins=pins)
        wait(halves)
        owners = [layout.owner_of(p) for p in range(layout.npartitions)]
        assert all(half.chash.placement().tolist() == owners for half in halves)
        del halves
        with group_bys(df, pdf) as made:
            one_more(made)
            plan = df.chash.rebalance(progress=False)
            one_more(made)
        assert len(plan.moves) == plan.lower_bound == 5
        assert df.chash.layout == plan.after
        # A stolen task leaves a copy, which Dask's own policy drops at its next run.
        until(lambda: all(len(held) == 1 for held in holders(client, df)))
        assert_on_owners(client, df)


@pytest.mark.parametrize("ends", ["first", "last"])
def test_two_layouts_move_at_once(client, ends):
    """Dask's own policy, which drops second copies, leaves both alone as long as they move."""
    frames = [placed(rows(400)).chash.persist() for _ in range(2)]
    wait(frames)
    around = management(client)
    plans = [frame.chash.plan() for frame in frames]
    stuck = [
        next(m for m in plan.moves if m.source == source) for plan, source in zip(plans, "01", strict=True)
    ]
    with counted(client) as transfers:
        first, last = ExitStack(), ExitStack()
        with last, first:
            moves = [
                stack.enter_context(moving(client, frame, plan, move.partition))
                for stack, frame, plan, move in zip((first, last), frames, plans, stuck, strict=True)
            ]
            dask_runs(client)
            (first if ends == "first" else last).close()
            dask_runs(client)
    assert [move.result(TIMEOUT) for move in moves] == plans
    for frame, plan in zip(frames, plans, strict=True):
        assert_on_owners(client, frame)
        assert frame.chash.layout == plan.after
        assert transfers_of(transfers, frame) == once_each(plan, frame)
    assert management(client) == around


def dask_runs(client):
    """Dask's policies, as often as it takes them to do what they do."""
    for _ in range(3):
        client.amm.run_once()


def test_copies_that_are_there_already_are_used_and_others_dropped(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    plan = df.chash.plan()
    client.amm.stop()
    try:
        client.replicate(df, n=5)
        assert all(len(held) == 5 for held in holders(client, df))
        with counted(client) as transfers:
            assert df.chash.rebalance(plan, progress=False) == plan
        assert transfers_of(transfers, df) == {}
        held = holders(client, df)
        assert [held[move.partition] for move in plan.moves] == [["4"]] * 4
    finally:
        client.amm.start()


def test_a_partition_in_use_moves_when_its_reader_ends(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    plan = df.chash.plan()
    with moving(client, df, plan, plan.moves[0].partition) as move:
        pass
    assert move.result(TIMEOUT) == plan
    assert_on_owners(client, df)


def test_a_partition_that_stays_in_use_is_reported(client):
    pdf = rows(400)
    df = placed(pdf).chash.persist()
    wait(df)
    plan = df.chash.plan()
    stuck = plan.moves[0].partition
    with partitions_in_use(client, df, [stuck]):
        with (
            dask.config.set({"chash-partition.rebalance.stall-timeout": "3s"}),
            pytest.warns(RuntimeWarning, match=rf"partition {stuck}: tasks kept a second copy in use on"),
        ):
            done = df.chash.rebalance(plan, progress=False)
        assert [move.partition for move in done.moves] == [m.partition for m in plan.moves[1:]]
        # What it returns is what df.chash knows from then on.
        assert df.chash.layout == done.after
    df.chash.rebalance(progress=False)
    assert_on_owners(client, df)
    assert set(df.chash.layout.counts().values()) == {4}
    assert_right(df, pdf)


def test_frames_still_being_computed_move_when_they_are_there(client):
    pdf = rows(400)
    df = placed(pdf).chash.persist()
    wait(df)
    plan = df.chash.plan()
    moving = {move.partition for move in plan.moves}
    kept = next(p for p in df.chash.layout.partitions_of("0") if p not in moving)
    with ThreadPoolExecutor(1) as pool:
        # Worker 0 has one thread, so nothing of the mate is computed there meanwhile.
        with partitions_in_use(client, df, [kept]):
            mate = placed(pdf.assign(z=1), layout=df.chash.layout).chash.persist()
            move = pool.submit(df.chash.rebalance, plan, progress=False)
            until(lambda: move.done() or holders(client, df).count(["4"]) == 4)
            assert not move.done()
        assert move.result(TIMEOUT) == plan
    assert_on_owners(client, df)
    assert_on_owners(client, mate)


def test_the_target_dies(mortal):
    pdf = rows()
    df = placed(pdf, nodes=FOUR[:3], npartitions=16).chash.persist()
    wait(df)
    plan = df.chash.plan()
    assert {move.target for move in plan.moves} == {"3"}

    def move_and_kill():
        with moving(mortal, df, plan, plan.moves[0].partition) as move:
            kill(mortal, "3")
            return move.result(TIMEOUT)

    with pytest.warns(RuntimeWarning, match=r"(?s)4 partitions are not on their new owner.*has left"):
        done = move_and_kill()
    assert done.moves == ()
    assert_right(df, pdf)
    assert df.chash.layout.counts().get("3", 0) == 0
    assert_balanced_again(mortal, df, pdf)


def test_a_source_dies_after_the_copies(mortal):
    pdf = rows()
    df = placed(pdf, nodes=FOUR[:3], npartitions=16).chash.persist()
    wait(df)
    plan = df.chash.plan()
    stuck = plan.moves[0]
    with moving(mortal, df, plan, stuck.partition) as move:
        kill(mortal, stuck.source)
    assert move.result(TIMEOUT) == plan
    assert_right(df, pdf)
    assert_balanced_again(mortal, df, pdf)


def test_a_source_dies_before_the_copies(mortal):
    pdf = rows()
    df = placed(pdf, nodes=FOUR[:3], npartitions=16).chash.persist()
    wait(df)
    plan = df.chash.plan()
    source = plan.moves[0].source
    with ThreadPoolExecutor(1) as pool:
        with stopped(mortal, "3"):
            move = pool.submit(df.chash.rebalance, plan, progress=False)
            until(lambda: "move-start" in [e["action"] for _, e in mortal.get_events("chash")])
            kill(mortal, source)
        done = move.result(TIMEOUT)
    assert done == plan
    assert_right(df, pdf)
    assert_balanced_again(mortal, df, pdf)


def test_a_bystander_dies(mortal):
    pdf = rows()
    df = placed(pdf, nodes=FOUR[:3], npartitions=16).chash.persist()
    wait(df)
    plan = df.chash.plan(["0", "1", "3"])
    bystander = ({"0", "1"} - {move.source for move in plan.moves}).pop()
    with moving(mortal, df, plan, plan.moves[0].partition) as move:
        kill(mortal, bystander)
    assert move.result(TIMEOUT) == plan
    assert_right(df, pdf)
    assert_balanced_again(mortal, df, pdf)


def assert_balanced_again(client, df, pdf):
    """The nanny has started the dead worker again; one more rebalance gives it its share."""
    until(lambda: len(workers(client)) == MORTALS)
    plan = df.chash.rebalance(progress=False)
    assert df.chash.layout == plan.after
    assert set(plan.after.counts().values()) == {df.npartitions // MORTALS}
    assert_on_owners(client, df)
    assert_right(df, pdf)


def test_a_worker_dies_for_good(mortal):
    pdf = rows()
    with forked_worker(mortal, "extra") as extra:
        df = placed(pdf, nodes=["0", "1", "extra"], npartitions=12).chash.persist()
        assert_on_owners(mortal, df)
        layout = df.chash.layout
        extra.kill()
        until(lambda: "extra" not in workers(mortal))
        # The pins of its partitions name an address that is gone.
        assert_right(df, pdf)
        with pytest.warns(UserWarning, match="gives partitions to extra"):
            again = placed(pdf, layout=layout).chash.persist()
        wait(again, TIMEOUT)
        with pytest.raises(ValueError, match="extra"):
            df.chash.rebalance(df.chash.plan(["0", "1", "extra"]), progress=False)
        df.chash.rebalance(progress=False)
        for frame in (df, again):
            assert frame.chash.layout.counts() == dict.fromkeys(FOUR, 3)
            assert_on_owners(mortal, frame)
            assert_right(frame, pdf)
