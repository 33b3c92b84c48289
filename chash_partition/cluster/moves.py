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

A target may be several workers, each of which shall hold a copy; the table holds for each.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dask.utils import format_bytes
from distributed.core import Status
from distributed.metrics import time

from chash_partition._dask import ActiveMemoryManagerExtension, ActiveMemoryManagerPolicy, Suggestion

# How many partitions may be on their way to one worker at a time, and from one, or how many bytes of small
# ones: bounds what either must hold beyond its own, also where the source has spilled them.
IN_FLIGHT, BYTES_IN_FLIGHT = 4, 64 * 2**20
# A worker that lost a request is asked again after this many seconds.
ASK_AGAIN = 5.0
# How often the scheduler looks whether copies have arrived, in seconds.
TICK = 0.01
# A worker may refuse a drop and report so a moment after; a move counts when it has stayed true
# for this many seconds.
SETTLED = 0.1
# How many partitions are looked at before other work of the scheduler has its turn.
AT_A_TIME = 1000


class BringToOwners(ActiveMemoryManagerPolicy):
    """Suggest copies onto each key's targets and drops elsewhere, until that is where it is.

    A copy is asked for only where there is room: what the target manages and what is coming to it
    must stay within its memory limit.

    Parameters
    ----------
    targets : addresses of the workers that shall hold each key, one or more

    Attributes
    ----------
    targets : of all keys that exist; one that is freed or cannot be computed is not moved
    open : of those not given up
    refused : why, for each key that was given up
    """

    __slots__ = ("asked", "frames", "halted", "open", "refused", "targets")

    def __init__(self, targets: Mapping[Any, tuple[str, ...]]):
        self.targets = dict(targets)
        self.open = dict(targets)
        self.frames = {frame for frame, _ in targets}
        self.asked: dict[tuple[Any, str], float] = {}
        self.refused: dict[Any, str] = {}
        self.halted: float | None = None

    def halt(self) -> None:
        """Ask for no more copies; those that are on their way may arrive."""
        self.halted = self.halted or time()

    def placed(self, key: Any) -> bool:
        ts = self.manager.scheduler.tasks.get(key)
        return ts is not None and {ws.address for ws in ts.who_has or ()} == {*self.targets[key]}

    def run(self) -> Iterator[Suggestion]:
        scheduler, now = self.manager.scheduler, time()
        coming: Counter[Any] = Counter()
        going: Counter[Any] = Counter()
        bytes_coming: Counter[Any] = Counter()
        bytes_going: Counter[Any] = Counter()

        def busy(ts: Any, n: int, nbytes: int) -> bool:
            return n >= IN_FLIGHT and nbytes + ts.nbytes > BYTES_IN_FLIGHT

        def on_its_way(key: Any, address: str) -> bool:
            return now - self.asked.get((key, address), -ASK_AGAIN) < ASK_AGAIN

        def count(ts: Any, ws: Any) -> None:
            coming[ws] += 1
            bytes_coming[ws] += ts.nbytes
            going.update(ts.who_has)
            bytes_going.update(dict.fromkeys(ts.who_has, ts.nbytes))

        for key, address in self.asked:
            ts, ws = scheduler.tasks.get(key), scheduler.workers.get(address)
            if ts is None or ws is None or not ts.who_has or ws in ts.who_has:
                continue
            if key in self.open and on_its_way(key, address):
                count(ts, ws)
        for key in list(self.open):
            addresses = self.open[key]
            ts, targets = scheduler.tasks.get(key), [scheduler.workers.get(a) for a in addresses]
            if ts is None or ts.state == "erred":
                del self.open[key], self.targets[key]
                continue
            if None in targets:
                self._refuse(key, f"worker {addresses[targets.index(None)]} has left")
                continue
            if ts.state != "memory" or not ts.who_has:  # being computed: wait
                if self.halted:
                    self._refuse(key, HALTED)
                continue
            missing = [ws for ws in targets if ws not in ts.who_has]
            if unfit := [ws for ws in missing if ws.status != Status.running]:
                self._refuse(key, f"worker {unfit[0].name} is {unfit[0].status.name}")
            elif self.halted and missing and not any(on_its_way(key, ws.address) for ws in missing):
                self._refuse(key, HALTED)
            elif missing:
                for ws in missing:
                    if self.halted or on_its_way(key, ws.address):
                        continue
                    if busy(ts, coming[ws], bytes_coming[ws]):
                        continue
                    if all(busy(ts, going[source], bytes_going[source]) for source in ts.who_has):
                        continue
                    if lacks_room(ws, ts, bytes_coming[ws]):
                        continue
                    self.asked[key, ws.address] = now
                    count(ts, ws)
                    yield Suggestion("replicate", ts, {ws})
            elif not self.is_awaited(key):
                for other in ts.who_has.difference(targets):
                    yield Suggestion("drop", ts, {other})

    def is_awaited(self, key: Any) -> bool:
        """Whether the same partition of another frame is still on its way.

        Until it is there too, the old owner has both, and a join of the two need fetch neither.
        """
        for frame in self.frames:
            addresses = self.open.get((frame, key[1]), ())
            ts = self.manager.scheduler.tasks.get((frame, key[1])) if addresses else None
            if ts is not None and ts.who_has and not {*addresses} <= {ws.address for ws in ts.who_has}:
                return True
        return False

    def _refuse(self, key: Any, reason: str) -> None:
        self.refused[key] = reason
        del self.open[key]


# Why a key that could have been moved was not.
HALTED = "the move was stopped"


def lacks_room(ws: Any, ts: Any, coming: int) -> bool:
    """Whether a worker's limit is too low for what it manages in memory, what is coming, and this task."""
    return bool(ws.memory_limit) and ws.memory.managed + coming + ts.nbytes > ws.memory_limit


async def bring_to_owners(
    scheduler: Any, move: BringToOwners, stall: float, progress: dict[str, Any]
) -> None:
    """Hold each key in memory on its targets and nowhere else.

    Parameters
    ----------
    scheduler : the scheduler this runs on
    move : its `targets` without its `refused` are at the end where they should be
    stall : seconds without any progress after which the rest is given up
    progress : filled with ``done`` and ``total`` (keys) as it goes
    """
    # A manager of its own: Dask's may be stopped, and runs every two seconds only.
    manager = ActiveMemoryManagerExtension(scheduler, {move}, register=False, start=False)
    progress.update(done=0, total=len(move.targets))
    last, settled = time(), None
    while move.open:
        began = time()
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
            if time() - last > stall or (move.halted and time() - move.halted > ASK_AGAIN):
                break
        # Of many partitions a look takes long: leave most of the time to the scheduler.
        await asyncio.sleep(max(TICK, 4 * (time() - began)))
    for key in move.open:
        if not move.placed(key):
            move.refused[key] = _why(scheduler, move, key, stall)


def _why(scheduler: Any, move: BringToOwners, key: Any, stall: float) -> str:
    addresses = move.targets[key]
    ts = scheduler.tasks.get(key)
    if ts is None or ts.state != "memory" or not ts.who_has:
        return f"it was still being computed after {stall:g} s without progress"
    if missing := [ws for a in addresses if (ws := scheduler.workers.get(a)) not in ts.who_has]:
        ws = missing[0]
        if ws is not None and lacks_room(ws, ts, 0):
            return (
                f"worker {ws.name} has no room for it: it manages {format_bytes(ws.memory.managed)} of "
                f"{format_bytes(ws.memory_limit)}, and the partition has {format_bytes(ts.nbytes)}"
            )
        return f"the copy did not arrive within {stall:g} s"
    if move.is_awaited(key):
        return "the same partition of another frame of the layout could not be moved"
    holders = sorted(str(ws.name) for ws in ts.who_has if ws.address not in addresses)
    return f"tasks kept a second copy in use on {', '.join(holders)} for {stall:g} s"
