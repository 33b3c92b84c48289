"""How a column travels: as plain buffers that can be cut at any partition.

Each kind of column has one carrier, chosen from the frame's meta, so that sender and receiver
agree without a word. `load` makes buffers of a block's column, `scatter` puts them in order of
the partitions, `cut` takes one worker's share, and `join` makes the column of one partition from
the shares of many blocks.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import union_categoricals

from chash_partition.dataframe.scatter import kernels
from chash_partition.hashing import empty

Buffers = list[np.ndarray]


@dataclass(frozen=True)
class Order:
    """Where the rows of a block go.

    Attributes
    ----------
    places : int32 (n,), the new position of each row
    starts : int64 (slots + 1,), the first new position of each slot
    """

    places: np.ndarray
    starts: np.ndarray

    @property
    def inverse(self) -> np.ndarray:
        out = np.empty(len(self.places), dtype=np.int64)
        out[self.places] = np.arange(len(out))
        return out


@dataclass(frozen=True)
class Share:
    """One partition's rows in one block.

    Attributes
    ----------
    buffers : of the column
    slot, start, stop : the partition's slot in the block, and its rows
    """

    buffers: Sequence[Any]
    slot: int
    start: int
    stop: int


class Carrier(Protocol):
    """How one column of one block travels. Carriers that are equal can be joined as one."""

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        """Buffers of a block's column, in the order of the partitions."""

    def cut(self, buffers: Buffers, order: Order, first: int, last: int) -> Buffers:
        """What of them belongs to the slots from `first` to before `last`; views."""

    def join(self, shares: list[Share]) -> Any:
        """The column of one partition, as pandas holds it."""


@dataclass(frozen=True)
class Fixed:
    """numpy values of 1, 2, 4, 8 or 16 bytes."""

    dtype: np.dtype[Any]

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        return [scattered(column.to_numpy(), order.places)]

    def cut(self, buffers: Buffers, order: Order, first: int, last: int) -> Buffers:
        return [rows(buffer, order, first, last) for buffer in buffers]

    def join(self, shares: list[Share]) -> Any:
        return joined(shares, 0, self.dtype)


@dataclass(frozen=True)
class Zoned(Fixed):
    """Timestamps with a zone, as their UTC instants."""

    zone: Any

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        instants = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return [scattered(instants.to_numpy(), order.places)]

    def join(self, shares: list[Share]) -> Any:
        instants = pd.DatetimeIndex(joined(shares, 0, self.dtype), copy=False)
        return instants.tz_localize("UTC").tz_convert(self.zone).array


@dataclass(frozen=True)
class Category(Fixed):
    """Codes of categories, which come pickled; blocks with other categories have other carriers."""

    categories: bytes
    ordered: bool

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        return [scattered(column.cat.codes.to_numpy(), order.places)]

    def join(self, shares: list[Share]) -> Any:
        codes = joined(shares, 0, self.dtype)
        return pd.Categorical.from_codes(codes, pickle.loads(self.categories), ordered=self.ordered)


@dataclass(frozen=True)
class Masked:
    """Arrow values of a fixed width, and which are there."""

    dtype: Any
    kind: pa.DataType

    @property
    def word(self) -> np.dtype[Any]:
        return np.dtype(f"V{max(8, self.kind.bit_width) // 8}")

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        array = as_arrow(column)
        if pa.types.is_boolean(self.kind):
            values = bits(array.buffers()[1], array)
        else:
            data, width = array.buffers()[1], self.kind.bit_width // 8
            values = np.frombuffer(data, f"V{width}", len(array), array.offset * width) if data else None
        values = np.zeros(len(array), self.word) if values is None else values
        return [scattered(values, order.places), scattered_validity(array, order)]

    def cut(self, buffers: Buffers, order: Order, first: int, last: int) -> Buffers:
        return [rows(buffer, order, first, last) for buffer in buffers]

    def join(self, shares: list[Share]) -> Any:
        values, n = joined(shares, 0, self.word), sum(share.stop - share.start for share in shares)
        if pa.types.is_boolean(self.kind):
            values = np.packbits(values.view(np.uint8), bitorder="little")
        buffers = [joined_validity(shares, 1), pa.py_buffer(values.view(np.uint8))]
        return self.dtype.__from_arrow__(pa.Array.from_buffers(self.kind, n, buffers))


@dataclass(frozen=True)
class Text:
    """Arrow strings or binary of any length."""

    dtype: Any
    kind: pa.DataType

    @property
    def wide(self) -> pa.DataType:
        text = pa.types.is_string(self.kind) or pa.types.is_large_string(self.kind)
        return pa.large_string() if text else pa.large_binary()

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        array = as_arrow(column)
        wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        width = np.int64 if wide else np.int32
        _, offsets, data = array.buffers()
        if offsets is None or data is None:
            ends, address = np.zeros(len(array) + 1, np.int64), 0
        else:
            at = array.offset * np.dtype(width).itemsize
            ends = np.frombuffer(offsets, width, len(array) + 1, at).astype(np.int64, copy=False)
            address = data.address
        new = empty(len(array) + 1, np.int64)
        new[0] = 0
        kernels().lengths(ends, order.places, new[1:])
        np.cumsum(new[1:], out=new[1:])
        out = empty(int(new[-1]), np.uint8)
        kernels().spans(address, ends, order.places, new, out.ctypes.data)
        return [new, out, scattered_validity(array, order)]

    def cut(self, buffers: Buffers, order: Order, first: int, last: int) -> Buffers:
        ends, data, valid = buffers
        start, stop = order.starts[first], order.starts[last]
        return [ends[start : stop + 1], data[ends[start] : ends[stop]], rows(valid, order, first, last)]

    def join(self, shares: list[Share]) -> Any:
        counts = np.array([share.stop - share.start for share in shares], dtype=np.int64)
        ends = [np.asarray(share.buffers[0][share.start : share.stop + 1]) for share in shares]
        n = int(counts.sum())
        new = empty(n + 1, np.int64)
        kernels().offsets(np.array([e.ctypes.data for e in ends], np.int64), counts, new)
        out = empty(int(new[-1]), np.uint8)
        pieces = []
        for share, e in zip(shares, ends, strict=True):
            base = int(share.buffers[0][0:1][0])
            pieces.append(np.asarray(share.buffers[1][int(e[0]) - base : int(e[-1]) - base]))
        np.concatenate(pieces, out=out)
        buffers = [joined_validity(shares, 2), pa.py_buffer(new), pa.py_buffer(out)]
        array = pa.Array.from_buffers(self.wide, n, buffers)
        return self.dtype.__from_arrow__(array if array.type == self.kind else array.cast(self.kind))


@dataclass(frozen=True)
class Pickled:
    """Anything else, pickled once for each partition."""

    dtype: Any

    def scatter(self, column: pd.Series, order: Order) -> Buffers:
        values = column.to_numpy() if isinstance(self.dtype, np.dtype) else column.array
        ordered = values.take(order.inverse)
        bounds = zip(order.starts, order.starts[1:], strict=False)
        pickles = [pickle.dumps(ordered[a:b], protocol=5) if a < b else b"" for a, b in bounds]
        ends = np.cumsum([0, *map(len, pickles)], dtype=np.int64)
        return [ends, np.frombuffer(b"".join(pickles), np.uint8)]

    def cut(self, buffers: Buffers, order: Order, first: int, last: int) -> Buffers:
        ends, data = buffers
        return [ends[first : last + 1], data[ends[first] : ends[last]]]

    def join(self, shares: list[Share]) -> Any:
        arrays = []
        for share in shares:
            ends = share.buffers[0]
            first, start, stop = (int(ends[i : i + 1][0]) for i in (0, share.slot, share.slot + 1))
            if stop > start:
                arrays.append(pickle.loads(share.buffers[1][start - first : stop - first].tobytes()))
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
        return Category(codes.dtype, pickle.dumps(dtype.categories, protocol=5), bool(dtype.ordered))
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


def join(carriers: list[Carrier], shares: list[Share]) -> Any:
    """The column of one partition from shares that came by these carriers."""
    if all(carrier == carriers[0] for carrier in carriers[1:]):
        return carriers[0].join(shares)
    parts = [carrier.join([share]) for carrier, share in zip(carriers, shares, strict=True)]
    if all(isinstance(part, pd.Categorical) for part in parts):
        return union_categoricals(parts, ignore_order=True)
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True).array


def as_arrow(column: pd.Series) -> pa.Array:
    array = pa.array(column.array)
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks or [pa.array([], array.type)])


def rows(buffer: np.ndarray, order: Order, first: int, last: int) -> np.ndarray:
    return buffer[order.starts[first] : order.starts[last]]


def scattered(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Fixed-width values in their new order."""
    width = values.dtype.itemsize
    word = np.dtype("complex128") if width == 16 else np.dtype(f"u{width}")
    out = empty(len(values), word)
    kernels().words[width](np.ascontiguousarray(values).view(word), places, out)
    return out.view(values.dtype)


def joined(shares: list[Share], buffer: int, dtype: np.dtype[Any]) -> np.ndarray:
    """The rows of all shares in a fixed-width buffer."""
    pieces = [np.asarray(share.buffers[buffer][share.start : share.stop]).view(dtype) for share in shares]
    out = empty(sum(map(len, pieces)), dtype)
    np.concatenate(pieces, out=out)
    return out


def bits(buffer: pa.Buffer | None, array: pa.Array) -> np.ndarray | None:
    """The bits of a bitmap that belong to an array, a byte each; None if there is no bitmap."""
    if buffer is None:
        return None
    stop = array.offset + len(array)
    packed = np.frombuffer(buffer, np.uint8, (stop + 7) // 8)
    return np.unpackbits(packed, bitorder="little", count=stop)[array.offset :]


# Validity is a byte a row, or nothing where all rows are there.


def scattered_validity(array: pa.Array, order: Order) -> np.ndarray:
    valid = bits(array.buffers()[0], array) if array.null_count else None
    return np.empty(0, np.uint8) if valid is None else scattered(valid, order.places)


def joined_validity(shares: list[Share], buffer: int) -> pa.Buffer | None:
    if not any(len(share.buffers[buffer]) for share in shares):
        return None
    pieces = [
        np.asarray(share.buffers[buffer][share.start : share.stop])
        if len(share.buffers[buffer])
        else np.ones(share.stop - share.start, np.uint8)
        for share in shares
    ]
    return pa.py_buffer(np.packbits(np.concatenate(pieces), bitorder="little"))
