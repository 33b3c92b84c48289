"""What `df.chash.autobalance()` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distributed import Client

from chash_partition.cluster import live


@dataclass(frozen=True)
class AutobalanceStatus:
    """How a layout follows the workers, at one moment.

    Attributes
    ----------
    state : str
        "settling" (waits until the workers stay the same), "planning", "moving", "settled", "waiting" (what
        could not be moved is tried again later), "paused", or "ended".
    workers : tuple of str
        Those that own partitions, or shall.
    version : int
        Of the layout.
    out_of_place : int
        Partitions that are not on their owner, as of the last look.
    moves, nbytes, failures : int
        Partitions and bytes moved since it began, and moves given up.
    plan_seconds : float
        That the last plan took.
    """

    state: str
    workers: tuple[str, ...]
    version: int
    out_of_place: int
    moves: int
    nbytes: int
    failures: int
    plan_seconds: float


ENDED = AutobalanceStatus("ended", (), 0, 0, 0, 0, 0, 0.0)


class AutobalanceHandle:
    """Watches and stops what `df.chash.autobalance()` began. It does not end with this object.

    As a context manager it is stopped at the end of the block.
    """

    def __init__(self, client: Client, layout_id: str):
        self._client = client
        self._layout_id = layout_id

    def __repr__(self) -> str:
        state = "client closed" if self._closed else self.status().state
        return f"<autobalance of layout {self._layout_id}: {state}>"

    @property
    def _closed(self) -> bool:
        return self._client.status in ("closed", "closing")

    def status(self) -> AutobalanceStatus:
        """How it stands now."""
        found = live.autobalance_status(self._client, self._layout_id)
        return AutobalanceStatus(**found) if found is not None else ENDED

    def pause(self) -> None:
        """Move nothing until `resume`; returns when what was on its way has arrived."""
        self._pause(True)

    def resume(self) -> None:
        """Go on after `pause`, from whatever the cluster is then."""
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        if not live.autobalance_pause(self._client, self._layout_id, paused):
            raise RuntimeError(
                "it has ended: it was stopped, the cluster was restarted, or no frame of the layout is left; "
                "call df.chash.autobalance() anew"
            )

    def stop(self) -> None:
        """End it, and leave nothing of it on the scheduler; returns when what was on its way has arrived."""
        if not self._closed:
            live.autobalance_stop(self._client, self._layout_id)

    def __enter__(self) -> AutobalanceHandle:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stop()
