"""The client's side of a live cluster: asks the scheduler, starts moves, and waits for them."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

import dask.config
from dask.utils import format_bytes, parse_timedelta
from distributed import Client, default_client
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chash_partition.cluster.plugin import NAME, ChashPlugin
from chash_partition.layout import Layout
from chash_partition.planner import RebalancePlan

# Importing it tells whether a process has this package.
PROBE = "chash_partition:__version__"
# In seconds.
ANSWER_TIMEOUT = 5
# Schedulers by id, and addresses of their workers, that were asked.
_asked: set[tuple[str, str]] = set()

# How often the client asks how far a move is, in seconds.
POLL = 0.05


def active_client() -> Client | None:
    """The active distributed client, or None."""
    try:
        return default_client()
    except ValueError:
        return None


def check(client: Client) -> None:
    """Raise if this client cannot be waited for."""
    if client.status in ("closed", "closing"):
        raise RuntimeError(
            "the client that keeps this frame in memory is closed, and the frame is gone with it: "
            "persist it anew with the client that is open now"
        )
    if client.asynchronous:
        raise RuntimeError(
            "this client is asynchronous and waiting here would stop its event loop: "
            "use a second, synchronous `Client(scheduler_address)` for df.chash"
        )


def _ask(client: Client, operation: str, **arguments: Any) -> Any:
    check(client)
    return client.sync(getattr(client.scheduler, operation), **arguments)


def worker_addresses(client: Client) -> dict[str, str]:
    """Address of each worker, by name as a str. All are known to have this package."""
    cluster = _ask(client, "identity", n_workers=-1)
    addresses = {str(worker["name"]): address for address, worker in cluster["workers"].items()}
    _require_package(client, cluster["id"], addresses)
    return addresses


def known_addresses(client: Client | None) -> dict[str, str]:
    """As `worker_addresses`; none without a client, or if it is asynchronous: it cannot be asked here."""
    return {} if client is None or client.asynchronous else worker_addresses(client)


def worker_count(client: Client) -> int:
    """How many workers there were when this client last heard of it. Asks nobody."""
    return int(client.scheduler_info()["n_workers"])


def _require_package(client: Client, scheduler: str, addresses: dict[str, str]) -> None:
    """Raise if the scheduler or a worker cannot import this package.

    Otherwise each would fail in the middle of the work, with an error of pickle's. A process is
    asked once, in words that it knows without the package.
    """
    if (scheduler, "") not in _asked:
        try:
            client.run_on_scheduler(resolve_name, PROBE)
        except ImportError as error:
            raise _missing("the scheduler", error) from error
        _asked.add((scheduler, ""))
    if not (new := {a: name for name, a in addresses.items() if (scheduler, a) not in _asked}):
        return
    try:
        answers = client.run(
            resolve_name, PROBE, workers=[*new], on_error="return", callback_timeout=ANSWER_TIMEOUT
        )
    except asyncio.TimeoutError:  # busy: nothing is known of it
        answers = {}
    if unable := {a: error for a, error in answers.items() if isinstance(error, ImportError)}:
        who = ", ".join(f"{new[a]} ({a})" for a in unable)
        raise _missing(f"worker {who}", next(iter(unable.values())))
    _asked.update((scheduler, a) for a in new)


def _missing(who: str, error: Exception) -> RuntimeError:
    return RuntimeError(
        f"{who} cannot import chash_partition ({error}): install the same version there as on the client, "
        "and start it again"
    )


def _ensure_plugin(client: Client) -> None:
    check(client)
    try:
        client.register_plugin(ChashPlugin(), name=NAME)
    except ImportError as error:
        raise _missing("the scheduler", error) from error


def _without_labels(layout: Layout) -> str:
    """The layout for the scheduler, which needs no labels of columns; not all can be written in JSON."""
    return layout.rename([str(i) for i in range(len(layout.on))]).to_json()


def register(client: Client, layout: Layout, frame: str) -> Layout:
    """Tell the scheduler of a persisted frame; returns the layout as it is there."""
    _ensure_plugin(client)
    return Layout.from_json(_ask(client, "chash_register", layout=_without_labels(layout), frame=frame))


def current_layout(client: Client, layout: Layout) -> Layout:
    """The newest version of a layout: the scheduler's, or the given one where it knows none."""
    _ensure_plugin(client)
    text = _ask(client, "chash_layout", layout_id=layout.id)
    return layout if text is None else Layout.from_json(text).rename(layout.on)


def holders(client: Client, frame: str, npartitions: int) -> list[tuple[Sequence[str], int]]:
    """Names of the workers that hold each partition of a persisted frame, and its bytes."""
    _ensure_plugin(client)
    return list(_ask(client, "chash_holders", frame=frame, npartitions=npartitions))


@contextmanager
def _bar(progress: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Draws how far a move is, where there is somebody to see it; call it with what the scheduler answers."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # In Jupyter rich draws with ipywidgets, and complains without.
    shown = progress and (find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("moving partitions", total=None)
        yield lambda answer: bar.update(task, completed=answer.get("done", 0), total=answer.get("total"))


def carry_out(client: Client, plan: RebalancePlan, progress: bool) -> RebalancePlan:
    """Move the partitions of a plan; returns the plan as carried out.

    Raises
    ------
    ValueError
        If the plan is for another layout or version, or gives partitions to absent workers.
        Nothing has been moved then.
    """
    stall = parse_timedelta(dask.config.get("chash-partition.rebalance.stall-timeout"))
    layout_id = plan.after.id
    answer = _ask(
        client, "chash_move", before=plan.before.version, after=_without_labels(plan.after), stall=stall
    )
    if "error" in answer:
        raise ValueError(answer["error"])
    with _bar(progress) as show:
        while "layout" not in (answer := _ask(client, "chash_progress", layout_id=layout_id)):
            if "error" in answer:
                raise RuntimeError(answer["error"])
            show(answer)
            time.sleep(POLL)
    refused = {int(p): reason for p, reason in answer["refused"].items()}
    done = plan.restricted_to([m.partition for m in plan.moves if m.partition not in refused])
    if progress:
        Console(stderr=True).print(summary(answer), highlight=False)
    if refused:
        reasons = "\n".join(f"  partition {p}: {reason}" for p, reason in sorted(refused.items())[:20])
        warnings.warn(
            f"{len(refused)} partitions are not on their new owner:\n{reasons}\n"
            "They are where they were; plan and rebalance again when the cause is gone.",
            RuntimeWarning,
            stacklevel=3,
        )
    return done


def autobalance(client: Client, layout: Layout, weights: Any, replicas: int) -> list[str]:
    """Let a layout follow the workers; returns the names of those that were started without one."""
    answer = _ask(
        client,
        "chash_autobalance",
        layout_id=layout.id,
        weights=weights,
        replicas=replicas,
        settle=parse_timedelta(dask.config.get("chash-partition.autobalance.settle")),
        stall=parse_timedelta(dask.config.get("chash-partition.rebalance.stall-timeout")),
    )
    if "error" in answer:
        raise ValueError(answer["error"])
    return list(answer["unnamed"])


def autobalance_status(client: Client, layout_id: str) -> dict[str, Any] | None:
    """None if the layout does not follow the workers."""
    _ensure_plugin(client)
    status: dict[str, Any] | None = _ask(client, "chash_autobalance_status", layout_id=layout_id)
    return status


def autobalance_pause(client: Client, layout_id: str, paused: bool) -> bool:
    return bool(_ask(client, "chash_autobalance_pause", layout_id=layout_id, paused=paused))


def autobalance_stop(client: Client, layout_id: str) -> None:
    _ask(client, "chash_autobalance_stop", layout_id=layout_id)


def retire(client: Client, layout_id: str, addresses: Sequence[str], progress: bool) -> set[str]:
    """Retire workers, of which a layout that follows the workers moves the partitions.

    Returns the addresses of those that were retired, once that layout has come to rest, in place or not.
    """
    before, began = autobalance_status(client, layout_id), time.monotonic()
    with _bar(progress) as show, ThreadPoolExecutor(1) as pool:
        retiring = pool.submit(client.retire_workers, workers=list(addresses))
        while (status := autobalance_status(client, layout_id)) is not None:
            if retiring.done() and status["state"] in ("settled", "waiting", "paused"):
                break
            show(_ask(client, "chash_progress", layout_id=layout_id))
            time.sleep(POLL)
    if progress and before is not None and status is not None:
        made = {name: status[name] - before[name] for name in ("moves", "nbytes")}
        answer = {"moved": made["moves"], "nbytes": made["nbytes"], "frames": 1, "refused": {}}
        text = summary({**answer, "seconds": time.monotonic() - began})
        Console(stderr=True).print(text, highlight=False)
    return set(retiring.result())


def summary(answer: dict[str, Any]) -> str:
    """What a move did, in a line."""
    what = "1 partition" if answer["moved"] == 1 else f"{answer['moved']} partitions"
    if answer["frames"] > 1:
        what += f" of {answer['frames']} frames"
    text = f"moved {what} ({format_bytes(answer['nbytes'])}) in {answer['seconds']:.2f} s"
    refused = answer["refused"]
    return f"{text}; {len(refused)} could not be moved" if refused else text
