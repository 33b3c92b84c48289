"""What the scheduler knows of layouts: the current version of each, and the frames that share it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import inf
from typing import TYPE_CHECKING, Any

import dask.config
from dask.utils import parse_timedelta
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from chash_partition._dask import ReduceReplicas, Suggestion, fast_tasks
from chash_partition.cluster.moves import AT_A_TIME, BringToOwners, bring_to_owners
from chash_partition.layout import Layout

if TYPE_CHECKING:
    from chash_partition.cluster.autobalance import Autobalance

NAME = "chash"
# What the keys start with by which partitions are brought to their owners and kept there.
PIN = "chash-pin"
# How long the end of a move is kept for the client that asked for it, in seconds.
UNREAD = 60.0


@dataclass
class Registered:
    """A layout and the persisted frames placed by it, which move together."""

    layout: Layout
    frames: set[str] = field(default_factory=set)
    # Frames whose tasks have not reached the scheduler yet, and the version of the layout by which they go.
    announced: dict[str, int] = field(default_factory=dict)
    # Held by whoever moves its partitions.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # The move that a client asked for, until that has read how it ended.
    moving: asyncio.Task[dict[str, Any]] | None = None
    ended: float = inf
    progress: dict[str, Any] = field(default_factory=dict)
    # What is being moved now, and the layout that this makes.
    move: BringToOwners | None = None
    goal: Layout | None = None
    # Brings frames that go by an older version to their owners.
    late: asyncio.Task[None] | None = None
    autobalance: Autobalance | None = None

    def __contains__(self, key: Any) -> bool:
        """Whether a task is a partition of one of the frames."""
        return type(key) is tuple and key[0] in self.frames


class ReduceToOwners(ReduceReplicas):
    """`ReduceReplicas`, which knows which copy of a partition is to stay.

    It stands in for Dask's own: that one would drop any, and leave the one that a task elsewhere had fetched.
    Partitions that are being moved, or follow the workers, are left to those who move them.
    """

    __slots__ = ("layouts",)

    def __init__(self, layouts: Mapping[str, Registered]):
        self.layouts = layouts

    @classmethod
    def stand_in(cls, scheduler: Any, layouts: Mapping[str, Registered]) -> None:
        manager = scheduler.extensions.get("amm")
        for policy in [p for p in manager.policies if type(p) is ReduceReplicas] if manager else []:
            manager.policies.remove(policy)
            manager.add_policy(cls(layouts))

    def run(self) -> Iterator[Suggestion]:
        for suggestion in super().run():
            ts = suggestion.ts
            entry = next((entry for entry in self.layouts.values() if ts.key in entry), None)
            if entry is None:
                yield suggestion
            elif not entry.lock.locked() and entry.autobalance is None:
                owner = entry.layout.owner_of(ts.key[1])
                yield Suggestion("drop", ts, {ws for ws in ts.who_has if str(ws.name) != owner})


class ChashPlugin(SchedulerPlugin):
    """Keeps the layouts of persisted frames, and moves partitions on request.

    State, all of it on the scheduler: for each layout id its newest version and the names of the
    frames. It is lost with the scheduler, as the frames are.
    """

    name = NAME
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.layouts: dict[str, Registered] = {}
        ReduceToOwners.stand_in(scheduler, self.layouts)
        # Those that Dask's work stealing leaves where they are; of others it takes half a second to be the
        # time they need until it knows, and has an idle worker fetch the partition.
        fast_tasks.add(PIN)
        scheduler.handlers.update(
            chash_register=self.register,
            chash_layout=self.layout,
            chash_workers=self.workers,
            chash_holders=self.holders,
            chash_move=self.move,
            chash_progress=self.progress,
            chash_autobalance=self.autobalance,
            chash_autobalance_status=self.autobalance_status,
            chash_autobalance_pause=self.autobalance_pause,
            chash_autobalance_stop=self.autobalance_stop,
        )

    def live(self, layout_id: str) -> Registered | None:
        """The registered layout, if a frame of it still exists."""
        entry = self.layouts.get(layout_id)
        if entry is None:
            return None
        entry.frames = {frame for frame in entry.frames if (frame, 0) in self.scheduler.tasks}
        # A client that died will never read how its move ended.
        unread = entry.moving is not None and time() < entry.ended + UNREAD
        if not entry.frames and not entry.announced and not unread:
            del self.layouts[layout_id]
            if entry.autobalance is not None:
                entry.autobalance.end("no frame of the layout is left")
            return None
        return entry

    def register(self, layout: str, frame: str) -> str:
        """Add a frame, whose tasks go by `layout`, to that; returns the layout as it now is."""
        given = Layout.from_json(layout)
        for layout_id in list(self.layouts):
            if layout_id != given.id:
                self.live(layout_id)
        entry = self.live(given.id)
        if entry is None:
            entry = self.layouts[given.id] = Registered(given)
        elif entry.frames | entry.announced.keys() <= {frame} and given.version > entry.layout.version:
            entry.layout = given
        entry.announced[frame] = given.version
        if (frame, 0) in self.scheduler.tasks:
            self._arrived(entry, {frame})
        return entry.layout.to_json()

    def update_graph(self, scheduler: Any, *, keys: Any, **kwargs: Any) -> None:
        arrived = {key[0] for key in keys if isinstance(key, tuple)}
        for entry in self.layouts.values():
            if here := arrived & entry.announced.keys():
                self._arrived(entry, here)

    def _arrived(self, entry: Registered, frames: set[str]) -> None:
        """Frames are registered, and their tasks are here: have them brought to where the layout is now."""
        late = [frame for frame in frames if entry.announced.pop(frame) != entry.layout.version]
        entry.frames |= frames
        if entry.autobalance is not None:
            entry.autobalance.look()
        elif late and not entry.lock.locked():  # a move that goes on takes them along
            entry.late = asyncio.create_task(self._bring(entry, late))

    async def _bring(self, entry: Registered, frames: Iterable[str]) -> None:
        stall = parse_timedelta(dask.config.get("chash-partition.rebalance.stall-timeout"))
        async with entry.lock:
            present = self.workers()
            owners = [present.get(entry.layout.nodes[i]) for i in entry.layout.assignment]
            here = [(p, owner) for p, owner in enumerate(owners) if owner is not None]
            targets = {(frame, p): (owner,) for frame in frames for p, owner in here}
            entry.move = BringToOwners(targets)
            try:
                await bring_to_owners(self.scheduler, entry.move, stall, entry.progress)
            finally:
                entry.move = None

    def layout(self, layout_id: str) -> str | None:
        entry = self.live(layout_id)
        return entry.layout.to_json() if entry is not None else None

    def workers(self) -> dict[str, str]:
        """Address of each worker, by name."""
        return {str(ws.name): address for address, ws in self.scheduler.workers.items()}

    def holders(self, frame: str, npartitions: int) -> list[tuple[list[str], int]]:
        """Names of the workers that hold each partition of a frame, and its bytes."""
        found: list[tuple[list[str], int]] = []
        for i in range(npartitions):
            ts = self.scheduler.tasks.get((frame, i))
            holders = sorted(str(ws.name) for ws in ts.who_has or ()) if ts is not None else []
            found.append((holders, ts.nbytes if holders else 0))
        return found

    async def move(self, before: int, after: str, stall: float) -> dict[str, Any]:
        """Start bringing all frames of a layout to the owners in `after`.

        `before` is the version that the plan started from. Returns at once; ask `progress`.
        """
        target = Layout.from_json(after)
        entry = self.live(target.id)
        if entry is None:
            return {
                "error": f"no frame of layout {target.id} is in memory on this cluster; persist one first"
            }
        if entry.lock.locked():
            return {
                "error": f"layout {target.id} is being moved already; wait for that to end, then plan again"
            }
        await entry.lock.acquire()
        present = self.workers()
        if error := self._refusal(entry, before, target, present):
            entry.lock.release()
            return {"error": error}
        entry.ended = inf
        entry.moving = asyncio.create_task(self._move_and_unlock(entry, target, present, stall))
        return {"started": True}

    def _refusal(self, entry: Registered, before: int, target: Layout, present: dict[str, str]) -> str | None:
        """Why a plan cannot be carried out, or None."""
        if before != entry.layout.version:
            return (
                f"the plan starts from version {before} of layout {target.id}, which is at "
                f"version {entry.layout.version} now; make a new plan with `df.chash.plan()`"
            )
        # Nodes that own nothing need not be here.
        absent = sorted({target.nodes[i] for i in set(target.assignment.tolist())} - present.keys())
        if absent:
            return (
                f"the plan gives partitions to {', '.join(absent)}, not a worker of this cluster "
                f"(workers: {', '.join(sorted(present))}); start it, or plan for the workers that are here"
            )
        return None

    async def _move_and_unlock(
        self, entry: Registered, target: Layout, present: dict[str, str], stall: float
    ) -> dict[str, Any]:
        try:
            seconds = entry.autobalance.seconds_of(target) if entry.autobalance is not None else []
            if not {name for name in seconds if name} <= present.keys():
                seconds = []  # it makes them anew when it looks
            return await self.carry_out(entry, target, present, stall, seconds)
        finally:
            entry.ended = time()
            entry.lock.release()
            if entry.autobalance is not None:
                entry.autobalance.moved_by_client()

    async def carry_out(
        self,
        entry: Registered,
        target: Layout,
        present: dict[str, str],
        stall: float,
        seconds: Sequence[str | None] = (),
    ) -> dict[str, Any]:
        """Bring all frames of a layout to their owners in `target`; its lock is held.

        `seconds` names for each partition the worker of its second copy, if there shall be one.
        """
        entry.goal = target
        try:
            return await self._move(entry, target, present, stall, seconds)
        finally:
            entry.goal = entry.move = None

    async def _move(
        self,
        entry: Registered,
        target: Layout,
        present: dict[str, str],
        stall: float,
        seconds: Sequence[str | None],
    ) -> dict[str, Any]:
        started = time()
        before = [entry.layout.nodes[i] for i in entry.layout.assignment]
        after = [target.nodes[i] for i in target.assignment]
        wanted = [[owner, second] if second else [owner] for owner, second in zip_longest(after, seconds)]
        done: list[Any] = []
        refused: dict[int, str] = {}
        moved: set[str] = set()
        halted = False
        # A frame that is persisted meanwhile goes along.
        while not halted and (new := sorted(entry.frames - moved)):
            moved.update(new)
            held: dict[tuple[str, int], list[str]] = {}
            targets: dict[tuple[str, int], tuple[str, ...]] = {}
            for p, names in enumerate(wanted):
                if p % AT_A_TIME == 0:
                    await asyncio.sleep(0)
                for frame in new:
                    held[frame, p] = self._names((frame, p))
                    if held[frame, p] != sorted(names):
                        targets[frame, p] = tuple(present[name] for name in names)
            entry.move = move = BringToOwners(targets)
            self.log("move-start", entry, keys=len(targets), nbytes=self._nbytes(targets))
            await bring_to_owners(self.scheduler, move, stall, entry.progress)
            halted = move.halted is not None
            # Neither one that was computed where it belongs has been moved, nor one of which a task's copy
            # elsewhere was dropped.
            asked = {key for key, _ in move.asked}
            done.extend(
                key
                for key in move.targets
                if key not in move.refused
                and (key in asked or (held[key] and before[key[1]] != after[key[1]]))
            )
            for (frame, p), reason in move.refused.items():
                refused[p] = reason
                # It stays where it was, unless that worker has left.
                names = held[frame, p] or self._names((frame, p))
                before[p] = next((name for name in names if name != after[p]), before[p])
        owners = [before[p] if p in refused else owner for p, owner in enumerate(after)]
        made = target.with_assignment(owners) if refused else target
        if made.weights != entry.layout.weights or (made.assignment != entry.layout.assignment).any():
            entry.layout = made
        elif not refused:
            entry.layout = target
        summary = {
            "layout": entry.layout.to_json(),
            "refused": refused,
            "moved": len({p for _, p in done} - refused.keys()),
            "frames": len(entry.frames),
            "nbytes": self._nbytes(done),
            "seconds": time() - started,
        }
        self.log("move-end", entry, **{k: v for k, v in summary.items() if k != "layout"})
        return summary

    def progress(self, layout_id: str) -> dict[str, Any]:
        """How far the move of a layout is; once, at the end of one that a client asked for, its summary."""
        entry = self.layouts.get(layout_id)
        if entry is not None and entry.moving is None and entry.move is not None:
            return dict(entry.progress)
        if entry is None or entry.moving is None:
            return {"error": f"layout {layout_id} is not being moved"}
        if not entry.moving.done():
            return dict(entry.progress)
        task, entry.moving = entry.moving, None
        if task.cancelled():
            return {"error": "the move was cancelled"}
        if (error := task.exception()) is not None:
            return {"error": f"the move failed on the scheduler: {error!r}"}
        return task.result()

    def _nbytes(self, keys: Iterable[Any]) -> int:
        return sum(ts.nbytes for key in keys if (ts := self.scheduler.tasks.get(key)) is not None)

    def _names(self, key: Any) -> list[str]:
        ts = self.scheduler.tasks.get(key)
        return sorted(str(ws.name) for ws in ts.who_has or ()) if ts is not None else []

    async def autobalance(self, layout_id: str, **settings: Any) -> dict[str, Any]:
        """Let a layout follow the workers, or change how it does; see `Autobalance` for the settings."""
        from chash_partition.cluster.autobalance import Autobalance

        entry = self.live(layout_id)
        if entry is None:
            return {
                "error": f"no frame of layout {layout_id} is in memory on this cluster; persist one first"
            }
        if entry.autobalance is None:
            entry.autobalance = Autobalance(self, entry)
        return entry.autobalance.begin(**settings)

    def _autobalance(self, layout_id: str) -> Autobalance | None:
        entry = self.live(layout_id)
        return entry.autobalance if entry is not None else None

    def autobalance_status(self, layout_id: str) -> dict[str, Any] | None:
        found = self._autobalance(layout_id)
        return found.status() if found is not None else None

    async def autobalance_pause(self, layout_id: str, paused: bool) -> bool:
        found = self._autobalance(layout_id)
        if found is not None:
            await found.pause(paused)
        return found is not None

    async def autobalance_stop(self, layout_id: str) -> None:
        found = self._autobalance(layout_id)
        if found is not None:
            await found.stop()

    def log(self, action: str, entry: Registered, **facts: Any) -> None:
        self.scheduler.log_event(
            NAME, {"action": action, "layout": entry.layout.id, "version": entry.layout.version, **facts}
        )

    async def close(self) -> None:
        self._end("the scheduler closes")

    def restart(self, scheduler: Any) -> None:
        self._end("the cluster was restarted")
        self.layouts.clear()

    def _end(self, reason: str) -> None:
        for entry in self.layouts.values():
            for task in (entry.moving, entry.late):
                if task is not None:
                    task.cancel()
            if entry.autobalance is not None:
                entry.autobalance.end(reason)
