"""How a column travels: as plain buffers that can be cut at any partition.

Each kind of column has one carrier. `scatter` puts a block's column into buffers for each worker,
in the order of its partitions, and `join` makes the column of one partition from the buffers of
many blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from distributed.protocol import pickle
from pandas.api.types import union_categoricals

from chash_partition.dataframe.arena import Arena
from chash_partition.dataframe.scatter import kernels

Buffers = list[np.ndarray]
CHUNK = 1 << 30
# Rows of a block, on average, from which Arrow takes them as a chunk of its own.
PIECE = 512


@dataclass(frozen=True)
class Lot:
    """The slots of one worker, and room for its rows of a block.

    Attributes
    ----------
    starts : int64 (its slots + 1,), the first of its rows in each slot
    """

    starts: np.ndarray
    arena: Arena

    def __len__(self) -> int:
        return int(self.starts[-1])


@dataclass(frozen=True)
class Order:
    """Where the rows of a block go.

    Attributes
    ----------
    slots : int32 (n,), the slot of each row; beyond those of all lots if it is not wanted
    lots : of all workers, in the order of their slots
    """

    slots: np.ndarray
    lots: Sequence[Lot]

    def room(self, dtype: Any) -> Buffers:
        """For a value of each row of each lot."""
        return [lot.arena.empty(len(lot), dtype) for lot in self.lots]

    def streams(self, room: Buffers) -> np.ndarray:
        """int64 (slots,), the address of each slot's first value in that room."""
        parts = [
            address(buffer) + lot.starts[:-1] * buffer.dtype.itemsize
            for lot, buffer in zip(self.lots, room, strict=True)
        ]
        return np.concatenate(parts)

    def scattered(self, values: np.ndarray) -> Buffers:
        """Fixed-width values in the room of each lot."""
        values = np.ascontiguousarray(values)
        room = self.room(values.dtype)
        kernels().words[values.dtype.itemsize](address(values), self.slots, self.streams(room))
        return room

    def scattered_validity(self, array: pa.Array) -> Buffers:
        """A byte a row, or nothing where all rows are there."""
        valid = bits(array.buffers()[0], array) if array.null_count else None
        return [np.empty(0, np.uint8)] * len(self.lots) if valid is None else self.scattered(valid)


class Field:
    """One column, or index level, of all blocks that came to a worker.

    Parameters
    ----------
    carriers : of each block
    buffers : of each block, as its carrier made them, or like arrays in a file
    """

    def __init__(self, carriers: Sequence[Carrier], buffers: Sequence[list[Any]]):
        self.carriers = carriers
        self.buffers = buffers
        self.alike = all(carrier == carriers[0] for carrier in carriers[1:])
        self.nbytes = sum(buffer.nbytes for block in buffers for buffer in block)

    def __reduce__(self) -> tuple[Any, ...]:
        return Field, (self.carriers, self.buffers)  # addresses mean nothing elsewhere

    @functools.cached_property
    def addresses(self) -> list[np.ndarray] | None:
        """For each buffer, int64 (blocks,): where each block's starts. None if some are in a file.

        0 for what is empty, or a block's carrier does not have.
        """
        if not all(isinstance(buffer, np.ndarray) for block in self.buffers for buffer in block):
            return None
        return [
            np.array([address(buffer) if len(buffer) else 0 for buffer in of_blocks], np.int64)
            for of_blocks in self._by_number()
        ]

    @functools.cached_property
    def empty(self) -> list[bool]:
        """For each buffer, whether there is nothing in that of any block."""
        return [not any(map(len, of_blocks)) for of_blocks in self._by_number()]

    def _by_number(self) -> Iterator[tuple[Any, ...]]:
        return zip_longest(*self.buffers, fillvalue=())

    def let_go(self) -> None:
        """Of the buffers."""
        self.__dict__.pop("addresses", None)
        for block in self.buffers:
            block.clear()

    @functools.cached_property
    def categories(self) -> Any:
        return pickle.loads(self.carriers[0].categories)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Rows:
    """The rows of one partition in each block that has any.

    Attributes
    ----------
    slot : of the partition
    blocks : int64 (m,)
    start, stop : int64 (m,), rows of each block
    arena : where they are put together
    """

    slot: int
    blocks: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    arena: Arena

    @functools.cached_property
    def counts(self) -> np.ndarray:
        return self.stop - self.start

    def __len__(self) -> int:
        return int(self.counts.sum())

    def alone(self, i: int) -> Rows:
        """Those of the i-th block only."""
        only = slice(i, i + 1)
        return Rows(self.slot, self.blocks[only], self.start[only], self.stop[only], self.arena)

    def pieces(self, field: Field) -> Iterator[tuple[list[Any], int, int]]:
        """Each block's buffers, and which of its rows they are."""
        for block, start, stop in zip(
            self.blocks.tolist(), self.start.tolist(), self.stop.tolist(), strict=True
        ):
            yield field.buffers[block], start, stop

    def sources(
        self, field: Field, j: int, width: int, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, Any]:
        """Addresses of pieces of each block's j-th buffer, 0 if that is empty; and what keeps them."""
        if field.addresses is not None:
            at = field.addresses[j][self.blocks]
            return np.where(at, at + start * width, 0), field
        pieces = [
            field.buffers[block][j][a:b] if len(field.buffers[block][j]) else None
            for block, a, b in zip(self.blocks.tolist(), start.tolist(), stop.tolist(), strict=True)
        ]
        return np.array([0 if piece is None else address(piece) for piece in pieces], np.int64), pieces

    def joined(self, field: Field, j: int, dtype: Any) -> np.ndarray:
        """All rows in a fixed-width buffer."""
        out = self.arena.empty(len(self), dtype)
        width = out.dtype.itemsize
        sources, kept = self.sources(field, j, width, self.start, self.stop)
        kernels().gather(sources, self.counts * width, address(out))
        del kept
        return out

    def joined_validity(self, field: Field, j: int) -> pa.Buffer | None:
        if field.empty[j]:
            return None
        # Where a block has none, `gather` writes ones.
        return pa.py_buffer(np.packbits(self.joined(field, j, np.uint8), bitorder="little"))


class Carrier(Protocol):
    """How one column of one block travels. Carriers that are equal can be joined as one."""

    def scatter(self, column: pd.Series, order: Order) -> list[Buffers]:
        """Buffers for each lot, its rows in the order of their slots."""

    def join(self, field: Field, rows: Rows) -> Any:
        """The column of one partition, as pandas holds it."""


@dataclass(frozen=True)
class Fixed:
    """numpy values of 1, 2, 4, 8 or 16 bytes."""

    dtype: np.dtype[Any]

    def values(self, column: pd.Series) -> np.ndarray:
        return column.to_numpy()

    def scatter(self, column: pd.Series, order: Order) -> list[Buffers]:
        return [[buffer] for buffer in order.scattered(self.values(column))]

    def join(self, field: Field, rows: Rows) -> Any:
        return rows.joined(field, 0, self.dtype)


@dataclass(frozen=True)
class Zoned(Fixed):
    """Timestamps with a zone, as their UTC instants."""

    zone: Any

    def values(self, column: pd.Series) -> np.ndarray:
        return column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()

    def join(self, field: Field, rows: Rows) -> Any:
        instants = pd.DatetimeIndex(rows.joined(field, 0, self.dtype), copy=False)
        return instants.tz_localize("UTC").tz_convert(self.zone).array


@dataclass(frozen=True)
class Category(Fixed):
    """Codes of categories, which come pickled; blocks with other categories have other carriers."""

    categories: bytes
    ordered: bool

    def values(self, column: pd.Series) -> np.ndarray:
        return column.cat.codes.to_numpy()

    def join(self, field: Field, rows: Rows) -> Any:
        codes = rows.joined(field, 0, self.dtype)
        categories = field.categories if field.alike else pickle.loads(self.categories)
        return pd.Categorical.from_codes(codes, categories, ordered=self.ordered, validate=False)


@dataclass(frozen=True)
class Masked:
    """Arrow values of a fixed width, and which are there."""

    dtype: Any
    kind: pa.DataType

    @property
    def word(self) -> np.dtype[Any]:
        return np.dtype(f"V{max(8, self.kind.bit_width) // 8}")

    def scatter(self, column: pd.Series, order: Order) -> list[Buffers]:
        array = as_arrow(column)
        if pa.types.is_boolean(self.kind):
            values = bits(array.buffers()[1], array)
        else:
            data, width = array.buffers()[1], self.kind.bit_width // 8
            values = np.frombuffer(data, f"V{width}", len(array), array.offset * width) if data else None
        values = np.zeros(len(array), self.word) if values is None else values
        return columnwise(order.scattered(values), order.scattered_validity(array))

    def array(self, values: np.ndarray, validity: pa.Buffer | None) -> pa.Array:
        n = len(values)
        if pa.types.is_boolean(self.kind):
            values = np.packbits(values.view(np.uint8), bitorder="little")
        return pa.Array.from_buffers(self.kind, n, [validity, pa.py_buffer(values.view(np.uint8))])

    def join(self, field: Field, rows: Rows) -> Any:
        array = self.array(rows.joined(field, 0, self.word), rows.joined_validity(field, 1))
        return self.dtype.__from_arrow__(array)

    def view(self, field: Field, rows: Rows) -> Any:
        chunks = [
            self.array(aligned(buffers[0][start:stop]), packed(buffers[1][start:stop]))
            for buffers, start, stop in rows.pieces(field)
        ]
        return self.dtype.__from_arrow__(pa.chunked_array(chunks, self.kind))


@dataclass(frozen=True)
class Text:
    """Arrow strings or binary of any length: where each value starts, and their bytes."""

    dtype: Any
    kind: pa.DataType

    @property
    def wide(self) -> pa.DataType:
        text = pa.types.is_string(self.kind) or pa.types.is_large_string(self.kind)
        return pa.large_string() if text else pa.large_binary()

    def scatter(self, column: pd.Series, order: Order) -> list[Buffers]:
        array = as_arrow(column)
        wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        width = 8 if wide else 4
        _, offsets, data = array.buffers()
        if offsets is None or data is None:
            ends, source = np.zeros(len(array) + 1, f"i{width}"), 0
        else:
            ends = np.frombuffer(offsets, f"i{width}", len(array) + 1, array.offset * width)
            source = data.address
        starts = [lot.arena.empty(len(lot) + 1, np.int64) for lot in order.lots]
        kernels().lengths[width](ends, order.slots, order.streams([s[1:] for s in starts]))
        for s in starts:
            s[0] = 0
            np.cumsum(s[1:], out=s[1:])
        text = [lot.arena.empty(int(s[-1]), np.uint8) for lot, s in zip(order.lots, starts, strict=True)]
        streams = [
            address(buffer) + s[lot.starts[:-1]]
            for lot, s, buffer in zip(order.lots, starts, text, strict=True)
        ]
        kernels().spans[width](source, ends, order.slots, np.concatenate(streams))
        return columnwise(starts, text, order.scattered_validity(array))

    def join(self, field: Field, rows: Rows) -> Any:
        m, n = len(rows.blocks), len(rows)
        new, first, last = rows.arena.empty(n + 1, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
        ends, kept = rows.sources(field, 0, 8, rows.start, rows.stop + 1)
        kernels().offsets(ends, rows.counts, first, last, new)
        out = rows.arena.empty(int(new[-1]), np.uint8)
        text, kept = rows.sources(field, 1, 1, first, last)
        kernels().gather(text, last - first, address(out))
        del kept
        buffers = [rows.joined_validity(field, 2), pa.py_buffer(new), pa.py_buffer(out)]
        array = pa.Array.from_buffers(self.wide, n, buffers)
        if array.type == self.kind:
            return self.dtype.__from_arrow__(array)
        # Narrow offsets count to 2 GiB.
        cuts = np.searchsorted(new, np.arange(0, int(new[-1]), CHUNK)[1:], side="right") - 1
        edges = [0, *cuts.tolist(), n]
        chunks = [array.slice(a, b - a).cast(self.kind) for a, b in pairwise(edges) if a < b or n == 0]
        return self.dtype.__from_arrow__(pa.chunked_array(chunks, self.kind))

    def view(self, field: Field, rows: Rows) -> Any:
        if self.wide != self.kind:
            return self.join(field, rows)
        chunks = []
        for (ends, text, validity), start, stop in rows.pieces(field):
            offsets = aligned(ends[start : stop + 1])
            if not isinstance(text, np.ndarray):  # in a file
                text, offsets = text[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]
            buffers = [packed(validity[start:stop]), pa.py_buffer(offsets), pa.py_buffer(text)]
            chunks.append(pa.Array.from_buffers(self.kind, stop - start, buffers))
        return self.dtype.__from_arrow__(pa.chunked_array(chunks, self.kind))


@dataclass(frozen=True)
class Pickled:
    """Anything else, pickled once for each partition: where each pickle starts, and their bytes."""

    dtype: Any

    def scatter(self, column: pd.Series, order: Order) -> list[Buffers]:
        values = column.to_numpy() if isinstance(self.dtype, np.dtype) else column.array
        ordered = values.take(np.argsort(order.slots, kind="stable"))
        row = 0
        out: list[Buffers] = []
        for lot in order.lots:
            edges = (row + lot.starts).tolist()
            pickles = [pickle.dumps(ordered[a:b]) if a < b else b"" for a, b in pairwise(edges)]
            ends = np.cumsum([0, *map(len, pickles)], dtype=np.int64)
            out.append([ends, np.frombuffer(b"".join(pickles), np.uint8)])
            row = edges[-1]
        return out

    def join(self, field: Field, rows: Rows) -> Any:
        arrays = []
        for block in rows.blocks.tolist():
            ends, data = field.buffers[block]
            start, stop = ends[rows.slot : rows.slot + 2].tolist()
            arrays.append(pickle.loads(data[start:stop].tobytes()))
        if isinstance(self.dtype, np.dtype):
            return np.concatenate(arrays)
        return pd.concat([pd.Series(array) for array in arrays], ignore_index=True).array


def carrier_of(column: pd.Series) -> Carrier:
    """The one table of dtypes: how a column travels."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        plain = dtype.kind in "biufcmM" and dtype.itemsize in (1, 2, 4, 8, 16)
        return Fixed(dtype) if plain else Pickled(dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        return Zoned(np.dtype(f"M8[{dtype.unit}]"), dtype.tz)
    if isinstance(dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        return Category(codes.dtype, pickle.dumps(dtype.categories), bool(dtype.ordered))
    if hasattr(dtype, "__from_arrow__") and hasattr(column.array, "__arrow_array__"):
        kind = pa.array(column.array[:0]).type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return Text(dtype, kind)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return Text(dtype, kind)
        if pa.types.is_boolean(kind) or is_word(kind):
            return Masked(dtype, kind)
    return Pickled(dtype)


def is_word(kind: pa.DataType) -> bool:
    sized = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return sized and kind.bit_width in (8, 16, 32, 64, 128)


def join(field: Field, rows: Rows) -> Any:
    """The column of one partition, by whichever carriers its blocks came."""
    if field.alike:
        return field.carriers[0].join(field, rows)
    parts = [field.carriers[block].join(field, rows.alone(i)) for i, block in enumerate(rows.blocks)]
    if all(isinstance(part, pd.Categorical) for part in parts):
        return union_categoricals(_of_one_dtype(parts), ignore_order=True)
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True).array


def view(field: Field, rows: Rows) -> Any:
    """As `join`; of Arrow's values, pieces of the buffers themselves, unless they are many and small."""
    carrier = field.carriers[0]
    if field.alike and isinstance(carrier, (Masked, Text)) and len(rows) >= PIECE * len(rows.blocks):
        return carrier.view(field, rows)
    return join(field, rows)


def aligned(values: np.ndarray) -> np.ndarray:
    """The values where Arrow can read them: what came over a wire may start at any byte."""
    return values if address(values) % 8 == 0 else values.copy()


def packed(valid: np.ndarray) -> pa.Buffer | None:
    """A bitmap of bytes, of which there are none where all rows are there."""
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if len(valid) else None


def _of_one_dtype(parts: list[pd.Categorical]) -> list[pd.Categorical]:
    """With categories of one dtype. A block of nulls alone has none, and those of any dtype."""
    kinds = {part.categories.dtype for part in parts if len(part.categories)}
    kind = kinds.pop() if len(kinds) == 1 else object
    return [
        pd.Categorical.from_codes(part.codes, part.categories.astype(kind), ordered=part.ordered)
        for part in parts
    ]


def columnwise(*buffers: Buffers) -> list[Buffers]:
    return [list(of_lot) for of_lot in zip(*buffers, strict=True)]


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def as_arrow(column: pd.Series) -> pa.Array:
    array = pa.array(column.array)
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(array.type, array.type)
    return pa.concat_arrays(array.cast(wide).chunks or [pa.array([], wide)])


def bits(buffer: pa.Buffer | None, array: pa.Array) -> np.ndarray | None:
    """The bits of a bitmap that belong to an array, a byte each; None if there is no bitmap."""
    if buffer is None:
        return None
    stop = array.offset + len(array)
    packed = np.frombuffer(buffer, np.uint8, (stop + 7) // 8)
    return np.unpackbits(packed, bitorder="little", count=stop)[array.offset :]
