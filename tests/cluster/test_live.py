"""The client's side: persisting, planning and retiring on a real cluster, and what it refuses."""

from __future__ import annotations

import asyncio
import sys

import dask.config
import dask.dataframe as dd
import pytest
from clusters import (
    FOUR,
    PARTITIONS,
    assert_on_owners,
    assert_right,
    counted,
    forked_process,
    holders,
    keys_of,
    partitions_in_use,
    placed,
    rows,
    until,
    workers,
)
from distributed import Client, futures_of, wait
from frames import assert_same_rows
from tiers import thorough

from chash_partition import Layout, chash_repartition


@pytest.mark.parametrize("engine", ["p2p", *thorough("tasks")])
def test_persisted_partitions_are_on_their_owners(client, engine):
    """Also those of derived frames, with a worker about that owns nothing and is idle."""
    pdf = rows()
    df = placed(pdf, engine=engine).chash.persist()
    assert_on_owners(client, df)
    assert_right(df, pdf)
    few = df[df.x < 1000].chash.persist()
    assert_on_owners(client, few)
    assert_right(few, pdf[pdf.x < 1000])
    wide = df.assign(z=df.x + 1).rename(columns={"y": "w"}).chash.persist()
    assert_on_owners(client, wide)


def test_merged_frames_are_on_their_owners(client):
    left, right = rows(), rows(300)[["k"]]
    df = placed(left).chash.persist()
    mate = placed(right, layout=df.chash.layout)
    for joined in (df.merge(mate, on="k"), df.merge(mate.chash.persist(), on="k"), df.chash.merge(mate)):
        there = joined.chash.persist()
        assert there.chash.layout == df.chash.layout
        assert_on_owners(client, there)
        assert_right(there, left.merge(right, on="k"))


def test_weights_say_how_many_partitions_a_worker_gets(client):
    pdf = rows(400)
    df = placed(pdf, nodes={"0": 2, "1": 1, "2": 0.5, "3": 0.5}, npartitions=16).chash.persist()
    assert df.chash.layout.counts() == {"0": 8, "1": 4, "2": 2, "3": 2}
    assert_on_owners(client, df)
    # A bare list keeps the weights that the layout has; a new worker weighs 1.
    plan = df.chash.plan()
    assert plan.after.weights == {"0": 2, "1": 1, "2": 0.5, "3": 0.5, "4": 1}
    assert len(df.chash.rebalance(plan, progress=False).moves) == plan.lower_bound
    assert_on_owners(client, df)
    plan = df.chash.plan({"0": 1, "1": 1, "4": 2})
    assert plan.after.counts() == {"0": 4, "1": 4, "4": 8}
    assert df.chash.rebalance(plan, progress=False) == plan
    assert_on_owners(client, df)
    assert_right(df, pdf)


def test_partitions_of_a_ring_layout_move_to_the_new_worker_alone(client):
    df = placed(rows(400), placement="ring", npartitions=64).chash.persist()
    assert_on_owners(client, df)
    plan = df.chash.plan()
    assert {move.target for move in plan.moves} == {"4"}
    assert df.chash.rebalance(plan, progress=False) == plan
    assert_on_owners(client, df)


def test_frames_whose_key_was_renamed_share_the_layout(client):
    df = placed(rows(400)).chash.persist()
    renamed = df.rename(columns={"k": "key"}).chash.persist()
    plan = renamed.chash.plan()
    assert renamed.chash.rebalance(plan, progress=False) == plan
    assert renamed.chash.layout == plan.after
    assert df.chash.layout == plan.after.rename(["k"])
    assert_on_owners(client, df)
    assert_on_owners(client, renamed)


def test_a_key_column_whose_label_is_no_str(client):
    pdf = rows(400).rename(columns={"k": 0})
    df = dd.from_pandas(pdf, npartitions=4).pipe(chash_repartition, on=0, npartitions=8, nodes=FOUR)
    df = df.chash.persist()
    assert_on_owners(client, df)
    assert df.chash.layout.on == (0,)
    plan = df.chash.plan()
    assert df.chash.rebalance(plan, progress=False) == plan
    assert_on_owners(client, df)


def test_merge_of_placed_frames_moves_nothing(client):
    left, right = rows(4000), rows(300).assign(z=1.5)
    df = placed(left).chash.persist()
    mate = placed(right, layout=df.chash.layout).chash.persist()
    # Each on a worker of its own, so that joining them has to move one.
    plain = [
        client.persist(dd.from_pandas(pdf, npartitions=8), workers=[worker])
        for pdf, worker in zip((left, right), workers(client).values(), strict=False)
    ]
    wait([df, mate, *plain])
    expected = left.merge(right, on="k")
    # Any shuffle of Dask's would be by tasks, whose transfers the workers count.
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        with counted(client) as transfers:
            joined = df.merge(mate, on="k").persist()
            wait(joined)
        assert not transfers
        assert_same_rows(joined.compute(), expected)
        with counted(client) as transfers:
            joined = plain[0].merge(plain[1], on="k", broadcast=False).persist()
            wait(joined)
        assert transfers
        assert_same_rows(joined.compute(), expected)


def test_group_by_of_a_placed_frame_moves_no_partition(client):
    df = placed(rows()).chash.persist()
    wait(df)
    with counted(client) as transfers:
        wait(df.groupby("k").x.median().persist())
    assert not transfers


def test_chash_merge_moves_only_the_right_side(client):
    left, right = rows(), rows(300).assign(z=1.5)
    df = placed(left).chash.persist()
    wait(df)
    with counted(client) as transfers:
        joined = df.chash.merge(dd.from_pandas(right, npartitions=4), on="k").persist()
        wait(joined)
    assert not set(keys_of(df)) & transfers.keys()
    assert_same_rows(joined.compute(), left.merge(right, on="k"))


def test_lookup_finds_the_rows_of_a_key_and_of_null(client):
    pdf = rows()
    df = placed(pdf).chash.persist()
    assert_same_rows(df.chash.lookup("user-7"), pdf[pdf.k == "user-7"])
    assert_same_rows(df.chash.lookup(None), pdf[pdf.k.isna()])


def test_a_plan_starts_from_the_placement(client):
    """Not from what was once intended."""
    df = placed(rows(400)).chash.persist()
    wait(df)
    some = df.chash.layout.partitions_of("0")[:3]
    futures = [future for future in futures_of(df) if future.key[1] in some]
    address = workers(client)
    client.amm.stop()
    try:
        client.replicate(futures, n=2, workers=[address["0"], address["1"]])
        drop(client, [future.key for future in futures], address["0"])
    finally:
        client.amm.start()
    assert df.chash.placement()[some].tolist() == ["1", "1", "1"]
    plan = df.chash.plan(FOUR)
    assert [(move.source, move.target) for move in plan.moves] == [("1", "0")] * 3
    assert df.chash.rebalance(plan, progress=False) == plan
    assert_on_owners(client, df)


def drop(client, keys, address):
    async def delete(dask_scheduler):
        await dask_scheduler.delete_worker_data(address, keys, "test")

    client.run_on_scheduler(delete)


def plans_that_do_not_fit(df):
    layout, plan = df.chash.layout, df.chash.plan()
    other = placed(rows(40)).chash.plan()
    yield "another layout", other, f"layout {layout.id}"
    yield "absent worker", df.chash.plan([*FOUR, "nobody"]), "nobody"
    df.chash.rebalance(df.chash.plan(FOUR), progress=False)
    yield "older version", plan, "version 0"


def test_plans_that_do_not_fit_are_refused(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    before = holders(client, df)
    with counted(client) as transfers:
        for _, plan, message in plans_that_do_not_fit(df):
            with pytest.raises(ValueError, match=message):
                df.chash.rebalance(plan, progress=False)
    assert not transfers
    assert holders(client, df) == before


def test_frames_that_are_not_in_memory_are_not_moved(client):
    lazy = placed(rows(400))
    df = lazy.chash.persist()
    plan = df.chash.plan()
    derived = df[df.x > 10]
    for frame in (lazy, derived):
        for act in (
            lambda f: f.chash.rebalance(plan),
            lambda f: f.chash.retire("0"),
            lambda f: f.chash.placement(),
            lambda f: f.chash.sizes(),
        ):
            with pytest.raises(ValueError, match=r"chash\.persist\(\)"):
                act(frame)
    assert derived.chash.layout == df.chash.layout
    assert workers(client).keys() == {*FOUR, "4"}
    # A plan of a lazy frame is possible, and is one of intentions.
    assert len(lazy.chash.plan().moves) == len(derived.chash.plan().moves) == 4


def test_retire_refuses_what_it_cannot_do(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    layout = df.chash.layout
    with counted(client) as transfers:
        for names, message in (("nobody", "nobody"), ([0, "x", 7], "7, x"), (range(5), "at least one")):
            with pytest.raises(ValueError, match=message):
                df.chash.retire(names, progress=False)
    assert not transfers
    assert df.chash.layout == layout
    assert workers(client).keys() == {*FOUR, "4"}


def test_retire_keeps_a_worker_whose_partitions_could_not_be_moved(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    stuck = df.chash.layout.partitions_of("0")[0]
    with (
        dask.config.set({"chash-partition.rebalance.stall-timeout": "3s"}),
        partitions_in_use(client, df, [stuck]),
        pytest.warns(RuntimeWarning, match="1 partitions are not on their new owner"),
        pytest.raises(RuntimeError, match="no worker was retired"),
    ):
        df.chash.retire(0, progress=False)
    assert workers(client).keys() == {*FOUR, "4"}


def test_a_frame_whose_computation_failed_is_not_in_memory(client):
    def fail(block):
        raise ZeroDivisionError("on purpose")

    pdf = rows(40)
    broken = dd.from_pandas(pdf, npartitions=2).map_partitions(fail, meta=pdf.iloc[:0])
    df = broken.pipe(chash_repartition, on="k", npartitions=8, nodes=FOUR).chash.persist()
    for act in (df.chash.placement, df.chash.sizes, df.chash.plan, df.chash.rebalance):
        with pytest.raises(RuntimeError, match="not in memory"):
            act()


def test_progress_is_shown_and_summed_up(client, capsys):
    df = placed(rows(400)).chash.persist()
    df.chash.rebalance()
    captured = capsys.readouterr()
    assert "moved 4 partitions (" in captured.err
    assert captured.out == ""


def test_a_layout_of_nodes_that_are_no_workers_warns_and_is_brought_to_workers(client):
    pdf = rows(400)
    with pytest.warns(UserWarning, match="gives partitions to disk-a, disk-b, not a worker"):
        df = placed(pdf, nodes=["disk-a", "disk-b"]).chash.persist()
    assert_right(df, pdf)
    with pytest.raises(ValueError, match="disk-a"):
        df.chash.rebalance(df.chash.plan(["disk-a"]), progress=False)
    df.chash.rebalance(progress=False)
    assert set(df.chash.layout.counts().values()) == {4}
    assert_on_owners(client, df)


def test_a_frame_whose_client_is_closed_says_so(five):
    with Client(five):
        df = placed(rows(400)).chash.persist()
        plan = df.chash.plan()
    acts = {
        "layout": lambda: df.chash.layout,
        "placement": df.chash.placement,
        "sizes": df.chash.sizes,
        "plan": df.chash.plan,
        "rebalance": lambda: df.chash.rebalance(plan),
        "retire": lambda: df.chash.retire("0"),
        "persist": lambda: df[df.x > 1].chash.persist(),
    }
    for act in acts.values():
        with pytest.raises((ValueError, RuntimeError), match=r"(?i)client.*closed|closed.*client"):
            act()


def test_what_needs_a_synchronous_client_says_so(five):
    async def use():
        async with Client(five.scheduler_address, asynchronous=True):
            lazy = placed(rows(400))
            for act in (lazy.chash.persist, lazy.chash.plan):
                with pytest.raises(RuntimeError, match="second, synchronous"):
                    act()

    asyncio.run(use())


def test_a_scheduler_without_the_package_says_so(processes, tmp_path):
    file = tmp_path / "address"

    def schedule() -> None:
        for name in [*sys.modules]:  # as if it were not installed
            if name.partition(".")[0] == "chash_partition":
                sys.modules[name] = None

        async def main() -> None:
            from distributed import Scheduler

            async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
                (tmp_path / "being written").write_text(scheduler.address)
                (tmp_path / "being written").rename(file)
                await scheduler.finished()

        asyncio.run(main())

    processes.enter_context(forked_process(schedule))
    until(file.exists)
    with Client(file.read_text()):
        with pytest.raises(RuntimeError, match=r"^the scheduler cannot import chash_partition.*install"):
            placed(rows(40), nodes=["0"])
        df = placed(rows(40), nodes=["0"], engine="tasks")
        with pytest.raises(RuntimeError, match=r"^the scheduler cannot import chash_partition.*install"):
            df.chash.persist()


def test_a_frame_persisted_without_a_cluster_can_be_brought_to_one(new_cluster):
    pdf = rows(400)
    df = placed(pdf, engine="tasks").chash.persist()
    assert df.chash.layout == Layout.create("k", PARTITIONS, FOUR, seed=df.chash.layout.seed)
    with pytest.raises(ValueError, match="distributed client"):
        df.chash.placement()
    assert len(df.chash.plan([*FOUR, "4"]).moves) == 4
    with Client(new_cluster(1)) as client:
        with pytest.warns(UserWarning, match="gives partitions to 1, 2, 3"):
            there = df.chash.persist()
        assert_right(there, pdf)
        there.chash.rebalance(progress=False)
        assert_on_owners(client, there)
