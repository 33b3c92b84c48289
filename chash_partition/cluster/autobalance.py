"""A layout that follows the workers of its cluster, on the scheduler.

One task a layout does all moves: it waits until the workers have stayed the same for a while
(not for workers that retire), plans for those that are here from where the partitions are, brings
them to their owners, and begins anew when something has changed. Everything else only wakes that
task, or keeps others from moving what it will move:

=====================  ==========================================================================
`transition`           a lost partition is computed on the worker that will own it, if that is free
`update_graph`         tasks of partitions whose worker retires run on the one that will own them: Dask
                       runs nothing where they are
`LeaveToOwners`        workers that retire wait for the task to take their partitions, rather than
                       send them to the emptiest worker; second copies nobody needs are dropped
`valid_workers_...`    workers that are sending or receiving partitions are not closed by adaptive
=====================  ==========================================================================

What happens when a worker dies:

=======================  ========================================================================
while waiting, planning  the wait begins anew; a plan for workers that are not here is not begun
while moving             copies that are on their way may arrive, no more are asked for; then the
                         wait begins anew. See `chash_partition.cluster.moves` for each partition
while it retires         as any death: Dask computes again what only that worker had
=======================  ========================================================================

All of it is on the scheduler and dies with it, as the frames do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from chash_partition._dask import ActiveMemoryManagerPolicy, Suggestion
from chash_partition.cluster import metrics
from chash_partition.cluster.moves import AT_A_TIME, HALTED, TICK
from chash_partition.layout import Layout
from chash_partition.planner import RebalancePlan, plan_rebalance

if TYPE_CHECKING:
    from chash_partition.cluster.plugin import ChashPlugin, Registered

logger = logging.getLogger(__name__)

# A worker of this memory weighs 1, with weights="memory".
MEMORY_UNIT = 4 * 2**30
# A plan that takes longer than this many seconds is made in a thread only.
BLOCKING = 0.05
# What could not be moved is tried again after the time to settle, doubled each time, up to this.
MOST_PATIENCE = 60.0


class Autobalance(SchedulerPlugin):
    """Lets one layout follow the workers.

    Attributes
    ----------
    state : "settling", "planning", "moving", "settled", "waiting" (what could not be moved is tried
        again later), "paused" or "ended"
    moves, nbytes, failures : partitions and bytes moved since it began, and moves given up
    out_of_place : partitions that are not on their owner, as of the last look
    plan_seconds : that the last plan took
    """

    # Otherwise set by `begin`: weights, replicas, settle, stall.

    def __init__(self, chash: ChashPlugin, entry: Registered):
        self.chash, self.entry, self.scheduler = chash, entry, chash.scheduler
        self.name = f"chash-autobalance-{entry.layout.id}"
        self.state = "settling"
        self.moves = self.nbytes = self.failures = self.out_of_place = 0
        self.plan_seconds = 0.0
        self.paused = False
        self._task: asyncio.Task[None] | None = None
        self._undo = ExitStack()
        self._changed = asyncio.Event()
        self._last_change: float = 0
        # Name and status of each worker, by address, when last looked.
        self._workers: dict[str, tuple[str, Status]] = {}
        # The weight of each node that was ever here: one that returns has it again.
        self._known: dict[str, Any] = dict(entry.layout.weights)
        self._unnamed: set[str] = set()
        # Where partitions are computed that were lost since the last plan.
        self._heirs: Layout | None = None
        self._lost = 0
        # Names of the workers of second copies, by partition.
        self._seconds: list[str | None] = []
        # Partitions that this could not move, left to Dask where their worker retires.
        self._given_up: set[Any] = set()
        # Restrictions of tasks before this changed them.
        self._restricted: dict[Any, tuple[Any, bool]] = {}

    # Asked by clients, through `ChashPlugin`

    def begin(self, weights: Any, replicas: int, settle: float, stall: float) -> dict[str, Any]:
        """Begin, or go on with new settings.

        Parameters
        ----------
        weights : None for those of the layout, "memory", "threads", or a mapping of name to weight
        replicas : copies of each partition, 1 or 2
        settle : seconds that the workers must have stayed the same
        stall : seconds without progress after which a partition is given up, and tried again later
        """
        limitless = sorted(str(ws.name) for ws in self.scheduler.workers.values() if not ws.memory_limit)
        if weights == "memory" and limitless:
            if self._task is None:
                self.entry.autobalance = None
            return {
                "error": f"workers {', '.join(limitless)} have no memory limit to weigh them by: "
                'start them with one, or say weights="threads" or {name: weight}'
            }
        if isinstance(weights, Mapping):
            weights = {name: Fraction(weight) for name, weight in weights.items()}
        self.weights, self.replicas, self.settle, self.stall = weights, replicas, settle, stall
        if self._task is None:
            policy = LeaveToOwners(self)
            self._undo.callback(policy.remove)
            policy.add(self.scheduler)
            self.scheduler.add_plugin(self, name=self.name)
            self._undo.callback(self.scheduler.remove_plugin, self.name)
            metrics.add(self)
            self._undo.callback(metrics.remove, self)
            self._task = asyncio.create_task(self._follow(), name=self.name)
            self._task.add_done_callback(self._ended)
            self.chash.log("autobalance-start", self.entry, replicas=replicas)
        self.look()
        self.look_at_workers()
        return {"unnamed": sorted(self._unnamed)}

    def moved_by_client(self) -> None:
        """Go on from what a client's plan has made, with its weights."""
        self._known.update(self.entry.layout.weights)
        self.look()

    def seconds_of(self, layout: Layout) -> list[str | None]:
        """Who shall hold the second copies from now on."""
        self._seconds = second_copies(layout, self.replicas)
        return self._seconds

    def status(self) -> dict[str, Any]:
        self.look_at_workers()
        return {
            "state": self.state,
            "workers": sorted(self._nodes()),
            "version": self.entry.layout.version,
            **{name: getattr(self, name) for name in metrics.NAMES},
        }

    async def pause(self, paused: bool) -> None:
        """Move nothing until told otherwise; what is on its way may arrive."""
        self.paused = paused
        if paused:
            await self._stand_still()
        self.state = "paused" if paused else "settling"
        self.look()

    async def stop(self) -> None:
        """End, once what is on its way has arrived."""
        self.paused = True
        await self._stand_still()
        present, layout = self.chash.workers(), self.entry.layout
        owners = {layout.nodes[i] for i in set(layout.assignment.tolist())}
        if self.replicas > 1 and owners <= present.keys():
            # Left to Dask, any of the two copies would go.
            async with self.entry.lock:
                await self.chash.carry_out(self.entry, layout, present, self.stall)
        self.end("stopped")

    async def _stand_still(self) -> None:
        while self.state == "moving":
            if self.entry.move is not None:
                self.entry.move.halt()
            await asyncio.sleep(TICK)

    def end(self, reason: str) -> None:
        """Leave nothing behind on the scheduler."""
        if self.state == "ended":
            return
        self.state = "ended"
        self._undo.close()
        for key, (restrictions, loose) in self._restricted.items():
            if (ts := self.scheduler.tasks.get(key)) is not None:
                ts.worker_restrictions, ts.loose_restrictions = restrictions, loose
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self.entry.autobalance = None
        self.chash.log("autobalance-end", self.entry, reason=reason)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without its task it would keep Dask from moving what retiring workers hold, and move nothing."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("autobalance of layout %s has failed", self.entry.layout.id, exc_info=error)
            self.end(f"it failed: {error!r}")

    # What wakes the task

    def look(self) -> None:
        """Look, when the workers have settled, whether all partitions are in place."""
        if self.state in ("settled", "waiting"):
            self.state = "settling"
        self._changed.set()

    def look_at_workers(self) -> None:
        workers = {ws.address: (str(ws.name), ws.status) for ws in self.scheduler.workers.values()}
        if workers == self._workers:
            return
        # Who retires does not wait: its tasks fetch partitions from it to anywhere until they have left.
        leaving = {worker for worker in workers.values() if worker[1] == Status.closing_gracefully}
        hurry = not leaving <= {*self._workers.values()}
        self._workers = workers
        for name in sorted(({*workers} & {name for name, _ in workers.values()}) - self._unnamed):
            self._unnamed.add(name)
            logger.warning(
                "Worker %s was started without a name: after a restart it is another node to the layout, and "
                "gets other partitions. Start it with `dask worker --name ...`.",
                name,
            )
            self.chash.log("unnamed-worker", self.entry, worker=name)
        self._last_change = 0 if hurry else time()
        self._given_up.clear()
        self._send_along()
        if self.state == "moving" and self.entry.move is not None:
            self.entry.move.halt()
        self.look()

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.look_at_workers()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        if self._lost:
            logger.warning(
                "Worker %s left with %d partitions that only it held; they are computed again. Where it was "
                "scaled down: `cluster.scale(n)` retires nothing, so say `df.chash.retire(names)` and then "
                "`cluster.scale_down(names)`. What crashes, costs less with `autobalance(replicas=2)`.",
                self._workers.get(worker, (worker,))[0],
                self._lost,
            )
            name = self._workers.get(worker, (worker,))[0]
            self.chash.log("lost", self.entry, worker=name, partitions=self._lost)
            self._lost = 0
        self.look_at_workers()

    def update_graph(self, scheduler: Any, **kwargs: Any) -> None:
        self._send_along()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "forgotten":
            self._restricted.pop(key, None)
        if key not in self.entry:
            return
        if start == "memory" and finish == "released":
            self._lose(key)
        elif finish == "memory":
            ws = self.scheduler.workers.get(kwargs.get("worker"))
            if ws is None or str(ws.name) != self.entry.layout.owner_of(key[1]) or self.replicas > 1:
                self.look()
        elif finish == "forgotten" and key[1] == 0:
            self.look()

    def _lose(self, key: Any) -> None:
        """Have a lost partition computed by the worker that will own it; another may, if that leaves."""
        ts = self.scheduler.tasks[key]
        if not ts.who_wants and not ts.waiters:
            return  # nobody wants it any more
        self._lost += 1
        self._run_by_heir([(ts, key[1])])

    def _send_along(self) -> None:
        """Have tasks that wait for partitions of workers that retire fetch them to where they will be."""
        self._run_by_heir(
            [
                (task, ts.key[1])
                for ws in self.scheduler.workers.values()
                if ws.status == Status.closing_gracefully
                for ts in ws.has_what
                if ts.key in self.entry and not ts.who_has & self.scheduler.running
                for task in ts.dependents
                if task.state in ("released", "waiting") and not task.worker_restrictions
            ]
        )

    def _run_by_heir(self, tasks: list[tuple[Any, int]]) -> None:
        """Have tasks run on the worker that will own a partition; another may, if that leaves."""
        if not tasks or self.paused or self.plan_seconds > BLOCKING or not (nodes := self._nodes()):
            return
        if self._heirs is None or self._heirs.weights.keys() != nodes.keys():
            self._heirs = plan_rebalance(self._heirs or self.entry.goal or self.entry.layout, nodes).after
        addresses = self.chash.workers()
        for ts, p in tasks:
            self._restricted.setdefault(ts.key, (ts.worker_restrictions, ts.loose_restrictions))
            ts.worker_restrictions, ts.loose_restrictions = {addresses[self._heirs.owner_of(p)]}, True

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        """All but those that partitions are moving from or to."""
        busy: set[Any] = set()
        if self.entry.move is not None:
            for key, addresses in self.entry.move.open.items():
                busy.update(addresses)
                if (ts := scheduler.tasks.get(key)) is not None:
                    busy.update(ws.address for ws in ts.who_has or ())
        return [ws for ws in workers if ws.address not in busy]

    # The task

    async def _follow(self) -> None:
        tries = 0
        while True:
            patience = min(max(self.settle, TICK) * 2 ** min(tries, 16), MOST_PATIENCE) if tries else None
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), patience)
            self.look_at_workers()
            while (wait := self._last_change + self.settle - time()) > 0:
                self.state = "paused" if self.paused else "settling"
                await asyncio.sleep(min(wait, 0.1))  # a worker that retires ends it
            self._changed.clear()
            if self.paused:
                self.state, tries = "paused", 0
                continue
            if self.chash.live(self.entry.layout.id) is None:
                self.end("no frame of the layout is left")
                return
            async with self.entry.lock:
                try:
                    done = await self._balance()
                except Exception as error:
                    done = False
                    self.failures += 1
                    self._give_up(range(self.entry.layout.npartitions))
                    logger.exception(
                        "autobalance of layout %s failed; it is tried again", self.entry.layout.id
                    )
                    self.chash.log("autobalance-failed", self.entry, error=repr(error))
            changed = self._changed.is_set()
            tries = 0 if done or changed else tries + 1
            self.state = "settling" if changed else "settled" if done else "waiting"

    async def _balance(self) -> bool:
        """Plan and move; whether all partitions are in place then."""
        self.state = "planning"
        nodes, present = self._nodes(), self.chash.workers()
        if not nodes:
            return False
        began = time()
        layout = await self._as_placed(self._heirs or self.entry.layout, nodes)
        plan, seconds = await asyncio.to_thread(plan_for, layout, nodes, self.replicas)
        self.plan_seconds = time() - began
        if nodes != self._nodes() or present != self.chash.workers() or self.paused:
            self.look()
            return True  # what was planned for is no longer so
        self._seconds, self._heirs = seconds, None
        before, after = self.entry.layout, plan.after
        if after.weights == before.weights and (after.assignment == before.assignment).all():
            after = before  # not another version of the same
        else:
            after = replace(after, version=before.version + 1)
        self.chash.log("plan", self.entry, moves=len(plan.moves), nodes=len(nodes), seconds=self.plan_seconds)
        self.state, self.out_of_place = "moving", len(plan.moves)
        answer = await self.chash.carry_out(self.entry, after, present, self.stall, seconds)
        stopped = [p for p, reason in answer["refused"].items() if reason == HALTED]
        self.moves += answer["moved"]
        self.nbytes += answer["nbytes"]
        self.failures += len(answer["refused"]) - len(stopped)
        self.out_of_place = len(answer["refused"])
        self._give_up(p for p in answer["refused"] if p not in stopped)
        return not answer["refused"]

    def _give_up(self, partitions: Iterable[int]) -> None:
        self._given_up = {(frame, p) for p in partitions for frame in self.entry.frames}

    def _nodes(self) -> dict[str, Any]:
        """The workers that shall own partitions, with their weights.

        A paused one keeps what it has, and gets nothing until it runs.
        """
        here = [ws for ws in self.scheduler.workers.values() if ws.status in (Status.running, Status.paused)]
        for ws in here:
            name = str(ws.name)
            if self.weights == "memory":
                weight = max(0.01, round(ws.memory_limit / MEMORY_UNIT, 2)) if ws.memory_limit else 1
            elif self.weights == "threads":
                weight = ws.nthreads
            else:
                weight = (self.weights or {}).get(name, self._known.get(name, 1))
            self._known[name] = weight if weight < 1024 else 1024
        return {str(ws.name): self._known[str(ws.name)] for ws in here}

    async def _as_placed(self, layout: Layout, nodes: Mapping[str, Any]) -> Layout:
        """The layout with its partitions where they are; those that are nowhere stay with their owner."""
        owners = []
        for p, i in enumerate(layout.assignment.tolist()):
            if p % AT_A_TIME == 0:
                await asyncio.sleep(0)
            owner = layout.nodes[i]
            held: dict[str, int] = {}
            for frame in self.entry.frames:
                if (ts := self.scheduler.tasks.get((frame, p))) is not None:
                    for ws in ts.who_has or ():
                        held[str(ws.name)] = held.get(str(ws.name), 0) + ts.nbytes
            if held and owner not in held:
                owner = max(held, key=lambda name: (name in nodes, held[name], name))
            owners.append(owner)
        return layout.with_assignment(owners)

    # Asked by `LeaveToOwners`

    def takes(self, key: Any) -> bool:
        """Whether the task will bring a partition to its owner, if it is not there."""
        return key in self.entry and not self.paused and key not in self._given_up

    def targets(self, key: Any) -> set[str]:
        """Names of the workers that shall hold a partition."""
        layout, p = self.entry.layout, key[1]
        second = self._seconds[p] if p < len(self._seconds) else None
        return {layout.owner_of(p), *([second] if second else [])}


def second_copies(layout: Layout, replicas: int) -> list[str | None]:
    """Who holds the second copy of each partition: the next on the ring that does not own it."""
    if replicas < 2 or len(layout.nodes) < 2:
        return []
    owners = [layout.nodes[i] for i in layout.assignment.tolist()]
    first = [layout.ring.preference_at(int(point), 2) for point in layout.points]
    return [a if a != owner else b for owner, (a, b) in zip(owners, first, strict=True)]


def plan_for(
    layout: Layout, nodes: Mapping[str, Any], replicas: int
) -> tuple[RebalancePlan, list[str | None]]:
    """The plan for these nodes, and who holds the second copy of each partition."""
    plan = plan_rebalance(layout, nodes)
    return plan, second_copies(plan.after, replicas)


class Handled(set[Any]):
    """Workers that a task is sent to by the manager: none, but not for want of somebody who sends it."""

    def __bool__(self) -> bool:
        return True


class LeaveToOwners(ActiveMemoryManagerPolicy):
    """Keep the active memory manager's hands off partitions that an `Autobalance` moves.

    `RetireWorker` would send them to the emptiest worker. It is shown, before or after it has made
    its suggestion, that somebody else sends them, and waits. It does as ever with what could not be
    brought to its owner, and when no other worker runs, so that it gives up rather than waits for ever.

    Also drops copies that are neither on the owner nor the second copy, which `ReduceReplicas` would
    do without knowing which is which. As there, the last copy is never dropped.
    """

    __slots__ = ("autobalance", "started_manager")

    def __init__(self, autobalance: Autobalance):
        self.autobalance = autobalance
        self.started_manager = False

    def add(self, scheduler: Any) -> None:
        """Run with Dask's own policies, also where config has stopped their manager."""
        manager = scheduler.extensions["amm"]
        self.started_manager = not manager.running
        manager.add_policy(self)
        manager.start()

    def remove(self) -> None:
        self.manager.policies.discard(self)
        if self.started_manager:
            others = [policy for policy in self.manager.policies if isinstance(policy, LeaveToOwners)]
            if others:
                others[0].started_manager = True
            else:
                self.manager.stop()

    def run(self) -> Iterator[Suggestion]:
        scheduler, autobalance, manager = self.manager.scheduler, self.autobalance, self.manager
        autobalance.look_at_workers()
        if scheduler.running:
            for ws in scheduler.workers.values():
                if ws.status == Status.closing_gracefully:
                    for ts in ws.has_what:
                        if autobalance.takes(ts.key) and not ts.who_has & scheduler.running:
                            chosen, dropped = manager.pending.get(ts, (set(), set()))
                            for other in chosen:
                                manager.workers_memory[other] -= ts.nbytes
                            manager.pending[ts] = (Handled(), dropped)
        if autobalance.entry.lock.locked():
            return
        for ts in list(scheduler.replicated_tasks):
            if autobalance.takes(ts.key) and not ts.waiters:
                targets = autobalance.targets(ts.key)
                if targets <= {str(ws.name) for ws in ts.who_has}:
                    for ws in ts.who_has:
                        if str(ws.name) not in targets:
                            yield Suggestion("drop", ts, {ws})
