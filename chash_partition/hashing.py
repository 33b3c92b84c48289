"""Key hashes: one ``uint64`` for a key, whatever type, unit, encoding or file it comes from.

Every value has canonical bytes (`canonical_bytes` is the table), a key hash is XXH64 of them, and a partition
is a range of hashes. Equal values hash equally; that is the whole point, and the format never changes.

Columns do not go through Python objects. A column is reduced to one of three things: 64-bit words (numbers
and times), spans of bytes in place (text and binary), or codes into a few distinct values (categories,
dictionaries, runs), whose hashes are computed once and looked up. Null keys hash to 0.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
import struct
import threading
import uuid
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import MAX_PREC, Context, Decimal
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

__all__ = ["canonical_bytes", "hash_key", "hash_keys", "partition_ids", "xxh64"]

_BLOCK = 1 << 15  # rows converted at a time: small enough for the cache, and for the promise on memory
_NULL = 0  # the hash of a null key, whatever the seed
_NAT = np.iinfo(np.int64).min
_MICROS = {
    "W": 604_800_000_000,
    "D": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_PER_NANO = {"ns": 1, "ps": 1_000, "fs": 1_000_000, "as": 1_000_000_000}
_MONTHS = {"Y": 12, "M": 1}
_MAX_MONTHS = 12 * 300_000  # more than int64 microseconds hold; numpy is exact up to here
_DAY64 = 86_400_000  # milliseconds
_BEYOND = "a time beyond int64 microseconds"
_FINER = "a time finer than nanoseconds"
T = TypeVar("T")

_NO_UNIT = "a time without a unit of fixed length has no key hash"
_NO_TYPE = "this type has no key hash"
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def hash_keys(keys: Any, *, seed: int = 0) -> np.ndarray:
    """Hash a column of keys, or several columns as one composite key.

    Parameters
    ----------
    keys : Series, Index, DataFrame, ndarray, pa.Array, pa.ChunkedArray, pa.Table, pa.RecordBatch or list
        Shape (n,), or n rows of several columns: a DataFrame, a table, a MultiIndex or a list of equally long
        tuples. One column alone hashes as that column. Any dtype of the table in `canonical_bytes`.
    seed : int
        0 <= seed < 2**64.

    Returns
    -------
    ndarray
        ``uint64``, shape (n,): XXH64 of each key's canonical bytes, 0 for nulls. Several columns are combined
        by XXH64 over their hashes as 8 little-endian bytes each.

    Raises
    ------
    TypeError
        A type that has no key hash, named with column, dtype and first bad row; also when there are no rows.
    ValueError
        A bad seed; no columns; a value that has no hash: a time out of range, a lone surrogate.

    Notes
    -----
    XXH64 is by Yann Collet: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md

    Examples
    --------
    >>> hash_keys(pd.Series([1, 2, None]))
    array([11468921228449061269, 16917558970995453360,                    0],
          dtype=uint64)
    >>> bool((hash_keys(pa.array(["a", "b"])) == hash_keys(pd.Categorical(["a", "b"]))).all())
    True
    """
    seed = _checked_seed(seed)
    columns = _columns(keys)
    for column in columns:
        _guarded(column, _check)
    out = _empty(len(columns[0].values))
    if len(columns) == 1:
        _guarded(columns[0], _hash_into, out, seed)
    else:
        _combine(columns, out, seed)
    return out


def hash_key(key: Any, seed: int = 0) -> int:
    """Hash one scalar key; equal to what `hash_keys` gives for it in a column.

    Parameters
    ----------
    key : scalar or tuple
        A tuple is a composite key, one value a column; a 1-tuple is its value.
    seed : int
        0 <= seed < 2**64.

    Returns
    -------
    int
        0 <= hash < 2**64; 0 for a null.

    Raises
    ------
    TypeError
        The value's type has no key hash, or the tuple is empty.
    ValueError
        A bad seed, a time out of range, a lone surrogate.

    Examples
    --------
    >>> hash_key("user_1")
    6577861505116132482
    >>> hash_key(1) == hash_key(1.0) == hash_key(True)
    True
    >>> hash_key((1, "a"))
    8111090763301302974
    """
    seed = _checked_seed(seed)
    if not isinstance(key, tuple):
        return _hash_scalar(key, seed)
    if not key:
        raise TypeError("a composite key needs at least one value, got ()")
    hashes = [_hash_scalar(value, seed) for value in key]
    return hashes[0] if len(hashes) == 1 else xxh64(struct.pack(f"<{len(hashes)}Q", *hashes), seed)


def partition_ids(hashes: np.ndarray, npartitions: int) -> np.ndarray:
    """Number of the partition that each hash falls into: equal ranges of the hash space, in order.

    Parameters
    ----------
    hashes : ndarray
        ``uint64``, shape (n,).
    npartitions : int
        1 <= P <= 2**31 - 1.

    Returns
    -------
    ndarray
        ``int32``, shape (n,): ((hash >> 32) * P) >> 32. So partition p of P is k*p to k*p + k-1 of k*P.

    Raises
    ------
    TypeError
        `hashes` is not ``uint64``.
    ValueError
        `npartitions` is out of range.

    Notes
    -----
    Multiply and shift instead of a remainder: D. Lemire, "Fast random integer generation in an interval",
    2019.

    Examples
    --------
    >>> partition_ids(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64), 10)
    array([0, 5, 9], dtype=int32)
    """
    npartitions = operator.index(npartitions)
    if not 1 <= npartitions < 2**31:
        raise ValueError(f"npartitions must be from 1 to 2**31 - 1, got {npartitions}")
    hashes = np.asarray(hashes)
    if hashes.dtype != np.uint64:
        raise TypeError(f"hashes must be uint64, got {hashes.dtype}")
    out = np.empty(len(hashes), np.int32)
    for start, stop in _blocks(len(hashes)):
        block = hashes[start:stop] >> np.uint64(32)
        block *= np.uint64(npartitions)
        block >>= np.uint64(32)
        out[start:stop] = block
    return out


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64 of bytes.

    Parameters
    ----------
    data : bytes
    seed : int
        0 <= seed < 2**64.

    Returns
    -------
    int
        0 <= hash < 2**64.

    Raises
    ------
    ValueError
        A bad seed.

    Notes
    -----
    By Yann Collet, through the ``xxhash`` package.

    Examples
    --------
    >>> xxh64(b"user_1")
    6577861505116132482
    """
    return int(xxhash.xxh64_intdigest(data, _checked_seed(seed)))


def canonical_bytes(value: Any) -> bytes | None:
    """Bytes that stand for one scalar value: the table behind every key hash.

    Parameters
    ----------
    value : scalar
        ===========================================================  ==================================
        value                                                        canonical bytes
        ===========================================================  ==================================
        None, NaN, NaT, NA, Decimal NaN                              None
        bool, int, float, Decimal: integral, in [-2**63, 2**64)      8 bytes little-endian,
                                                                     two's complement
        a number otherwise exactly a float64, infinities included    its float64 bits, little-endian
        any other number                                             UTF-8 of its plain notation
                                                                     without trailing zeros
        str                                                          UTF-8
        bytes                                                        the bytes
        timestamp (an aware one as UTC), date (midnight)             int64 microseconds since the epoch
                                                                     if whole, else nanoseconds
        timedelta, time of day without zone                          the same, of the span or since
                                                                     midnight
        UUID                                                         its 16 bytes
        ===========================================================  ==================================

        numpy, pandas and pyarrow scalars count as what they stand for.

    Returns
    -------
    bytes or None
        None for a null.

    Raises
    ------
    TypeError
        Any other type.
    ValueError
        A time beyond int64 microseconds or finer than nanoseconds; a string with a lone surrogate.

    Examples
    --------
    >>> canonical_bytes(258)
    b'\\x02\\x01\\x00\\x00\\x00\\x00\\x00\\x00'
    >>> canonical_bytes("é"), canonical_bytes(Decimal("0.10")), canonical_bytes(float("nan"))
    (b'\\xc3\\xa9', b'0.1', None)
    """
    return _canonical(value)


# ---------------------------------------------------------------------------------------------------- scalars


@functools.singledispatch
def _canonical(value: Any) -> bytes | None:
    raise TypeError(_no_hash(type(value)))


def _no_hash(kind: type) -> str:
    return f"a value of type {_name(kind)} has no key hash"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@_canonical.register(type(None))
@_canonical.register(type(pd.NA))
@_canonical.register(type(pd.NaT))
def _(value: Any) -> None:
    return None


@_canonical.register(int)
@_canonical.register(np.bool_)
@_canonical.register(np.integer)
def _(value: Any) -> bytes:
    number = int(value)
    if -(2**63) <= number < 2**64:
        return (number & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
    return _not_a_word(Decimal(number))


@_canonical.register(float)
@_canonical.register(np.floating)
def _(value: Any) -> bytes | None:
    number = float(value)
    if number == value:
        whole = number.is_integer() and -(2.0**63) <= number < 2.0**64
        return _canonical(int(number)) if whole else struct.pack("<d", number)
    if math.isnan(value):
        return None
    # A long double that is no float64: top / 2**places == top * 5**places / 10**places, in so many digits.
    top, bottom = value.as_integer_ratio()
    places = bottom.bit_length() - 1
    return _canonical(Decimal(top * 5**places).scaleb(-places, Context(prec=MAX_PREC)))


@_canonical.register(Decimal)
def _(value: Decimal) -> bytes | None:
    if value.is_nan():
        return None
    if -(2**63) <= value < 2**64 and value == value.to_integral_value():
        return _canonical(int(value))
    return _not_a_word(value)


def _not_a_word(value: Decimal) -> bytes:
    number = float(value)
    if number == value:
        return struct.pack("<d", number)
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text).encode()


@_canonical.register(str)
def _(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a lone surrogate has no UTF-8") from error


@_canonical.register(bytes)
@_canonical.register(bytearray)
@_canonical.register(memoryview)
def _(value: bytes | bytearray | memoryview) -> bytes:
    return bytes(value)


@_canonical.register
def _(value: uuid.UUID) -> bytes:
    return value.bytes


@_canonical.register
def _(value: dt.datetime) -> bytes | None:
    return _canonical(value - (_EPOCH if value.utcoffset() is None else _EPOCH_UTC))


@_canonical.register
def _(value: dt.date) -> bytes:
    return _time_bytes(value.toordinal() - _EPOCH.toordinal(), "D")


@_canonical.register
def _(value: dt.time) -> bytes:
    if value.tzinfo is not None:
        raise TypeError("a time of day with a zone has no key hash")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _time_bytes(seconds * 1_000_000 + value.microsecond, "us")


@_canonical.register
def _(value: dt.timedelta) -> bytes:
    return _time_bytes((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds, "us")


@_canonical.register(pd.Timestamp)
@_canonical.register(pd.Timedelta)
def _(value: Any) -> bytes:
    return _time_bytes(int(value.asm8.view("i8")), value.unit)  # in UTC


@_canonical.register(np.datetime64)
@_canonical.register(np.timedelta64)
def _(value: Any) -> bytes | None:
    if np.isnat(value):
        return None
    if not _definite(value.dtype):
        raise TypeError(_NO_UNIT)
    return _time_bytes(int(value.view("i8")), *np.datetime_data(value.dtype))


@_canonical.register
def _(value: pa.Scalar) -> bytes | None:
    kind = value.type
    try:
        _hash_into(pa.nulls(0, kind), np.empty(0, np.uint64), 0)
    except _BadRow as bad:
        raise bad.kind(f"a pyarrow scalar of type {kind}: {bad.why}") from None
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or _is_uuid(kind):
        inner: bytes | None = _canonical(value.value)
        return inner
    if _is_time(kind):
        return _time_bytes(value.value // (_DAY64 if pa.types.is_date64(kind) else 1), _time_unit(kind))
    return _canonical(value.as_py())


def _time_bytes(ticks: int, unit: str, count: int = 1) -> bytes:
    ticks *= count
    if unit in _MONTHS:
        months = ticks * _MONTHS[unit]
        if abs(months) > _MAX_MONTHS:
            raise ValueError(_BEYOND)
        ticks, unit = int(np.datetime64(months, "M").astype("M8[D]").astype(np.int64)), "D"
    if unit in _MICROS:
        word = ticks * _MICROS[unit]
    else:
        nanos, rest = divmod(ticks, _PER_NANO[unit])
        if rest:
            raise ValueError(_FINER)
        micros, rest = divmod(nanos, 1_000)
        word = nanos if rest else micros
    if not -(2**63) <= word < 2**63:
        raise ValueError(_BEYOND)
    return word.to_bytes(8, "little", signed=True)


def _hash_scalar(value: Any, seed: int) -> int:
    data = _canonical(value)
    return _NULL if data is None else int(xxhash.xxh64_intdigest(data, seed))


def _checked_seed(seed: int) -> int:
    seed = operator.index(seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
    return seed


# ---------------------------------------------------------------------------------------------------- columns


@dataclass(frozen=True)
class _Coded:
    """Codes into distinct values. A code that is negative, or null in Arrow, is a null."""

    codes: Any  # ndarray of integers, or an Arrow array
    distinct: Any

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> _Coded:
        return _Coded(self.codes[rows], self.distinct)


class _Column(NamedTuple):
    name: Hashable
    dtype: str
    values: Any


class _BadRow(Exception):
    """What has no key hash: a value, or a whole dtype when `row` is None."""

    def __init__(self, kind: type[Exception], why: str, row: int | None = None) -> None:
        super().__init__(why)
        self.kind, self.why, self.row = kind, why, row


@contextmanager
def _rows_of(rows: Any) -> Iterator[None]:
    """Part of a column is hashed; `rows` says where its rows are in the column, for errors."""
    try:
        yield
    except _BadRow as bad:
        raise _BadRow(bad.kind, bad.why, None if bad.row is None else int(rows[bad.row])) from None


def _columns(keys: Any) -> list[_Column]:
    if isinstance(keys, pd.DataFrame):
        columns = [_column(name, series) for name, series in keys.items()]
    elif isinstance(keys, (pa.Table, pa.RecordBatch)):
        columns = [_column(*named) for named in zip(keys.schema.names, keys.columns, strict=True)]
    elif isinstance(keys, pd.MultiIndex):
        columns = [
            _Column(
                number if name is None else name, str(level.dtype), _Coded(np.asarray(codes), _values(level))
            )
            for number, (name, level, codes) in enumerate(
                zip(keys.names, keys.levels, keys.codes, strict=True)
            )
        ]
    elif isinstance(keys, list) and any(isinstance(key, tuple) for key in keys):
        columns = [_column(number, values) for number, values in enumerate(_transposed(keys))]
    else:
        columns = [_column(getattr(keys, "name", None), keys)]
    if not columns:
        raise ValueError("keys have no columns")
    return columns


def _column(name: Hashable, values: Any) -> _Column:
    arrow = isinstance(values, (pa.Array, pa.ChunkedArray))
    dtype = values.type if arrow else getattr(values, "dtype", "object")
    return _Column(name, str(dtype), _values(values))


def _values(values: Any) -> Any:
    """A column as a list, ndarray, Arrow array, codes, or a pandas array to be converted in blocks."""
    if isinstance(values, pd.RangeIndex):
        return values
    if isinstance(values, (pd.Series, pd.Index)):
        values = values.array
    if isinstance(values, pd.Categorical):
        return _Coded(np.asarray(values.codes), _values(values.categories))
    if isinstance(values, pd.arrays.DatetimeArray):
        return np.asarray(values if values.tz is None else values.tz_convert(None))
    if isinstance(values, (pd.arrays.NumpyExtensionArray, pd.arrays.TimedeltaArray)):
        return np.asarray(values)
    if isinstance(values, pd.arrays.ArrowExtensionArray):
        return values.__arrow_array__()
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"keys must have one dimension, got an array of shape {values.shape}")
    known = (list, np.ndarray, pa.Array, pa.ChunkedArray, pd.api.extensions.ExtensionArray)
    if not isinstance(values, known) or isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            "keys must be a Series, Index, DataFrame, numpy array, pyarrow array or table, or a list, "
            f"not {_name(type(values))}"
        )
    return values


def _transposed(keys: list[Any]) -> list[list[Any]]:
    width = next(len(key) for key in keys if isinstance(key, tuple))
    for row, key in enumerate(keys):
        if not isinstance(key, tuple) or len(key) != width:
            raise ValueError(
                f"row {row}: a list of composite keys needs tuples of {width} values, got {key!r}"
            )
    return [list(values) for values in zip(*keys, strict=True)]


def _guarded(column: _Column, function: Callable[..., None], *args: Any) -> None:
    """Call a function on a column's values; an error names the column, its dtype and the row."""
    try:
        function(column.values, *args)
    except _BadRow as bad:
        row = _first_valid(column.values) if bad.row is None else bad.row
        where = "keys" if column.name is None else f"column {column.name!r}"
        at = "" if row is None else f", row {row}"
        raise bad.kind(f"{where} (dtype {column.dtype}){at}: {bad.why}") from None


def _combine(columns: list[_Column], out: np.ndarray, seed: int) -> None:
    """XXH64 of each row's hashes of several columns; only some rows of these are in memory at a time."""
    for start, stop in _blocks(len(out), 2 * _BLOCK):
        hashes = np.empty((len(columns), stop - start), np.uint64)
        for column, part in zip(columns, hashes, strict=True):
            _guarded(column, _hash_slice, slice(start, stop), part, seed)
        rows = np.ascontiguousarray(hashes.T)
        _hash_fixed(rows.ctypes.data, 8 * len(columns), out[start:stop], seed)


def _hash_slice(values: Any, rows: slice, out: np.ndarray, seed: int) -> None:
    with _rows_of(range(rows.start, rows.stop)):
        _hash_into(values[rows], out, seed)


def _first_valid(values: Any) -> int | None:
    if isinstance(values, _Coded):
        values = values.codes
        valid = np.asarray(values.is_valid() if isinstance(values, pa.Array) else values >= 0)
    elif isinstance(values, (pa.Array, pa.ChunkedArray)):
        if pa.types.is_run_end_encoded(values.type):  # pyarrow before 26 calls none of its nulls null
            return next((row for row, value in enumerate(values) if value.as_py() is not None), None)
        valid = np.asarray(values.is_valid())
    elif isinstance(values, np.ndarray) and values.dtype.kind == "V":
        valid = np.ones(len(values), bool)
    else:
        valid = ~np.asarray(pd.isna(values))
    return int(valid.argmax()) if valid.any() else None


def _check(values: Any) -> None:
    """Refuse a column by its types, before anything is hashed."""
    if isinstance(values, _Coded):
        _check(values.distinct[:0])
    elif isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype == object):
        _check_objects(values)
    else:
        _hash_into(values[:0], np.empty(0, np.uint64), 0)


def _check_objects(values: list[Any] | np.ndarray) -> None:
    known: set[type] = set()
    for start, stop in _blocks(len(values)):
        block = _listed(values[start:stop])
        new = set(map(type, block)) - known
        bad = [kind for kind in new if _canonical.dispatch(kind) is _canonical.dispatch(object)]
        if bad:
            row = next(row for row, value in enumerate(block) if type(value) in bad)
            raise _BadRow(TypeError, _no_hash(type(block[row])), start + row)
        known |= new


def _hash_into(values: Any, out: np.ndarray, seed: int) -> None:
    """Hash one column; which function knows how follows from what holds it."""
    if isinstance(values, _Coded):
        _hash_coded(values, out, seed)
    elif isinstance(values, pa.ChunkedArray):
        start = 0
        for chunk in values.chunks or [pa.nulls(0, values.type)]:
            _hash_rows(chunk, start, out, seed)
            start += len(chunk)
    elif isinstance(values, pa.Array):
        _hash_arrow(values, out, seed)
    elif isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype == object):
        _hash_objects(values, out, seed)
    elif isinstance(values, np.ndarray):
        _hash_numpy(values, out, seed)
    else:
        for start, stop in _blocks(len(values)):
            _hash_rows(_converted(values[start:stop]), start, out, seed)


def _hash_rows(values: Any, start: int, out: np.ndarray, seed: int) -> None:
    """Hash the rows of a column that begin at row `start`."""
    rows = slice(start, start + len(values))
    with _rows_of(range(len(out))[rows]):
        _hash_into(values, out[rows], seed)


def _blocks(n: int, size: int = _BLOCK) -> Iterator[tuple[int, int]]:
    """Ranges of rows; at least one, so that types are looked at when there are no rows."""
    return ((start, min(start + size, n)) for start in range(0, max(n, 1), size))


def _converted(values: Any) -> Any:
    """A block of a pandas array that is neither numpy's nor Arrow's."""
    if isinstance(values, pd.RangeIndex):
        return np.arange(values.start, values.stop, values.step)
    if isinstance(values, pd.arrays.SparseArray):
        return values.to_dense()
    if isinstance(values.dtype, pd.StringDtype):
        return list(values)
    if isinstance(values, (pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray)):
        return values.__arrow_array__()
    raise _BadRow(TypeError, _NO_TYPE)


def _hash_coded(coded: _Coded, out: np.ndarray, seed: int) -> None:
    codes, distinct = coded.codes, coded.distinct
    if len(distinct) > min(len(codes), max(len(codes) // 8, _BLOCK)):
        _hash_decoded(coded, out, seed)
        return
    hashes = np.full(len(distinct) + 1, _NULL, np.uint64)  # the last one is for code -1
    try:
        _hash_into(distinct, hashes[:-1], seed)
    except _BadRow as bad:
        if bad.row is None:
            raise
        _hash_decoded(coded, out, seed)  # the value may not be in use, and the error needs its row
        return
    for start, stop in _blocks(len(codes)):
        hashes.take(_positions(codes[start:stop]), out=out[start:stop], mode="wrap")


def _hash_decoded(coded: _Coded, out: np.ndarray, seed: int) -> None:
    """Hash coded values row by row, as if they were not coded."""
    for start, stop in _blocks(len(coded)):
        positions = _positions(coded.codes[start:stop])
        valid = np.flatnonzero(positions >= 0)
        hashes = np.empty(len(valid), np.uint64)
        with _rows_of(start + valid):
            _hash_into(_taken(coded.distinct, positions[valid]), hashes, seed)
        out[start:stop] = _NULL
        out[start + valid] = hashes


def _positions(codes: Any) -> np.ndarray:
    if isinstance(codes, pa.Array):
        codes = codes.cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
    return np.asarray(codes).astype(np.intp, copy=False)


def _taken(values: Any, positions: np.ndarray) -> Any:
    if isinstance(values, list):
        return [values[position] for position in positions]
    if isinstance(values, _Coded):
        return _Coded(_taken(values.codes, positions), values.distinct)
    if not isinstance(values, pa.Array):
        return _values(values.take(positions))
    try:
        return values.take(pa.array(positions))
    except pa.ArrowNotImplementedError:  # views and runs
        return pa.concat_arrays([values[p : p + 1] for p in positions.tolist()] or [values[:0]])


# ---------------------------------------------------------------------------------------------------- objects


_INTS = {int, type(None), type(pd.NA), type(pd.NaT)}


def _hash_objects(values: list[Any] | np.ndarray, out: np.ndarray, seed: int) -> None:
    text = True  # until a block is not
    for start, stop in _blocks(len(values)):
        block = _listed(values[start:stop])
        array = _as_text(block) if text else None
        text = array is not None
        if array is None:
            array = _as_ints(block)
        if array is not None:
            _hash_rows(array, start, out, seed)
            continue
        for row, value in enumerate(block, start):
            try:
                out[row] = _hash_scalar(value, seed)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise _BadRow(kind, str(error), row) from None


def _as_text(block: list[Any]) -> pa.Array | None:
    """Arrow's copy of strings, bytes and nulls as their canonical bytes; it takes nothing else."""
    try:
        return pa.array(block, pa.large_binary(), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _as_ints(block: list[Any]) -> pa.Array | None:
    """Arrow's copy of ints and nulls. It would truncate a float or a Decimal, so types are looked at."""
    if not _INTS.issuperset(map(type, block)):
        return None
    try:
        return pa.array(block, pa.int64(), from_pandas=True)
    except (pa.ArrowException, OverflowError):
        return None


def _listed(block: list[Any] | np.ndarray) -> list[Any]:
    return block if isinstance(block, list) else list(block.tolist())


# ---------------------------------------------------------------------------------------------------- numpy


def _hash_numpy(values: np.ndarray, out: np.ndarray, seed: int) -> None:
    dtype, kind = values.dtype, values.dtype.kind
    if kind in "mM" and not _definite(dtype):
        raise _BadRow(TypeError, _NO_UNIT)
    if kind not in "biufmMSUT":
        raise _BadRow(TypeError, _NO_TYPE)
    flags = values.flags
    if kind in "iu" and dtype.itemsize == 8 and dtype.isnative and flags.c_contiguous and flags.aligned:
        _hash_words(values, out, seed)
        return
    unit, count = np.datetime_data(dtype) if kind in "mM" else ("", 1)
    for start, stop in _blocks(len(values)):
        block, part = values[start:stop], out[start:stop]
        if kind in "SUT":
            _hash_rows(block.tolist(), start, out, seed)
        elif unit in _MONTHS or count > 1 or (kind == "f" and dtype.itemsize > 8):
            _hash_rows(list(block), start, out, seed)
        elif kind in "mM":
            ticks = block.astype(dtype.newbyteorder("=")).view(np.int64)
            with _rows_of(range(start, stop)):
                _hash_ticks(ticks, ticks == _NAT, unit, part, seed)
        elif kind == "f":
            _hash_floats(block.astype(np.float64), part, seed)
        else:
            _hash_words(block.astype(np.uint64 if kind == "u" else np.int64), part, seed)


def _definite(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy time has a unit, and one of fixed length if it is a span."""
    unit, _ = np.datetime_data(dtype)
    return unit != "generic" and not (dtype.kind == "m" and unit in _MONTHS)


def _hash_floats(block: np.ndarray, out: np.ndarray, seed: int) -> None:
    whole = np.floor(block) == block
    signed = whole & (block >= -(2.0**63)) & (block < 2.0**63)
    words = np.where(signed, np.where(signed, block, 0).astype(np.int64), block.view(np.int64))
    unsigned = whole & (block >= 2.0**63) & (block < 2.0**64)
    words[unsigned] = block[unsigned].astype(np.uint64).view(np.int64)
    _hash_words(words, out, seed)
    out[np.isnan(block)] = _NULL


def _hash_ticks(ticks: np.ndarray, null: np.ndarray, unit: str, out: np.ndarray, seed: int) -> None:
    """Hash times in a unit of fixed length as `_time_bytes` has them; nothing wraps around."""
    ticks = np.where(null, 0, ticks)
    if unit in _MICROS:
        factor = _MICROS[unit]
        _refuse((ticks > (2**63 - 1) // factor) | (ticks < -(2**63 // factor)), _BEYOND)
        words = ticks * factor
    else:
        nanos = ticks // _PER_NANO[unit]
        _refuse(nanos * _PER_NANO[unit] != ticks, _FINER)
        micros = nanos // 1_000
        words = np.where(micros * 1_000 == nanos, micros, nanos)
    _hash_words(words, out, seed)
    out[null] = _NULL


def _refuse(bad: np.ndarray, why: str) -> None:
    if bad.any():
        raise _BadRow(ValueError, why, int(bad.argmax()))


# ---------------------------------------------------------------------------------------------------- Arrow


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _is_time(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_timestamp, types.is_date, types.is_duration, types.is_time)
    return any(test(kind) for test in tests)


def _time_unit(kind: pa.DataType) -> str:
    return "D" if pa.types.is_date(kind) else str(kind.unit)


def _hash_arrow(array: pa.Array, out: np.ndarray, seed: int) -> None:
    if _is_uuid(array.type):
        array = array.storage
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        _hash_coded(_Coded(array.indices, array.dictionary), out, seed)
        return
    if types.is_run_end_encoded(kind):
        _hash_runs(array, out, seed)
        return
    if 0 < len(array) == array.null_count:
        out[:] = _NULL
        return
    if types.is_boolean(kind):
        _hash_bits(array, out, seed)
    elif types.is_integer(kind) or types.is_floating(kind):
        _hash_numpy(_fixed(array, kind.to_pandas_dtype()), out, seed)
    elif _is_time(kind):
        _hash_times(array, out, seed)
    elif types.is_decimal(kind):
        _hash_decimals(array, out, seed)
    elif types.is_string(kind) or types.is_binary(kind):
        _hash_spans(array, 4, out, seed)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        _hash_spans(array, 8, out, seed)
    elif types.is_fixed_size_binary(kind):
        buffer, width = array.buffers()[1], kind.byte_width
        _hash_fixed(_address(buffer) + array.offset * width, width, out, seed)
    elif str(kind) in ("string_view", "binary_view"):
        _hash_views(array, out, seed)
    elif not types.is_null(kind):
        raise _BadRow(TypeError, _NO_TYPE)
    _clear_nulls(array, out)


def _hash_runs(array: pa.Array, out: np.ndarray, seed: int) -> None:
    first, count = array.find_physical_offset(), array.find_physical_length()
    hashes = np.empty(count, np.uint64)
    ends = np.asarray(array.run_ends)[first : first + count].astype(np.int64) - array.offset
    with _rows_of(np.append(0, ends)):
        _hash_into(array.values[first : first + count], hashes, seed)
    for start, stop in _blocks(len(out)):
        i, j = np.searchsorted(ends, [start, stop - 1], "right")
        lengths = np.diff(np.minimum(ends[i : j + 1], stop), prepend=start)
        out[start:stop] = np.repeat(hashes[i : j + 1], lengths)


def _fixed(array: pa.Array, dtype: Any) -> np.ndarray:
    """The values of a fixed-width array, in place. Anything may stand under nulls."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.empty(0, dtype)
    dtype = np.dtype(dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def _hash_times(array: pa.Array, out: np.ndarray, seed: int) -> None:
    kind = array.type
    values = _fixed(array, f"i{kind.bit_width // 8}")
    for start, stop in _blocks(len(array)):
        ticks = values[start:stop].astype(np.int64)
        if pa.types.is_date64(kind):
            ticks //= _DAY64
        with _rows_of(range(start, stop)):
            _hash_ticks(ticks, _bits(array, 0, start, stop) == 0, _time_unit(kind), out[start:stop], seed)


def _hash_decimals(array: pa.Array, out: np.ndarray, seed: int) -> None:
    """Decimals, by arithmetic on their digits where these fit into an int64, else value by value."""
    width, scale = array.type.bit_width // 8, array.type.scale
    limbs = _fixed(array, (f"i{min(width, 8)}", (max(width // 8, 1),)))  # the lowest first
    easy_scale = scale if 0 <= scale <= 18 else 0
    for start, stop in _blocks(len(array)):
        block, part = array[start:stop], out[start:stop]
        digits = limbs[start:stop, 0].astype(np.int64)
        easy = (limbs[start:stop, 1:] == (digits >> 63)[:, None]).all(axis=1) & (scale == easy_scale)
        whole, fraction = np.divmod(digits, 10**easy_scale)
        odd, rest = np.divmod(digits, 5**easy_scale)  # if no rest, the value is odd / 2**scale
        binary = (rest == 0) & (np.abs(odd) <= 2**53)
        _hash_words(
            np.where(fraction == 0, whole, np.ldexp(odd.astype(float), -easy_scale).view(np.int64)),
            part,
            seed,
        )
        # Neither integral nor a float64: text, which Arrow writes without exponent down to a millionth.
        text = easy & (rest != 0) & (np.abs(digits) >= 10 ** max(easy_scale - 6, 0))
        if text.any():
            plain = pc.utf8_rtrim(block.filter(pa.array(text)).cast(pa.string()), "0")
            part[text] = hash_keys(plain, seed=seed)
        done = text | (easy & ((fraction == 0) | binary)) | (_bits(array, 0, start, stop) == 0)
        for row in np.flatnonzero(~done).tolist():
            part[row] = _hash_scalar(block[row].as_py(), seed)


def _hash_bits(array: pa.Array, out: np.ndarray, seed: int) -> None:
    hashes = np.array([_hash_scalar(False, seed), _hash_scalar(True, seed)], np.uint64)
    for start, stop in _blocks(len(out)):
        hashes.take(_bits(array, 1, start, stop), out=out[start:stop], mode="clip")


def _clear_nulls(array: pa.Array, out: np.ndarray) -> None:
    if array.null_count:
        for start, stop in _blocks(len(out)):
            out[start:stop] *= _bits(array, 0, start, stop)


def _bits(array: pa.Array, buffer: int, start: int, stop: int) -> np.ndarray:
    """Rows of a bitmap as 0 and 1; a bitmap that is not there is all 1."""
    bitmap = array.buffers()[buffer]
    if bitmap is None:
        return np.ones(stop - start, np.uint8)
    first, last = array.offset + start, array.offset + stop
    packed = np.frombuffer(bitmap, np.uint8)[first // 8 : (last + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[first % 8 :][: stop - start]


# ---------------------------------------------------------------------------------------------------- kernels


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _hash_words(words: np.ndarray, out: np.ndarray, seed: int) -> None:
    """XXH64 of 64-bit words."""
    if len(out):
        _kernels().words(words.view(np.uint64), np.uint64(seed), out)


def _hash_spans(array: pa.Array, width: int, out: np.ndarray, seed: int) -> None:
    """XXH64 of text or binary values in place, between offsets of `width` bytes."""
    if len(array):
        _, offsets, data = array.buffers()
        kernel = _kernels().spans32 if width == 4 else _kernels().spans64
        kernel(_address(data), offsets.address + array.offset * width, np.uint64(seed), out)


def _hash_fixed(address: int, width: int, out: np.ndarray, seed: int) -> None:
    """XXH64 of values of `width` bytes each."""
    for start, stop in _blocks(len(out)):
        if stop > start:
            offsets = np.arange(start, stop + 1, dtype=np.int64) * width
            _kernels().spans64(address, offsets.ctypes.data, np.uint64(seed), out[start:stop])


def _hash_views(array: pa.Array, out: np.ndarray, seed: int) -> None:
    """XXH64 of view arrays in place. What is under a null may point anywhere, so nulls are not read."""
    if len(array):
        bitmap, views, *buffers = array.buffers()
        data = np.array([_address(buffer) for buffer in buffers] or [0], dtype=np.int64)
        _kernels().views(
            data.ctypes.data, views.address, _address(bitmap), array.offset, np.uint64(seed), out
        )


def _empty(n: int) -> np.ndarray:
    """Room for hashes from Arrow's pool, which reuses memory; numpy's are fresh pages in a Dask worker."""
    return np.ndarray(n, np.uint64, buffer=pa.allocate_buffer(max(1, 8 * n)))


def once(make: Callable[[], T]) -> Callable[[], T]:
    """A function that makes its result on the first call, in whichever thread, and hands it out after."""
    made: list[T] = []
    lock = threading.Lock()

    def get() -> T:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return get


def compiled(function: Callable[..., None], *types: Any) -> Callable[..., None]:
    """A function of numba types as machine code that does not hold the GIL."""
    import numba

    signature = numba.void(*types)
    try:
        kernel: Callable[..., None] = numba.njit(signature, nogil=True, cache=True)(function)
    except Exception:  # a cache that cannot be written or read: compile for this process alone
        kernel = numba.njit(signature, nogil=True)(function)
    return kernel


class _Kernels(NamedTuple):
    words: Callable[..., None]
    spans32: Callable[..., None]
    spans64: Callable[..., None]
    views: Callable[..., None]


_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

_load_u8: Any
_load_i32: Any
_load_i64: Any
_load_u32: Any
_load_u64: Any
_rotate: Any
_round: Any
_step: Any
_merge: Any
_byte: Any
_finish: Any
_xxh64_at: Any


@once
def _kernels() -> _Kernels:
    """The compiled kernels. numba is imported here, so that a process that hashes no column never does it."""
    # What kernels call are globals: numba would key a cached closure by objects that differ in each process.
    global _load_u8, _load_i32, _load_i64, _load_u32, _load_u64
    global _rotate, _round, _step, _merge, _byte, _finish, _xxh64_at
    import numba
    from numba.extending import intrinsic

    int64, uint64 = numba.int64, numba.uint64

    def load(stored: Any, returned: Any) -> Any:
        """A load from any address, aligned or not."""

        def load(typing_context: Any, address: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                pointer = builder.inttoptr(args[0], context.get_value_type(stored).as_pointer())
                return context.cast(builder, builder.load(pointer, align=1), stored, returned)

            return returned(int64), generate

        return intrinsic(load)

    _load_u8, _load_i32, _load_i64 = load(numba.uint8, uint64), load(numba.int32, int64), load(int64, int64)
    _load_u32, _load_u64 = load(numba.uint32, uint64), load(uint64, uint64)

    def rotate(x: Any, bits: Any) -> Any:
        return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))

    def round_(lane: Any, word: Any) -> Any:
        return _rotate(lane + word * _P2, 31) * _P1

    def step(h: Any, word: Any) -> Any:
        return _rotate(h ^ _round(np.uint64(0), word), 27) * _P1 + _P4

    def merge(h: Any, lane: Any) -> Any:
        return (h ^ _round(np.uint64(0), lane)) * _P1 + _P4

    def byte(h: Any, address: Any) -> Any:
        return _rotate(h ^ (_load_u8(address) * _P5), 11) * _P1

    def finish(h: Any) -> Any:
        h = (h ^ (h >> np.uint64(33))) * _P2
        h = (h ^ (h >> np.uint64(29))) * _P3
        return h ^ (h >> np.uint64(32))

    def xxh64_at(address: Any, length: Any, seed: Any) -> Any:
        end = address + length
        if length >= 32:
            a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
            while address <= end - 32:
                a = _round(a, _load_u64(address))
                b = _round(b, _load_u64(address + 8))
                c = _round(c, _load_u64(address + 16))
                d = _round(d, _load_u64(address + 24))
                address += 32
            h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
            h = _merge(_merge(_merge(_merge(h, a), b), c), d)
        else:
            h = seed + _P5
        h += np.uint64(length)
        while address <= end - 8:
            h = _step(h, _load_u64(address))
            address += 8
        if length & 4:
            h = _rotate(h ^ (_load_u32(address) * _P1), 23) * _P2 + _P3
            address += 4
        if length & 2:
            h = _byte(_byte(h, address), address + 1)
            address += 2
        if length & 1:
            h = _byte(h, address)
        return _finish(h)

    # Left as calls by LLVM otherwise, which takes a third longer on short strings.
    inline = numba.njit(forceinline=True)
    _rotate, _round, _step, _merge = inline(rotate), inline(round_), inline(step), inline(merge)
    _byte, _finish, _xxh64_at = inline(byte), inline(finish), inline(xxh64_at)

    def words(values: Any, seed: Any, out: Any) -> None:
        start = seed + _P5 + np.uint64(8)
        for i in range(len(out)):
            out[i] = _finish(_step(start, values[i]))

    def spans32(data: Any, offsets: Any, seed: Any, out: Any) -> None:
        start = _load_i32(offsets)
        for i in range(len(out)):
            end = _load_i32(offsets + 4 * (i + 1))
            out[i] = _xxh64_at(data + start, end - start, seed)
            start = end

    def spans64(data: Any, offsets: Any, seed: Any, out: Any) -> None:
        start = _load_i64(offsets)
        for i in range(len(out)):
            end = _load_i64(offsets + 8 * (i + 1))
            out[i] = _xxh64_at(data + start, end - start, seed)
            start = end

    def views(data: Any, views: Any, bitmap: Any, first: Any, seed: Any, out: Any) -> None:
        for i in range(len(out)):
            row = first + i
            if bitmap != 0 and not (_load_u8(bitmap + (row >> 3)) >> np.uint64(row & 7)) & np.uint64(1):
                out[i] = 0
                continue
            view = views + 16 * row
            length = _load_i32(view)
            address = view + 4
            if length > 12:
                address = _load_i64(data + 8 * _load_i32(view + 8)) + _load_i32(view + 12)
            out[i] = _xxh64_at(address, length, seed)

    out = uint64[::1]
    source = numba.types.Array(uint64, 1, "C", readonly=True)
    return _Kernels(
        compiled(words, source, uint64, out),
        compiled(spans32, int64, int64, uint64, out),
        compiled(spans64, int64, int64, uint64, out),
        compiled(views, int64, int64, int64, int64, uint64, out),
    )
