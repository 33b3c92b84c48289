"""The shuffle run: how the rows of a block reach the workers that own their partitions.

It runs inside Dask's P2P machinery, which starts it on every worker, restarts it when one leaves,
and calls it three times:

- *transfer*, for each input block: hash the keys, put the rows of each column in the order of
  workers and their partitions, and send each worker its contiguous share. The worker's own share
  stays.
- *receive*: keep the share as it came, in memory while there is room, else in a file.
- *unpack*, for each output partition: join the partition's rows of all shares, column by column.

A share is kept once, however often it is sent. What a worker has on disk is in a file without a
name, which is gone with the process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.config
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.utils import parse_bytes

from chash_partition._dask import (
    P2POutOfDiskError,
    Reschedule,
    ResourceLimiter,
    ShuffleClosedError,
    ShuffleId,
    ShuffleRun,
    ShuffleSpec,
    context_meter,
    get_worker_plugin,
    retry,
    to_serialize,
)
from chash_partition.dataframe.arena import Arena
from chash_partition.dataframe.carriers import Carrier, Field, Lot, Order, Rows, carrier_of, join, view
from chash_partition.dataframe.keys import keys_of, levels_of
from chash_partition.dataframe.scatter import kernels
from chash_partition.hashing import hash_keys
from chash_partition.layout import Layout

if TYPE_CHECKING:
    from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin


@dataclass
class BlockShare:
    """One worker's rows of one input block.

    Attributes
    ----------
    carriers : one for each field, index levels before columns
    starts : int64 (partitions of the worker + 1,), first row of each
    buffers : for each field, numpy arrays, or `FileArray` where spilled
    """

    carriers: list[Carrier]
    starts: np.ndarray
    buffers: list[list[Any]]

    @property
    def nbytes(self) -> int:
        """Of memory."""
        arrays = (b for field in self.buffers for b in field if isinstance(b, np.ndarray))
        return sum(b.nbytes for b in arrays) + self.starts.nbytes

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __sizeof__(self) -> int:
        return self.nbytes


@dataclass
class Shares:
    """What is sent at a time: by its type, pickled with the buffers out of band."""

    blocks: list[tuple[int, BlockShare]]


class SpillError(P2POutOfDiskError):
    """A disk takes no more of a shuffle. Dask's own error has a fixed text."""

    def __str__(self) -> str:
        return str(self.args[0])


class SpillFile:
    """One file without a name, appended to by any thread; closed with the last array in it."""

    def __init__(self, directory: str | None):
        self.directory = directory or tempfile.gettempdir()
        self.size = 0
        self.freed = False
        self._lock = threading.Lock()
        self._file: Any = None

    def put(self, share: BlockShare) -> BlockShare:
        """The share with its buffers in the file.

        Raises
        ------
        SpillError
            If the disk is full, or fails. What is in the file already stays readable.
        """
        try:
            with self._lock:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self.directory, prefix="chash-")  # noqa: SIM115
                buffers = [[self._append(buffer) for buffer in field] for field in share.buffers]
            return BlockShare(share.carriers, share.starts, buffers)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "no space left" if full else f"cannot write ({error.strerror})"
        raise SpillError(
            f"{reason} in {self.directory} on {socket.gethostname()} for a shuffle that does not fit into "
            "memory: give the workers more memory, or set `temporary-directory` in the Dask config to a "
            "larger disk"
        )

    def _append(self, buffer: Any) -> FileArray:
        if isinstance(buffer, FileArray):
            return buffer
        data, at = memoryview(np.ascontiguousarray(buffer).view(np.uint8).data), self.size
        while data:
            n = os.pwrite(self._file.fileno(), data, at)
            data, at = data[n:], at + n
        out = FileArray(self, self.size, buffer.dtype, len(buffer))
        self.size = at
        return out

    def read_into(self, out: np.ndarray, at: int) -> None:
        view = memoryview(out.view(np.uint8).data)
        while view:
            n = os.preadv(self._file.fileno(), [view], at)
            if not n:
                ended = f"the spill file in {self.directory} ends at {at}"
                raise ShuffleClosedError(ended) if self.freed else OSError(errno.EIO, ended)
            view, at = view[n:], at + n

    def free(self) -> None:
        """Give the disk back now: tracebacks and cycles may refer to the file for long."""
        with self._lock:
            self.freed = True
            if self._file is not None:
                self._file.truncate(0)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True)
class FileArray:
    """An array in a file; slices of it are read."""

    file: SpillFile
    offset: int
    dtype: np.dtype[Any]
    length: int

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize

    def __len__(self) -> int:
        return self.length

    def __reduce__(self) -> tuple[Any, ...]:
        """Elsewhere it is an array in memory."""
        return np.asarray, (self[:],)

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.length)
        out = np.empty(max(0, stop - start), self.dtype)
        self.file.read_into(out, self.offset + start * self.dtype.itemsize)
        return out


def fields_of(block: pd.DataFrame) -> Iterator[pd.Series]:
    """Index levels, then columns, by position: labels may be anything."""
    for level in levels_of(block):
        yield pd.Series(level, copy=False)
    for _, column in block.items():
        yield column


@dataclass(frozen=True)
class Slots:
    """Output partitions in the order of the workers that own them.

    Attributes
    ----------
    of_partition : int32 (P,), the slot of each partition; the last slot is for those not wanted
    local : for each worker, the partitions of its slots
    """

    of_partition: np.ndarray
    local: dict[str, list[int]]

    @classmethod
    def of(cls, worker_for: dict[int, str], npartitions: int) -> Slots:
        local: dict[str, list[int]] = {}
        for partition, worker in sorted(worker_for.items()):
            local.setdefault(worker, []).append(partition)
        of_partition = np.full(npartitions, len(worker_for), dtype=np.int32)
        ordered = [partition for partitions in local.values() for partition in partitions]
        of_partition[ordered] = np.arange(len(ordered), dtype=np.int32)
        return cls(of_partition, local)

    def __len__(self) -> int:
        return sum(map(len, self.local.values()))


def check_block(block: Any, meta: pd.DataFrame) -> None:
    """Raise `ValueError` if a block does not have the columns that the frame says."""
    fits = isinstance(block, pd.DataFrame) and block.columns.equals(meta.columns)
    if fits and block.index.nlevels == meta.index.nlevels:
        return
    raise ValueError(
        f"a block to repartition has the columns {list(getattr(block, 'columns', []))} and "
        f"{getattr(getattr(block, 'index', None), 'nlevels', 0)} index levels, but the frame says "
        f"{list(meta.columns)} and {meta.index.nlevels}: its meta does not fit its data; "
        "give the right meta= where the frame is made"
    )


def split(
    block: pd.DataFrame, on: Sequence[Hashable], seed: int, slots: Slots, here: str | None = None
) -> dict[str, BlockShare]:
    """Each worker's share of a block. Rows keep their order within a partition.

    The columns of the share that stays `here` are let go one by one, so each has its own memory.
    """
    hashes = hash_keys(keys_of(block, on), seed=seed)
    slot, counts = np.empty(len(block), np.int32), np.zeros(len(slots) + 1, np.int64)
    kernels().slots(hashes, len(slots.of_partition), slots.of_partition, slot, counts)
    del hashes
    fields = list(fields_of(block))
    nbytes = sum(field.nbytes + len(field) // 8 for field in fields)
    lots, first = [], 0
    for worker, partitions in slots.local.items():
        last = first + len(partitions)
        starts = np.concatenate([[0], np.cumsum(counts[first:last])])
        # A little more than its rows' part of all bytes: rows differ.
        expected = 0 if worker == here else nbytes * int(starts[-1]) // max(1, len(block)) * 17 // 16
        lots.append(Lot(starts, Arena(expected, huge=worker != here)))
        first = last
    order = Order(slot, lots)
    carriers = [carrier_of(field) for field in fields]
    buffers = [c.scatter(field, order) for c, field in zip(carriers, fields, strict=True)]
    return {
        worker: BlockShare(carriers, lot.starts, [field[i] for field in buffers])
        for i, (worker, lot) in enumerate(zip(slots.local, lots, strict=True))
        if len(lot)
    }


class Stack:
    """The shares of all blocks that came to a worker, in the order of the blocks.

    Attributes
    ----------
    starts : int64 (partitions of the worker + 1, blocks), first row of each partition in each block
    fields : index levels before columns
    nbytes : int64 (fields,), in memory or on disk
    """

    def __init__(self, blocks: Sequence[BlockShare], meta: pd.DataFrame):
        self.starts = np.array([block.starts for block in blocks], np.int64).T
        self.meta = meta
        self.dtypes = [field.dtype for field in fields_of(meta)]
        self.fields = [
            Field([block.carriers[i] for block in blocks], [block.buffers[i] for block in blocks])
            for i in range(len(self.dtypes) if blocks else 0)
        ]
        self.nbytes = np.array([field.nbytes for field in self.fields], np.int64)
        self.total = sum(map(len, blocks))

    def __sizeof__(self) -> int:
        return int(self.nbytes.sum())

    def size(self, slot: int) -> int:
        """About the bytes of a partition."""
        if not self.total:
            return 0
        return int(self.nbytes.sum()) * int((self.starts[slot + 1] - self.starts[slot]).sum()) // self.total

    def rows(self, slot: int) -> Rows:
        """Those of a partition."""
        start, stop = (self.starts[slot], self.starts[slot + 1]) if self.total else np.zeros((2, 0), np.int64)
        here = np.flatnonzero(stop > start)
        return Rows(slot, here, start[here], stop[here], Arena(self.size(slot) * 17 // 16))

    def unpack(self, slot: int, take: Callable[[Field, Rows], Any] = join) -> pd.DataFrame:
        """The rows of one partition from the shares of all blocks, in their order.

        `take` is `join`, or `view` for what is done with at once: it keeps the shares of all partitions.
        """
        rows = self.rows(slot)
        return self.frame([take(field, rows) for field in self.fields] if len(rows) else [])

    def unpack_all(self, map_: Callable[..., Iterator[Any]]) -> list[list[Any]]:
        """The columns of each partition. Each field is let go of once it is put together."""
        rows = [self.rows(slot) for slot in range(len(self.starts) - 1)]

        def put_together(i: int) -> list[Any]:
            columns = [join(self.fields[i], r) if len(r) else None for r in rows]
            self.fields[i].let_go()
            return columns

        columns = map_(put_together, range(len(self.fields)))
        by_slot = zip(*columns, strict=True)
        return [list(of_slot) if len(r) else [] for r, of_slot in zip(rows, by_slot, strict=True)]

    def frame(self, columns: list[Any]) -> pd.DataFrame:
        """A partition of these columns; of none if it has no rows."""
        meta = self.meta
        if not columns:
            return meta.iloc[:0].copy()
        columns = [_as_meta(column, dtype) for column, dtype in zip(columns, self.dtypes, strict=True)]
        # Given their dtypes: pandas would infer others for object columns of one kind of value.
        levels = [pd.Index(c, dtype=c.dtype, copy=False) for c in columns[: meta.index.nlevels]]
        index = levels[0] if len(levels) == 1 else pd.MultiIndex.from_arrays(levels)
        index.names = meta.index.names
        rest = columns[len(levels) :]
        out = pd.DataFrame(
            {
                i: pd.Series(c, index=index, dtype=c.dtype, copy=False) if c.dtype == object else c
                for i, c in enumerate(rest)
            },
            index=index,
            copy=False,
        )
        out.columns = meta.columns
        return out


def _as_meta(column: Any, dtype: Any) -> Any:
    """The column in meta's dtype, unless its values are not the same there."""
    if column.dtype == dtype:
        return column
    if isinstance(dtype, pd.CategoricalDtype) and isinstance(column, pd.Categorical):
        # A cast would make nulls of other categories; meta may not know them yet.
        fits = set(column.categories) <= set(dtype.categories)
        return column.set_categories(dtype.categories, ordered=dtype.ordered) if fits else column
    before = pd.Series(column, copy=False)
    try:
        if isinstance(dtype, pd.CategoricalDtype) and not before.dropna().isin(dtype.categories).all():
            return column
        after = before.astype(dtype)
        same = _same_values(before, after)
    except (TypeError, ValueError, OverflowError):
        return column
    return after.array if same else column


def _same_values(before: pd.Series, after: pd.Series) -> bool:
    """Whether a cast changed no value. Text is never the same as the numbers that it spells."""
    if isinstance(before.dtype, pd.CategoricalDtype):
        before = before.astype(before.cat.categories.dtype)
    there = before.notna()
    if not after.notna().equals(there):
        return False
    if after.dtype == object:
        return True
    if before.dtype == object:
        return bool(np.all(before[there].to_numpy() == after[there].to_numpy(dtype=object)))
    kinds = (pd.api.types.is_numeric_dtype, pd.api.types.is_string_dtype)
    if any(kind(before.dtype) != kind(after.dtype) for kind in kinds):
        return False
    return after[there].astype(before.dtype).equals(before[there])


def transfer(block: pd.DataFrame, shuffle: ShuffleId, number: int) -> int:
    """The task that sends a block's rows to the workers of their partitions."""
    try:
        run_id: int = get_worker_plugin().add_partition(block, number, shuffle)
    except ShuffleClosedError:
        raise Reschedule() from None
    return run_id


def unpack(shuffle: ShuffleId, partition: int, run_id: int) -> pd.DataFrame:
    """The task that makes a partition of what has come."""
    plugin = get_worker_plugin()
    run = plugin.shuffle_runs._active_runs.get(shuffle)
    try:
        # Dask's own way asks the event loop for each thing, which takes longer than to unpack.
        if run is not None and run.is_ready(run_id, partition):
            return run.unpack(partition)
        out: pd.DataFrame = plugin.get_output_partition(shuffle, run_id, partition)
    except ShuffleClosedError:
        raise Reschedule() from None
    return out


class PlacedShuffleRun(ShuffleRun[int, pd.DataFrame]):
    """One worker's part in a shuffle; see the module."""

    def __init__(
        self,
        spec: PlacedShuffleSpec,
        run_id: int,
        span_id: str | None,
        worker_for: dict[int, str],
        plugin: ShuffleWorkerPlugin,
    ):
        worker = plugin.worker
        super().__init__(
            id=spec.id,
            run_id=run_id,
            span_id=span_id,
            local_address=worker.address,
            directory=worker.local_directory,
            executor=plugin._executor,
            rpc=worker.rpc,
            digest_metric=worker.digest_metric,
            scheduler=worker.scheduler,
            memory_limiter_disk=ResourceLimiter(None),
            memory_limiter_comms=plugin.memory_limiter_comms,
            disk=False,
            loop=worker.loop,
        )
        self.spec = spec
        self.worker_for = worker_for
        self.slots = Slots.of(worker_for, spec.npartitions)
        self.slot_here = {p: i for i, p in enumerate(self.slots.local.get(worker.address, []))}
        self.blocks: dict[int, BlockShare] = {}
        self.spilled = SpillFile(worker.local_directory)
        self.bytes_memory = 0
        self._keeping: set[asyncio.Task[None]] = set()
        # For tasks to raise: Dask's barrier would take an OSError for a lost connection.
        self._failure: Exception | None = None
        self._stack: Stack | None = None
        self._at_once: bool | None = None
        self._columns: list[list[Any]] | None = None
        self._unpacking = threading.Lock()
        self._always = parse_bytes(dask.config.get("distributed.p2p.storage.buffer"))
        manager = worker.memory_manager
        self._memory_target = (manager.memory_limit or 0) * (manager.memory_target_fraction or 1)
        self._process_memory = worker.monitor.get_process_memory

    # Transfer

    def _shard_partition(
        self, data: pd.DataFrame, partition_id: int, **kwargs: Any
    ) -> dict[str, tuple[int, BlockShare]]:
        shares = split(data, self.spec.on, self.spec.seed, self.slots, self.local_address)
        return {worker: (partition_id, share) for worker, share in shares.items()}

    async def _write_to_comm(self, data: dict[str, tuple[int, BlockShare]]) -> None:
        self.raise_if_closed()
        self._raise_if_failed()
        own = data.pop(self.local_address, None)
        if own is not None:
            block, share = own
            await self._receive(Shares([(block, share)]))
        await super()._write_to_comm(data)

    async def send(self, address: str, shards: list[tuple[int, BlockShare]]) -> Any:
        async def attempt() -> Any:
            self.raise_if_closed()
            try:
                return await self.rpc(address).shuffle_receive(
                    data=to_serialize(Shares(shards)), shuffle_id=self.id, run_id=self.run_id
                )
            except P2POutOfDiskError as error:  # an OSError, but there is no use in another attempt
                self._failure = error
                return {"status": "OK"}

        answer = await retry(
            attempt, count=self.RETRY_COUNT, delay_min=self.RETRY_DELAY_MIN, delay_max=self.RETRY_DELAY_MAX
        )
        # Dask's buffer holds on to what it sent last, on each of its tasks.
        for _, share in shards:
            share.buffers.clear()
        return answer

    # Receive

    def _raise_if_failed(self) -> None:
        if (failure := self._failure) is not None:
            raise failure

    async def _receive(self, data: Shares) -> None:
        for block, share in data.blocks:
            self.raise_if_closed()
            self._raise_if_failed()
            if block in self.received:  # sent again after a lost connection
                continue
            # A list of our own: in one process this is the sender's object, who empties his.
            share = BlockShare(share.carriers, share.starts, list(share.buffers))
            self.received.add(block)
            self.total_recvd += share.nbytes
            task = asyncio.create_task(self._keep(block, share))
            self._keeping.add(task)
            task.add_done_callback(self._keeping.discard)
            # If the sender gives up, the share is still kept: it will not be taken a second time.
            await asyncio.shield(task)

    async def _keep(self, block: int, share: BlockShare) -> None:
        try:
            if not self._has_room(share.nbytes):
                share = await self.offload(self.spilled.put, share)
                # Arrow's pool keeps what is freed, and Dask pauses a worker by what it has in all.
                pa.default_memory_pool().release_unused()
        except Exception as error:
            self._failure = error
            raise
        self.bytes_memory += share.nbytes
        self.blocks[block] = share

    def _has_room(self, nbytes: int) -> bool:
        if self.bytes_memory + nbytes <= self._always or not self._memory_target:
            return True
        return self._process_memory() + nbytes < self._memory_target

    async def flush_receive(self) -> None:
        self.raise_if_closed()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        self._raise_if_failed()

    # Unpack

    def is_ready(self, run_id: int, partition: int) -> bool:
        """Whether that partition can be unpacked here and now."""
        here = self.worker_for.get(partition) == self.local_address
        usable = self.run_id == run_id and not self.closed and not (self._exception or self._failure)
        return here and usable and self.transferred and not self._keeping

    def unpack(self, partition: int) -> pd.DataFrame:
        with self._capture_metrics("foreground"), context_meter.meter("p2p-get-output-noncpu"):
            return self._get_output_partition(partition, None)

    def _get_output_partition(self, partition_id: int, key: Any, **kwargs: Any) -> pd.DataFrame:
        slot = self.slot_here[partition_id]
        with self._unpacking:
            self.raise_if_closed()  # after which there is nothing left
            self._raise_if_failed()
            stack = self._with_room(slot)
            if self._at_once is None:
                # Once and for all: the one way lets go of what the other reads outside of the lock.
                in_memory = stack.total > 0 and not self.spilled.size and not self.spec.views
                self._at_once = in_memory and self._has_room(int(stack.nbytes.max()))
            if self._at_once and self._columns is None:
                try:
                    self._columns = stack.unpack_all(self.executor.map)
                except Exception as error:
                    self._failure = error  # some fields are gone
                    raise
                self.blocks.clear()
            columns = self._columns
        if columns is not None:
            return stack.frame(columns[slot])
        return stack.unpack(slot, view if self.spec.views else join)

    def _with_room(self, slot: int) -> Stack:
        """All shares; some put on disk while the next output would not fit beside them."""
        stack = self._all_shares()
        wanted = stack.size(slot)
        if self._columns is not None or self._has_room(wanted):
            return stack
        del stack
        self._stack = None
        for block in sorted(self.blocks):
            before = self.blocks[block].nbytes
            self.blocks[block] = self.spilled.put(self.blocks[block])
            freed = before - self.blocks[block].nbytes
            self.bytes_memory -= freed
            if freed and self._has_room(wanted):
                break
        return self._all_shares()

    def _all_shares(self) -> Stack:
        if self._stack is None:
            self._stack = Stack([self.blocks[block] for block in sorted(self.blocks)], self.spec.meta)
        return self._stack

    def _get_assigned_worker(self, id: int) -> str:
        return self.worker_for[id]

    def heartbeat(self) -> dict[str, Any]:
        beat = super().heartbeat()
        beat["disk"].update(
            memory=self.bytes_memory,
            memory_limit=int(max(self._always, self._memory_target)),
            total=self.total_recvd,
            written=self.spilled.size,
            buckets=len(self.blocks),
        )
        return beat

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        """Of all that takes memory or disk: the run itself stays until its cycles are found."""
        with self._unpacking:
            self.blocks.clear()
            self._stack = self._columns = self._failure = None
            self.spilled.free()
            self.bytes_memory = 0

    def validate_data(self, data: Any) -> None:
        check_block(data, self.spec.meta)

    def read(self, path: Any) -> Any:  # of Dask's disk buffer, which is not used
        raise RuntimeError(path)

    def deserialize(self, buffer: Any) -> Any:  # of Dask's memory buffer, which is not used
        raise RuntimeError(buffer)


@dataclass(frozen=True)
class PlacedShuffleSpec(ShuffleSpec[int]):
    """A shuffle whose outputs land on their owners.

    Attributes
    ----------
    meta : the frame, without rows
    views : whether outputs are done with at once
    on, seed, npartitions : the key, and how its hash gives a partition
    parts_out : the partitions that are wanted
    layout : which node owns each
    addresses : address of each node that is a worker
    """

    meta: pd.DataFrame
    views: bool
    on: tuple[Hashable, ...]
    parts_out: tuple[int, ...] | int
    layout: Layout
    addresses: dict[str, str]

    @property
    def seed(self) -> int:
        return self.layout.seed

    @property
    def npartitions(self) -> int:
        return self.layout.npartitions

    @property
    def output_partitions(self) -> Iterator[int]:
        yield from range(self.parts_out) if isinstance(self.parts_out, int) else self.parts_out

    def pick_worker(self, partition: int, workers: Sequence[str]) -> str:
        """The owner; if it is gone the next node on the ring that is here; else any worker."""
        owner = self.addresses.get(self.layout.owner_of(partition))
        if owner is not None and owner in workers:
            return owner
        for name in self.layout.ring.preference_at(self.layout.point(partition)):
            address = self.addresses.get(name)
            if address is not None and address in workers:
                return address
        # Dask hands the workers over in rotated order: sort, so that a re-run lands alike.
        return sorted(workers)[partition % len(workers)]

    def create_run_on_worker(
        self,
        run_id: int,
        span_id: str | None,
        worker_for: dict[int, str],
        plugin: ShuffleWorkerPlugin,
    ) -> PlacedShuffleRun:
        return PlacedShuffleRun(self, run_id, span_id, worker_for, plugin)
