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
import tempfile
import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.config
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.utils import parse_bytes

from chash_partition._dask import (
    P2POutOfDiskError,
    ResourceLimiter,
    ShuffleRun,
    ShuffleSpec,
    retry,
    to_serialize,
)
from chash_partition.dataframe.carriers import Carrier, Order, Share, carrier_of, join
from chash_partition.dataframe.scatter import kernels
from chash_partition.hashing import empty, hash_keys, partition_ids
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
        return sum(b.nbytes for field in self.buffers for b in field) + self.starts.nbytes

    def __sizeof__(self) -> int:
        return self.nbytes


@dataclass
class Shares:
    """What is sent at a time: by its type, pickled with the buffers out of band."""

    blocks: list[tuple[int, BlockShare]]


class SpillFile:
    """One file without a name, appended to by any thread; closed with the last array in it."""

    def __init__(self, directory: str):
        self.directory = directory
        self.size = 0
        self._lock = threading.Lock()
        self._file: Any = None

    def put(self, share: BlockShare) -> BlockShare:
        """The share with its buffers in the file.

        Raises
        ------
        P2POutOfDiskError
            If the disk is full. What is in the file already stays readable.
        """
        try:
            with self._lock:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self.directory, prefix="chash-")  # noqa: SIM115
                buffers = [[self._append(buffer) for buffer in field] for field in share.buffers]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise P2POutOfDiskError(
                f"no space left in {self.directory} for a shuffle that does not fit into memory: give the "
                "workers more memory, or set `temporary-directory` in the Dask config to a larger disk"
            ) from error
        return BlockShare(share.carriers, share.starts, buffers)

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
                raise OSError(errno.EIO, f"the spill file in {self.directory} ends at {at}")
            view, at = view[n:], at + n

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
        """Of memory."""
        return 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.length)
        out = empty(max(0, stop - start), self.dtype)
        self.file.read_into(out, self.offset + start * self.dtype.itemsize)
        return out


def fields_of(block: pd.DataFrame) -> Iterator[pd.Series]:
    """Index levels, then columns, by position: labels may be anything."""
    for level in range(block.index.nlevels):
        yield pd.Series(block.index.get_level_values(level), copy=False)
    for i in range(block.shape[1]):
        yield block.iloc[:, i]


@dataclass(frozen=True)
class Slots:
    """Output partitions in the order of the workers that own them.

    Attributes
    ----------
    of_partition : int32 (P,), the slot of each partition; the last slot is for those not wanted
    local : for each worker, the partitions of its slots
    first : for each worker, its first slot
    """

    of_partition: np.ndarray
    local: dict[str, list[int]]
    first: dict[str, int]

    @classmethod
    def of(cls, worker_for: dict[int, str], npartitions: int) -> Slots:
        local: dict[str, list[int]] = {}
        for partition, worker in sorted(worker_for.items()):
            local.setdefault(worker, []).append(partition)
        of_partition = np.full(npartitions, len(worker_for), dtype=np.int32)
        first, slot = {}, 0
        for worker, partitions in local.items():
            first[worker] = slot
            of_partition[partitions] = np.arange(slot, slot + len(partitions), dtype=np.int32)
            slot += len(partitions)
        return cls(of_partition, local, first)

    def __len__(self) -> int:
        return sum(map(len, self.local.values()))


def split(block: pd.DataFrame, on: Sequence[Hashable], seed: int, slots: Slots) -> dict[str, BlockShare]:
    """Each worker's share of a block. Rows keep their order within a partition."""
    keys = block[list(on)]
    slot = slots.of_partition[partition_ids(hash_keys(keys, seed=seed), len(slots.of_partition))]
    counts = np.bincount(slot, minlength=len(slots) + 1)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    places = empty(len(block), np.int32)
    kernels().places(slot, starts[:-1].copy(), places)
    order = Order(places, starts)
    carriers = [carrier_of(field) for field in fields_of(block)]
    buffers = [c.scatter(field, order) for c, field in zip(carriers, fields_of(block), strict=True)]
    shares = {}
    for worker, partitions in slots.local.items():
        a, b = slots.first[worker], slots.first[worker] + len(partitions)
        if starts[a] < starts[b]:
            cut = [c.cut(field, order, a, b) for c, field in zip(carriers, buffers, strict=True)]
            shares[worker] = BlockShare(carriers, starts[a : b + 1] - starts[a], cut)
    return shares


def unpack(blocks: Sequence[BlockShare], slot: int, meta: pd.DataFrame) -> pd.DataFrame:
    """The rows of one partition from the shares of all blocks, in their order."""
    shares = [(block, int(block.starts[slot]), int(block.starts[slot + 1])) for block in blocks]
    shares = [(block, start, stop) for block, start, stop in shares if start < stop]
    if not shares:
        return meta.iloc[:0].copy()
    columns = []
    for i, wanted in enumerate(fields_of(meta)):
        column = join(
            [block.carriers[i] for block, _, _ in shares],
            [Share(block.buffers[i], slot, start, stop) for block, start, stop in shares],
        )
        columns.append(_as_meta(column, wanted.dtype))
    # Given their dtypes: pandas would infer others for object columns of one kind of value.
    levels = [pd.Index(c, dtype=c.dtype, copy=False) for c in columns[: meta.index.nlevels]]
    index = levels[0] if len(levels) == 1 else pd.MultiIndex.from_arrays(levels)
    index.names = meta.index.names
    rest = columns[len(levels) :]
    out = pd.DataFrame(
        {i: pd.Series(c, index=index, dtype=c.dtype, copy=False) for i, c in enumerate(rest)},
        index=index,
        copy=False,
    )
    out.columns = meta.columns
    return out


def _as_meta(column: Any, dtype: Any) -> Any:
    """The column in meta's dtype, unless its values do not fit that."""
    if column.dtype == dtype:
        return column
    if isinstance(dtype, pd.CategoricalDtype) and isinstance(column, pd.Categorical):
        # A cast would make nulls of other categories; meta may not know them yet.
        fits = set(column.categories) <= set(dtype.categories)
        return column.set_categories(dtype.categories, ordered=dtype.ordered) if fits else column
    try:
        return pd.Series(column, copy=False).astype(dtype).array
    except (TypeError, ValueError):
        return column


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
        self.bytes_memory = self.bytes_read = 0
        self._keeping: set[asyncio.Task[None]] = set()
        self._always = parse_bytes(dask.config.get("distributed.p2p.storage.buffer"))
        manager = worker.memory_manager
        self._memory_target = (manager.memory_limit or 0) * (manager.memory_target_fraction or 1)
        self._process_memory = worker.monitor.get_process_memory

    # Transfer

    def _shard_partition(
        self, data: pd.DataFrame, partition_id: int, **kwargs: Any
    ) -> dict[str, tuple[int, BlockShare]]:
        shares = split(data, self.spec.on, self.spec.seed, self.slots)
        return {worker: (partition_id, share) for worker, share in shares.items()}

    async def _write_to_comm(self, data: dict[str, tuple[int, BlockShare]]) -> None:
        self.raise_if_closed()
        own = data.pop(self.local_address, None)
        if own is not None:
            block, share = own
            # A copy: a view would keep the whole block, all workers' shares, in memory.
            copied = [[copy(buffer) for buffer in field] for field in share.buffers]
            await self._receive(Shares([(block, BlockShare(share.carriers, share.starts, copied))]))
        await super()._write_to_comm(data)

    async def send(self, address: str, shards: list[tuple[int, BlockShare]]) -> Any:
        async def attempt() -> Any:
            self.raise_if_closed()
            return await self.rpc(address).shuffle_receive(
                data=to_serialize(Shares(shards)), shuffle_id=self.id, run_id=self.run_id
            )

        answer = await retry(
            attempt, count=self.RETRY_COUNT, delay_min=self.RETRY_DELAY_MIN, delay_max=self.RETRY_DELAY_MAX
        )
        # Dask's buffer holds on to what it sent last, on each of its tasks; and each share, a view,
        # to a whole block.
        for _, share in shards:
            share.buffers.clear()
        return answer

    # Receive

    async def _receive(self, data: Shares) -> None:
        self.raise_if_closed()
        for block, share in data.blocks:
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
            self._exception = error
            raise
        self.bytes_memory += share.nbytes
        self.blocks[block] = share

    def _has_room(self, nbytes: int) -> bool:
        if self.bytes_memory + nbytes <= self._always or not self._memory_target:
            return True
        return self._process_memory() + nbytes < self._memory_target

    async def flush_receive(self) -> None:
        self.raise_if_closed()
        await asyncio.gather(*self._keeping)

    # Unpack

    def _get_output_partition(self, partition_id: int, key: Any, **kwargs: Any) -> pd.DataFrame:
        slot = self.slot_here[partition_id]
        self._make_room(slot)
        blocks = [self.blocks[block] for block in sorted(self.blocks)]
        return unpack(blocks, slot, self.spec.meta)

    def _make_room(self, slot: int) -> None:
        """Put shares on disk while the next output would not fit beside them."""
        rows = sum(int(b.starts[-1]) for b in self.blocks.values()) or 1
        wanted = sum(int(b.starts[slot + 1] - b.starts[slot]) for b in self.blocks.values())
        total = sum(b.nbytes for b in self.blocks.values())
        for block, share in sorted(self.blocks.items()):
            if self._has_room(total * wanted // rows):
                return
            if share.nbytes > share.starts.nbytes:
                self.blocks[block] = self.spilled.put(share)
                self.bytes_memory -= share.nbytes
                pa.default_memory_pool().release_unused()

    def _get_assigned_worker(self, id: int) -> str:
        return self.worker_for[id]

    def heartbeat(self) -> dict[str, Any]:
        beat = super().heartbeat()
        beat["disk"].update(
            memory=self.bytes_memory,
            total=self.total_recvd,
            written=self.spilled.size,
            buckets=len(self.blocks),
        )
        return beat

    async def close(self) -> None:
        await super().close()
        self.blocks.clear()
        self.bytes_memory = 0

    def validate_data(self, data: Any) -> None:
        if not isinstance(data, pd.DataFrame) or not data.columns.equals(self.spec.meta.columns):
            raise ValueError(
                f"a block to repartition has the columns {list(getattr(data, 'columns', []))}, "
                f"but the frame says {list(self.spec.meta.columns)}: its meta does not fit its data; "
                "give the right meta= where the frame is made"
            )

    def read(self, path: Any) -> Any:  # of Dask's disk buffer, which is not used
        raise RuntimeError(path)

    def deserialize(self, buffer: Any) -> Any:  # of Dask's memory buffer, which is not used
        raise RuntimeError(buffer)


def copy(buffer: np.ndarray) -> np.ndarray:
    out = empty(len(buffer), buffer.dtype)
    out[:] = buffer
    return out


@dataclass(frozen=True)
class PlacedShuffleSpec(ShuffleSpec[int]):
    """A shuffle whose outputs land on their owners.

    Attributes
    ----------
    meta : the frame, without rows
    on, seed, npartitions : the key, and how its hash gives a partition
    parts_out : the partitions that are wanted
    layout : which node owns each
    addresses : address of each node that is a worker
    """

    meta: pd.DataFrame
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
        here = {name: address for name, address in self.addresses.items() if address in workers}
        owner = self.layout.owner_of(partition)
        if owner in here:
            return here[owner]
        for name in self.layout.ring.preference_at(self.layout.point(partition)):
            if name in here:
                return here[name]
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
