"""Workers are killed, frozen and come back, at every point of a move: nothing is lost, and all ends in place.

Each run is one seed: it says who dies, and when.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing, nullcontext

import dask.config
import pytest
from clusters import (
    FOUR,
    MORTALS,
    SETTINGS,
    assert_on_owners,
    assert_right,
    holders,
    keys_of,
    kill,
    local_cluster,
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

# About 5 s each, most of which nannies need to start workers again.
RUNS, LONG_RUNS = 25, 100


@pytest.fixture(scope="module")
def victims() -> Iterator[Client]:
    """A cluster whose tasks may see any number of workers die."""
    settings = {
        **SETTINGS,
        "distributed.scheduler.allowed-failures": 50,
        # LocalCluster closes the nanny of a name that is away 15 s after it was away before.
        "distributed.deploy.lost-worker-timeout": "1h",
    }
    with dask.config.set(settings), local_cluster(MORTALS) as cluster, Client(cluster) as client:
        yield client


def managed(client: Client) -> object:
    """What manages memory on the scheduler, its plugins and our tasks there."""

    def look(dask_scheduler):
        import asyncio

        manager = dask_scheduler.extensions["amm"]
        return (
            sorted((type(policy).__name__, id(policy)) for policy in manager.policies),
            manager.running,
            sorted(dask_scheduler.plugins),
            [repr(task) for task in asyncio.all_tasks() if "chash" in repr(task)],
        )

    return client.run_on_scheduler(look)


def lost_though_alive(client: Client, since: float, frame) -> set[object]:
    """Partitions that were given up though no worker died that alone had them."""
    keys = set(keys_of(frame))

    def released(dask_scheduler):
        log = dask_scheduler.transition_log
        return {t.key for t in log if t.timestamp >= since and t.start == "memory" and t.key in keys}

    died = [e for _, e in client.get_events("all") if e["action"] == "remove-worker"]
    return client.run_on_scheduler(released) - {key for e in died for key in e["lost-computed-tasks"]}


def moving(follows) -> bool:
    return follows.status().state == "moving"


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
    client.restart_workers([workers(client)[name] for name in names])


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


CLIENT = """
import sys
sys.path[:0] = sys.argv[2:]
from distributed import Client
import chash_partition
if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        client.get_dataset("chaos").chash.rebalance(progress=False)
"""


def client_dies(client, df, rng):
    """One that waits for the move that it asked for; another goes on."""
    plan = df.chash.plan()
    client.publish_dataset(chaos=df)
    try:
        with (
            partitions_in_use(client, df, [rng.choice(plan.moves).partition]),
            subprocess.Popen([sys.executable, "-c", CLIENT, client.scheduler.address, *sys.path]) as process,
        ):
            until(lambda: being_moved(client))
            process.kill()
    finally:
        client.unpublish_dataset("chaos")
    return df.chash.autobalance()


def being_moved(client: Client) -> bool:
    return client.run_on_scheduler(
        lambda dask_scheduler: any(
            entry.move is not None for entry in dask_scheduler.plugins["chash"].layouts.values()
        )
    )


def another_cluster(client, df, rng):
    """Of this process; a worker of each dies, and then all of the other."""
    pdf = rows(200)
    with (
        dask.config.set(SETTINGS),
        local_cluster(3) as cluster,
        Client(cluster, set_as_default=False) as other,
    ):
        with other.as_current():
            there = placed(pdf, nodes=["0"], npartitions=8).chash.persist()
        wait(there)
        follows, others = df.chash.autobalance(), there.chash.autobalance()
        kill(client, rng.choice(FOUR))
        kill(other, "1")
        settled(others, "0", "1", "2")
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


def run(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    scene, *arguments = SCENES[seed % len(SCENES)]
    until(lambda: workers(client).keys() == {*FOUR})
    pdf = rows(400)
    start = FOUR[: rng.choice([2, 3])]
    settings = {"chash-partition.autobalance.settle": f"{rng.choice([20, 100, 300])}ms"}
    with dask.config.set(settings):
        df = placed(pdf, nodes=start, npartitions=16, engine=rng.choice(["p2p", "tasks"])).chash.persist()
        wait(df)
        since, around = now(client), managed(client)
        follows = scene(client, df, rng, *arguments)
        assert_right(df, pdf)
        until(lambda: workers(client).keys() == {*FOUR})
        settled(follows, n=MORTALS)
        # What was lost and is computed again is there before it is looked at.
        wait(df)
        settled(follows)
        assert follows.status().out_of_place == 0
        follows.stop()
    assert managed(client) == around
    until(lambda: all(len(held) == 1 for held in holders(client, df)))
    assert set(df.chash.layout.counts().values()) == {4}
    assert lost_though_alive(client, since, df) == set()
    assert_right(df, pdf)


@pytest.mark.parametrize("seed", range(RUNS))
def test_chaos(victims, seed):
    run(victims, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(RUNS, RUNS + LONG_RUNS))
def test_more_chaos(victims, seed):
    run(victims, seed)


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_the_cluster_is_restarted(victims, when):
    """All frames are gone then, and nothing of ours is left."""
    pdf = rows(400)
    lazy = placed(pdf, nodes=FOUR[:2], npartitions=16)
    df = lazy.chash.persist()
    wait(df)
    around = managed(victims)
    follows = df.chash.autobalance()
    if when == "during":
        with stopped(victims, "3"):
            until(lambda: moving(follows))
            victims.restart(timeout=60, wait_for_workers=False)
    elif when == "after":
        settled(follows)
    if when != "during":
        victims.restart(timeout=60)
    assert follows.status().state == "ended"
    assert managed(victims) == around
    until(lambda: workers(victims).keys() == {*FOUR})
    again = lazy.chash.persist()
    with again.chash.autobalance() as follows:
        settled(follows, n=MORTALS)
        assert_on_owners(victims, again)
        assert_right(again, pdf)
    assert managed(victims) == around


def dask_command(stack: ExitStack, *arguments: str) -> subprocess.Popen[bytes]:
    """`dask ...` from the command line, until the stack is closed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


@pytest.mark.parametrize(
    "when",
    [pytest.param("before", marks=pytest.mark.long), "during", pytest.param("after", marks=pytest.mark.long)],
)
def test_the_scheduler_dies(when):
    """All is gone then, and said so; the next one begins anew."""
    pdf = rows(400)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = f"tcp://127.0.0.1:{port}"

    def start(stack: ExitStack) -> list[subprocess.Popen[bytes]]:
        scheduler = ("scheduler", "--host", "127.0.0.1", "--port", port)
        worker = ("worker", address, "--no-nanny", "--nthreads", "1", "--name")
        return [
            dask_command(stack, *scheduler),
            *(dask_command(stack, *worker, name) for name in FOUR[:3]),
        ]

    with ExitStack() as stack, dask.config.set({"chash-partition.autobalance.settle": "100ms"}):
        processes = start(stack)
        client = stack.enter_context(Client(address, timeout=30))
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
            processes[0].kill()
            processes[0].wait()
        for process in processes[1:]:
            process.terminate()
            process.wait(30)
        start(stack)
        until(lambda: client.status == "running")
        client.wait_for_workers(3)
        assert follows.status().state == "ended"
        with pytest.raises((RuntimeError, CancelledError)):
            df.chash.rebalance(progress=False)
        again = lazy.chash.persist()
        with again.chash.autobalance() as follows:
            settled(follows, n=3)
            assert_on_owners(client, again)
            assert_right(again, pdf)
