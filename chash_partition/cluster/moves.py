"""Moving partitions between workers, on the scheduler, by the active memory manager.

A move is two suggestions: replicate onto the target and, once the scheduler knows that copy,
drop the others. The manager never drops a last copy, so at every instant a partition is
somewhere:

========================  ==========================================================
if a worker dies          then
========================  ==========================================================
the source, before copy   the partition is recomputed by Dask, then moved if need be
the source, after copy    the target has it: done
the target                nothing was dropped: the move is reported as not made
========================  ==========================================================
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from distributed.core import Status
from distributed.metrics import time

from chash_partition._dask import (
    ActiveMemoryManagerExtension,
    ActiveMemoryManagerPolicy,
    ReduceReplicas,
    Suggestion,
)

# How many partitions may be on their way to one worker at a time: bounds what its memory and
# its sources' must hold beyond their own.
IN_FLIGHT = 4
# A worker that lost a request is asked again after this many seconds.
ASK_AGAIN = 5.0
# How often the scheduler looks whether copies have arrived, in seconds.
TICK = 0.01
# A worker may refuse a drop and report so a moment after; a move counts when it has stayed true
# for this many seconds.
SETTLED = 0.1


class ReduceOtherReplicas(ReduceReplicas):
    """`ReduceReplicas`, leaving alone the keys that are being moved.

    It stands in for Dask's own while moves are made: that one cannot know which of two copies
    is to stay and would drop the new one.
    """

    __slots__ = ("moves", "stands_in_for")

    def __init__(self, stands_in_for: ReduceReplicas):
        self.stands_in_for = stands_in_for
        self.moves: list[BringToOwners] = []

    def run(self) -> Iterator[Suggestion]:
        for suggestion in super().run():
            if not any(suggestion.ts.key in move.targets for move in self.moves):
                yield suggestion


class BringToOwners(ActiveMemoryManagerPolicy):
    """Suggest copies onto each key's target and drops elsewhere, until that is where it is.

    Parameters
    ----------
    targets : address of the worker that shall hold each key

    Attributes
    ----------
    targets : of all keys that exist; one that is freed or cannot be computed is not moved
    open : of those not given up
    refused : why, for each key that was given up
    """

    __slots__ = ("asked", "open", "refused", "targets")

    def __init__(self, targets: Mapping[Any, str]):
        self.targets = dict(targets)
        self.open = dict(targets)
        self.asked: dict[Any, float] = {}
        self.refused: dict[Any, str] = {}

    def placed(self, key: Any) -> bool:
        ts = self.manager.scheduler.tasks.get(key)
        return ts is not None and {ws.address for ws in ts.who_has or ()} == {self.targets[key]}

    def run(self) -> Iterator[Suggestion]:
        scheduler, now = self.manager.scheduler, time()
        coming: Counter[str] = Counter()
        for key, target in self.open.items():
            ts, ws = scheduler.tasks.get(key), scheduler.workers.get(target)
            holders = (ts.who_has or set()) if ts is not None else set()
            if key in self.asked and now - self.asked[key] < ASK_AGAIN and ws not in holders:
                coming[target] += 1
        for key in list(self.open):
            target = self.open[key]
            ts, ws = scheduler.tasks.get(key), scheduler.workers.get(target)
            if ts is None or ts.state == "erred":
                del self.open[key], self.targets[key]
            elif ws is None:
                self._refuse(key, f"worker {target} has left")
            elif ts.state != "memory" or not ts.who_has:
                continue  # being computed: wait
            elif ws not in ts.who_has:
                if ws.status != Status.running:
                    self._refuse(key, f"worker {ws.name} is {ws.status.name}")
                elif coming[target] < IN_FLIGHT and now - self.asked.get(key, 0) >= ASK_AGAIN:
                    self.asked[key] = now
                    coming[target] += 1
                    yield Suggestion("replicate", ts, {ws})
            elif len(ts.who_has) > 1:
                for other in ts.who_has - {ws}:
                    yield Suggestion("drop", ts, {other})

    def _refuse(self, key: Any, reason: str) -> None:
        self.refused[key] = reason
        del self.open[key]


@contextmanager
def _replicas_left_alone(scheduler: Any, move: BringToOwners) -> Iterator[None]:
    manager = scheduler.extensions.get("amm")
    for policy in [p for p in manager.policies if type(p) is ReduceReplicas] if manager else []:
        manager.policies.remove(policy)
        manager.add_policy(ReduceOtherReplicas(policy))
    stand_ins = [p for p in manager.policies if type(p) is ReduceOtherReplicas] if manager else []
    for stand_in in stand_ins:
        stand_in.moves.append(move)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            stand_in.moves.remove(move)
            if not stand_in.moves:
                manager.policies.discard(stand_in)
                manager.add_policy(stand_in.stands_in_for)


async def bring_to_owners(
    scheduler: Any, targets: Mapping[Any, str], stall: float, progress: dict[str, Any]
) -> BringToOwners:
    """Hold each key in memory on its target and nowhere else.

    Parameters
    ----------
    scheduler : the scheduler this runs on
    targets : address of the worker that shall hold each key
    stall : seconds without any progress after which the rest is given up
    progress : filled with ``done`` and ``total`` (keys) as it goes

    Returns
    -------
    BringToOwners
        Its `targets` without its `refused` are where they should be.
    """
    move = BringToOwners(targets)
    # A manager of its own: Dask's may be stopped, and runs every two seconds only.
    manager = ActiveMemoryManagerExtension(scheduler, {move}, register=False, start=False)
    progress.update(done=0, total=len(targets))
    last, settled = time(), None
    with _replicas_left_alone(scheduler, move):
        while move.open:
            manager.run_once()
            done = sum(map(move.placed, move.targets))
            if done != progress["done"]:
                last = time()
            progress.update(done=done, total=len(move.targets))
            if done == len(move.targets) - len(move.refused):
                settled = settled or time()
                if time() - settled >= SETTLED:
                    break
            else:
                settled = None
                if time() - last > stall:
                    break
            await asyncio.sleep(TICK)
    for key in move.open:
        if not move.placed(key):
            move.refused[key] = _why(scheduler, key, targets[key], stall)
    return move


def _why(scheduler: Any, key: Any, target: str, stall: float) -> str:
    ts = scheduler.tasks.get(key)
    if ts is None or ts.state != "memory":
        return f"it was still being computed after {stall:g} s without progress"
    if scheduler.workers.get(target) in ts.who_has:
        holders = sorted(str(ws.name) for ws in ts.who_has if ws.address != target)
        return f"tasks kept a second copy in use on {', '.join(holders)} for {stall:g} s"
    return f"the copy did not arrive within {stall:g} s"
