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
from collections.abc import Collection, Iterator, Mapping
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

    It stands in for Dask's own while a move is made: that one cannot know which of two copies
    is to stay and would drop the new one.
    """

    __slots__ = ("moving",)

    def __init__(self, moving: Collection[Any]):
        self.moving = moving

    def run(self) -> Iterator[Suggestion]:
        for suggestion in super().run():
            if suggestion.ts.key not in self.moving:
                yield suggestion


class BringToOwners(ActiveMemoryManagerPolicy):
    """Suggest copies onto each key's target and drops elsewhere, until that is where it is.

    Parameters
    ----------
    targets : address of the worker that shall hold each key
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
            if ts is None:
                self._refuse(key, "it was released")
            elif ts.state == "erred":
                self._refuse(key, "computing it failed")
            elif ws is None:
                self._refuse(key, f"worker {target} has left")
            elif ts.state != "memory" or not ts.who_has:
                continue  # being recomputed: wait
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
def _replicas_left_alone(scheduler: Any, keys: Collection[Any]) -> Iterator[None]:
    manager = scheduler.extensions.get("amm")
    own = [policy for policy in manager.policies if type(policy) is ReduceReplicas] if manager else []
    stand_ins = [ReduceOtherReplicas(keys) for _ in own]
    for policy, stand_in in zip(own, stand_ins, strict=True):
        manager.policies.remove(policy)
        manager.add_policy(stand_in)
    try:
        yield
    finally:
        for policy, stand_in in zip(own, stand_ins, strict=True):
            manager.policies.discard(stand_in)
            manager.add_policy(policy)


async def bring_to_owners(
    scheduler: Any, targets: Mapping[Any, str], stall: float, progress: dict[str, Any]
) -> dict[Any, str]:
    """Hold each key in memory on its target and nowhere else.

    Parameters
    ----------
    scheduler : the scheduler this runs on
    targets : address of the worker that shall hold each key
    stall : seconds without any progress after which the rest is given up
    progress : filled with ``done`` and ``total`` (keys) as it goes

    Returns
    -------
    dict
        Why, for each key that is not where it should be.
    """
    policy = BringToOwners(targets)
    # A manager of its own: Dask's may be stopped, and runs every two seconds only.
    manager = ActiveMemoryManagerExtension(scheduler, {policy}, register=False, start=False)
    progress.update(done=0, total=len(targets))
    last, settled = time(), None
    with _replicas_left_alone(scheduler, policy.targets.keys()):
        while policy.open:
            manager.run_once()
            done = sum(map(policy.placed, policy.targets))
            if done != progress["done"]:
                progress["done"], last = done, time()
            if done == len(policy.targets) - len(policy.refused):
                settled = settled or time()
                if time() - settled >= SETTLED:
                    break
            else:
                settled = None
                if time() - last > stall:
                    break
            await asyncio.sleep(TICK)
    for key in policy.open:
        if not policy.placed(key):
            policy.refused[key] = _why(scheduler, key, targets[key], stall)
    return policy.refused


def _why(scheduler: Any, key: Any, target: str, stall: float) -> str:
    ts = scheduler.tasks.get(key)
    if ts is None or ts.state != "memory":
        return f"it was still being computed after {stall:g} s without progress"
    if scheduler.workers.get(target) in ts.who_has:
        holders = sorted(str(ws.name) for ws in ts.who_has if ws.address != target)
        return f"tasks kept a second copy in use on {', '.join(holders)} for {stall:g} s"
    return f"the copy did not arrive within {stall:g} s"
