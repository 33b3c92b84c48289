"""Workers are killed, frozen and come back, at every point of a move: nothing is lost, and all ends in place.

Each run is one seed: it says who dies, and when.
"""

from __future__ import annotations

import random
import socket
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing, nullcontext
from multiprocessing.process import BaseProcess

import dask.config
import pytest
from clusters import (
    FOUR,
    MORTALS,
    TIMEOUT,
    assert_on_owners,
    assert_right,
    being_moved,
    forked_dask,
    forked_process,
    holders,
    keys_of,
    kill,
    local_cluster,
    management,
    now,
    partitions_in_use,
    placed,
    rows,
    settled,
    stopped,
    until,
    workers,
)
from distributed import Client, wait
from tiers import thorough

# How many seeds `make test` and `make test-all` run together, and how many more `make test-long` does.
RUNS, LONG_RUNS = 25, 125


def lost_though_alive(client: Client, since: float, frame) -> set[object]:
    """Partitions that were given up though no worker died that alone had them."""
    keys = set(keys_of(frame))

    def released(dask_scheduler):
        log = dask_scheduler.transition_log
        return {t.key for t in log if t.timestamp >= since and t.start == "memory" and t.key in keys}

    died = [e for _, e in client.get_events("all") if e["action"] == "remove-worker"]
    return client.run_on_scheduler(released) - {key for e in died for key in e["lost-computed-tasks"]}


def moving(follows) -> bool:
    """Or has moved: with second copies a move may have ended before it is asked."""
    status = follows.status()
    return status.state == "moving" or status.moves > 0


def actors(plan) -> dict[str, str]:
    """A worker that gives, one that gets, and one that does neither."""
    move = plan.moves[0]
    sources, targets = {m.source for m in plan.moves}, {m.target for m in plan.moves}
    others = sorted(set(FOUR) - sources - targets)
    # Where all give or get, one that has nothing to do with the first move.
    bystander = others[0] if others else next(n for n in FOUR if n not in (move.source, move.target))
    return {"source": move.source, "target": move.target, "bystander": bystander}


def restart(client: Client, *names: str) -> None:
    """Have nannies start these workers again."""
    client.restart_workers([workers(client)[name] for name in names], timeout=TIMEOUT)


def death(client, df, rng, end, who, when):
    """One worker ends before, while or after partitions move."""
    plan = df.chash.plan()
    victim = actors(plan)[who]
    follows = df.chash.autobalance(replicas=rng.choice([1, 1, 2]))
    if when == "before":
        end(client, victim)
    elif when == "during":
        with partitions_in_use(client, df, [rng.choice(plan.moves).partition]):
            until(lambda: moving(follows))
            end(client, victim)
    else:
        until(lambda: follows.status().moves >= len(plan.moves))
        end(client, victim)
    return follows


def two_deaths(client, df, rng):
    """Within the time to settle."""
    follows = df.chash.autobalance()
    kill(client, *rng.sample(FOUR, 2))
    return follows


def death_and_join(client, df, rng):
    """One dies at the moment that another joins."""
    follows = df.chash.autobalance()
    first, second = rng.sample(FOUR, 2)
    kill(client, first)
    until(lambda: first in workers(client))
    kill(client, second)
    return follows


def frozen(client, df, rng):
    """A worker does nothing for longer than the others need for all their moves."""
    plan = df.chash.plan()
    who = actors(plan)[rng.choice(["source", "target", "bystander"])]
    moves = [m for m in plan.moves if who not in (m.source, m.target)]
    with stopped(client, who):
        follows = df.chash.autobalance()
        until(lambda: moving(follows) or follows.status().state == "settled")

        def made() -> bool:
            held = holders(client, df)
            return all(held[m.partition] == [m.target] for m in moves)

        until(made)
    return follows


def client_dies(client, df, rng):
    """One that waits for the move that it asked for; another goes on."""
    plan = df.chash.plan()
    address = client.scheduler.address

    def rebalance() -> None:
        with Client(address) as client:
            client.get_dataset("chaos").chash.rebalance(progress=False)

    client.publish_dataset(chaos=df)
    try:
        with (
            partitions_in_use(client, df, [rng.choice(plan.moves).partition]),
            forked_process(rebalance),
        ):
            until(lambda: being_moved(client))
    finally:
        client.unpublish_dataset("chaos")
    return df.chash.autobalance()


def another_cluster(client, df, rng):
    """Of this process; a worker of each dies, and then all of the other."""
    pdf = rows(200)
    with local_cluster(3) as cluster, Client(cluster, set_as_default=False) as other:
        with other.as_current():
            there = placed(pdf, nodes=["0"], npartitions=8).chash.persist()
        wait(there)
        follows, others = df.chash.autobalance(), there.chash.autobalance()
        kill(client, rng.choice(FOUR))
        kill(other, "1")
        settled(others, "0", "1", "2", frames=[there])
        assert_on_owners(other, there)
        assert_right(there, pdf)
    return follows


SCENES = [
    *[
        (death, kill, who, when)
        for who in ("source", "target", "bystander")
        for when in ("before", "during", "after")
    ],
    *[(death, restart, who, "during") for who in ("source", "target", "bystander")],
    (client_dies,),
    (another_cluster,),
    (two_deaths,),
    (death_and_join,),
    (frozen,),
]


# Of each scene one, and of the deaths one of each worker and of each moment.
QUICK = [4, 9, 12, 15, 16]


@pytest.mark.parametrize(
    "seed",
    [
        *QUICK,
        *thorough(*sorted({*range(RUNS)} - {*QUICK})),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(RUNS, RUNS + LONG_RUNS)),
    ],
)
def test_workers_die_freeze_and_return_and_nothing_is_lost(mortal, seed):
    rng = random.Random(seed)
    scene, *arguments = SCENES[seed % len(SCENES)]
    pdf = rows(400)
    start = FOUR[: rng.choice([2, 3])]
    settings = {"chash-partition.autobalance.settle": f"{rng.choice([20, 100, 300])}ms"}
    with dask.config.set(settings):
        df = placed(pdf, nodes=start, npartitions=16, engine=rng.choice(["p2p", "tasks"])).chash.persist()
        wait(df)
        since, around = now(mortal), management(mortal)
        follows = scene(mortal, df, rng, *arguments)
        assert_right(df, pdf)
        until(lambda: workers(mortal).keys() == {*FOUR})
        settled(follows, n=MORTALS, frames=[df])
        assert follows.status().out_of_place == 0
        follows.stop()
    until(lambda: management(mortal) == around)
    until(lambda: all(len(held) == 1 for held in holders(mortal, df)))
    assert set(df.chash.layout.counts().values()) == {4}
    assert lost_though_alive(mortal, since, df) == set()
    assert_right(df, pdf)


@pytest.mark.parametrize("when", ["after", *thorough("before", "during")])
def test_nothing_follows_a_cluster_that_is_restarted(mortal, when):
    """All frames are gone then, and nothing of ours is left; those that are persisted anew are followed."""
    pdf = rows(400)
    lazy = placed(pdf, nodes=FOUR[:2], npartitions=16)
    df = lazy.chash.persist()
    wait(df)
    around = management(mortal)
    follows = df.chash.autobalance()
    if when == "during":
        with stopped(mortal, "3"):
            until(lambda: moving(follows))
            mortal.restart(timeout=TIMEOUT, wait_for_workers=False)
    elif when == "after":
        settled(follows)
    if when != "during":
        mortal.restart(timeout=TIMEOUT)
    assert follows.status().state == "ended"
    until(lambda: management(mortal) == around)
    until(lambda: workers(mortal).keys() == {*FOUR})
    again = lazy.chash.persist()
    with again.chash.autobalance() as follows:
        settled(follows, n=MORTALS, frames=[again])
        assert_on_owners(mortal, again)
        assert_right(again, pdf)
    until(lambda: management(mortal) == around)


@pytest.mark.parametrize("when", ["during", *thorough("before", "after")])
def test_nothing_is_followed_when_the_scheduler_has_died(processes, when):
    """All is gone then, and said so; the next one begins anew."""
    pdf = rows(400)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"

    def start() -> list[BaseProcess]:
        scheduler = ("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        worker = ("worker", address, "--no-nanny", "--no-dashboard", "--nthreads", 1, "--name")
        return [
            processes.enter_context(forked_dask(*command))
            for command in (scheduler, *((*worker, name) for name in FOUR[:3]))
        ]

    with ExitStack() as stack, dask.config.set({"chash-partition.autobalance.settle": "100ms"}):
        started = start()
        client = stack.enter_context(Client(address, timeout=TIMEOUT))
        client.wait_for_workers(3)
        lazy = placed(pdf, nodes=["0"], npartitions=12)
        df = lazy.chash.persist()
        wait(df)
        follows = df.chash.autobalance()
        if when == "after":
            until(lambda: follows.status().moves == 8)
            settled(follows)
        with stopped(client, "2") if when == "during" else nullcontext():
            if when == "during":
                until(lambda: moving(follows))
            started[0].kill()
            started[0].join()
        for process in started[1:]:
            process.terminate()
            process.join()
        start()
        until(lambda: client.status == "running")
        client.wait_for_workers(3)
        assert follows.status().state == "ended"
        with pytest.raises((RuntimeError, CancelledError)):
            df.chash.rebalance(progress=False)
        again = lazy.chash.persist()
        with again.chash.autobalance() as follows:
            settled(follows, n=3, frames=[again])
            assert_on_owners(client, again)
            assert_right(again, pdf)
