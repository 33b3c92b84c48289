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
from decimal import Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
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
_BEYOND = "a time beyond int64 microseconds"
_FINER = "a time finer than nanoseconds"
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
    array([11468921228449061269,  3313437023179882745,                    0],
          dtype=uint64)
    >>> bool((hash_keys(pa.array(["a", "b"])) == hash_keys(pd.Categorical(["a", "b"]))).all())
    True
    """
    seed = _checked_seed(seed)
    columns = _columns(keys)
    for column in columns:
        _guarded(column, _check, column.values)
    hashes = []
    for column in columns:
        out = np.empty(len(column.values), np.uint64)
        _guarded(column, _hash_into, column.values, out, seed)
        hashes.append(out)
    return hashes[0] if len(hashes) == 1 else _combine(hashes, seed)


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
    raise TypeError(f"a {_type_name(type(value))} has no key hash")


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
    return _large_number(Decimal(number))


@_canonical.register(float)
@_canonical.register(np.floating)
def _(value: Any) -> bytes | None:
    number = float(value)
    if number != value:  # NaN, or a longer float than float64
        if math.isnan(value):
            return None
        top, bottom = value.as_integer_ratio()
        places = bottom.bit_length() - 1  # top / 2**places == top * 5**places / 10**places
        return _canonical(Decimal(top * 5**places).scaleb(-places, Context(prec=50_000)))
    if number.is_integer() and -(2.0**63) <= number < 2.0**64:
        return _canonical(int(number))
    return struct.pack("<d", number)


@_canonical.register(Decimal)
def _(value: Decimal) -> bytes | None:
    if value.is_nan():
        return None
    if -(2**63) <= value < 2**64 and value == value.to_integral_value():
        return _canonical(int(value))
    return _large_number(value)


def _large_number(value: Decimal) -> bytes:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number == value:
        return struct.pack("<d", number)
    text = format(value, "f")
    return (text.rstrip("0") if "." in text else text).encode()


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
    return _canonical(value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC))


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
def _(value: Any) -> bytes | None:
    return _canonical(value.asm8)  # of the instant in UTC, in its own unit


@_canonical.register(np.datetime64)
@_canonical.register(np.timedelta64)
def _(value: Any) -> bytes | None:
    if np.isnat(value):
        return None
    unit, count = _unit(value.dtype)
    if unit in _MONTHS:
        words, _ = _time_words(np.array([value]).view(np.int64), unit, count, None)
        return int(words[0]).to_bytes(8, "little", signed=True)
    return _time_bytes(int(value.astype(np.int64)), unit, count)


@_canonical.register
def _(value: pa.Scalar) -> bytes | None:
    kind = value.type
    if not value.is_valid:
        _hash_into(
            pa.nulls(0, kind), np.empty(0, np.uint64), 0
        )  # a null of a type without key hash is an error too
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or _is_uuid(kind):
        inner: bytes | None = _canonical(value.value)
        return inner
    if pa.types.is_date64(kind):
        return _time_bytes(value.value // 86_400_000, "D")
    if (time := _time_unit(kind)) is not None:
        return _time_bytes(value.value, time)
    return _canonical(value.as_py())


def _time_bytes(value: int, unit: str, count: int = 1) -> bytes:
    value *= count
    if unit in _MICROS:
        word = value * _MICROS[unit]
    else:
        nanos, rest = divmod(value, _PER_NANO[unit])
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


class _Coded(NamedTuple):
    """Codes into distinct values; a negative code is null."""

    codes: Any
    distinct: Any

    def __len__(self) -> int:
        return len(self.codes)


class _Column(NamedTuple):
    name: Hashable
    dtype: str
    values: Any


class _BadRow(Exception):
    """A value without a key hash; `row` is None when its whole dtype has none."""

    def __init__(self, kind: type[Exception], why: str, row: int | None = None) -> None:
        self.kind, self.why, self.row = kind, why, row


def _columns(keys: Any) -> list[_Column]:
    columns: list[_Column]
    if isinstance(keys, pd.DataFrame):
        columns = [_column(name, series) for name, series in keys.items()]
    elif isinstance(keys, (pa.Table, pa.RecordBatch)):
        columns = [
            _column(name, column) for name, column in zip(keys.schema.names, keys.columns, strict=True)
        ]
    elif isinstance(keys, pd.MultiIndex):
        columns = [
            _Column(name, str(level.dtype), _Coded(np.asarray(codes), _values(level)))
            for name, level, codes in zip(keys.names, keys.levels, keys.codes, strict=True)
        ]
    elif isinstance(keys, list) and any(isinstance(key, tuple) for key in keys):
        columns = [_Column(i, "object", values) for i, values in enumerate(_transposed(keys))]
    else:
        columns = [_column(None, keys)]
    if not columns:
        raise ValueError("keys have no columns")
    return columns


def _column(name: Hashable, values: Any) -> _Column:
    if isinstance(values, (pd.Series, pd.Index)) and name is None:
        name = values.name
    dtype = (
        values.type if isinstance(values, (pa.Array, pa.ChunkedArray)) else getattr(values, "dtype", "object")
    )
    return _Column(name, str(dtype), _values(values))


def _values(values: Any) -> Any:
    """A column as a list, numpy array, Arrow array or chunks, codes, or a pandas array to read in blocks."""
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
    if isinstance(values, np.ma.MaskedArray) or not isinstance(
        values, (list, np.ndarray, pa.Array, pa.ChunkedArray, pd.api.extensions.ExtensionArray)
    ):
        raise TypeError(
            "keys must be a Series, Index, DataFrame, numpy array, pyarrow array or table, or a list; "
            f"got {_type_name(type(values))}"
        )
    return values


def _transposed(keys: list[Any]) -> list[list[Any]]:
    width = len(next(key for key in keys if isinstance(key, tuple)))
    for row, key in enumerate(keys):
        if not isinstance(key, tuple) or len(key) != width:
            raise ValueError(
                f"row {row}: a list of composite keys needs tuples of length {width}, got {key!r}"
            )
    return [list(values) for values in zip(*keys, strict=True)]


def _guarded(column: _Column, function: Callable[..., None], *args: Any) -> None:
    """Call a function on a column; what is wrong with a row is said with the column's name and dtype."""
    try:
        function(*args)
    except _BadRow as bad:
        row = _first_valid(column.values) if bad.row is None else bad.row
        where = "keys" if column.name is None else f"column {column.name!r}"
        at = "" if row is None else f", row {row}"
        raise bad.kind(f"{where} (dtype {column.dtype}){at}: {bad.why}") from None


def _first_valid(values: Any) -> int | None:
    if isinstance(values, _Coded):
        valid = np.asarray(values.codes) >= 0
    elif isinstance(values, (pa.Array, pa.ChunkedArray)):
        valid = np.asarray(values.is_valid())
    else:
        valid = ~np.asarray(pd.isna(values))
    return int(valid.argmax()) if valid.any() else None


def _check(values: Any) -> None:
    """Refuse a column by its types, before any column is hashed."""
    if isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype == object):
        _kinds(values)
    elif isinstance(values, _Coded):
        _check(values.distinct[:0])
    else:
        _hash_into(values[:0], np.empty(0, np.uint64), 0)


def _hash_into(values: Any, out: np.ndarray, seed: int) -> None:
    if isinstance(values, np.ndarray) and values.dtype != object:
        _hash_numpy(values, out, seed)
    elif isinstance(values, (list, np.ndarray)):
        _hash_objects(values, out, seed)
    elif isinstance(values, _Coded):
        _hash_coded(values, out, seed)
    elif isinstance(values, pa.ChunkedArray):
        start = 0
        for chunk in values.chunks or [pa.nulls(0, values.type)]:
            _hash_part(chunk, start, out, seed)
            start += len(chunk)
    elif isinstance(values, pa.Array):
        _hash_arrow(values, out, seed)
    else:
        for start, stop in _blocks(len(values)):
            _hash_part(_converted(values[start:stop]), start, out, seed)


def _hash_part(values: Any, start: int, out: np.ndarray, seed: int) -> None:
    """Hash some rows of a column, from row `start`."""
    try:
        _hash_into(values, out[start : start + len(values)], seed)
    except _BadRow as bad:
        row = None if bad.row is None else bad.row + start
        raise _BadRow(bad.kind, bad.why, row) from None


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _BLOCK, n)) for start in range(0, max(n, 1), _BLOCK))


def _converted(values: Any) -> Any:
    """A block of a pandas array that is neither numpy's nor Arrow's."""
    if isinstance(values, pd.RangeIndex):
        return np.arange(values.start, values.stop, values.step)
    if isinstance(values, pd.arrays.SparseArray):
        return _values(values.to_dense())
    if hasattr(values, "__arrow_array__"):
        return values.__arrow_array__()
    raise _BadRow(TypeError, "this type has no key hash")


def _hash_coded(coded: _Coded, out: np.ndarray, seed: int) -> None:
    codes, distinct = coded
    hashes = np.zeros(len(distinct) + 1, np.uint64)  # the last one is for code -1
    try:
        if len(distinct) <= max(len(codes), _BLOCK):
            _hash_into(distinct, hashes[:-1], seed)
        else:
            _hash_used(codes, distinct, hashes, seed)
    except _BadRow as bad:
        if bad.row is None:
            raise
        _hash_used(codes, distinct, hashes, seed)  # only values in use matter, and errors name their row
    for start, stop in _blocks(len(codes)):
        hashes.take(codes[start:stop].astype(np.intp), out=out[start:stop], mode="wrap")


def _hash_used(codes: np.ndarray, distinct: Any, hashes: np.ndarray, seed: int) -> None:
    """Hash only the distinct values that have a code, in order of appearance."""
    used = pd.unique(codes[codes >= 0])
    part = np.empty(len(used), np.uint64)
    try:
        _hash_into(_taken(distinct, used), part, seed)
    except _BadRow as bad:
        row = bad.row if bad.row is None else int((codes == used[bad.row]).argmax())
        raise _BadRow(bad.kind, bad.why, row) from None
    hashes[used] = part


def _taken(values: Any, rows: np.ndarray) -> Any:
    if isinstance(values, _Coded):
        return _Coded(values.codes[rows], values.distinct)
    return values.take(pa.array(rows) if isinstance(values, (pa.Array, pa.ChunkedArray)) else rows)


# ---------------------------------------------------------------------------------------------------- objects


_TEXT = {str, bytes, type(None), type(pd.NA), type(pd.NaT), float}
_INTS = {int, type(None), type(pd.NA), type(pd.NaT)}


def _kinds(values: list[Any] | np.ndarray) -> set[type]:
    """Types of all the values; one without a key hash is an error."""
    kinds: set[type] = set()
    for start, stop in _blocks(len(values)):
        new = set(map(type, _listed(values[start:stop]))) - kinds
        bad = [kind for kind in new if _canonical.dispatch(kind) is _canonical.dispatch(object)]
        if bad:
            row = next(row for row, value in enumerate(values[start:stop]) if type(value) in bad)
            raise _BadRow(
                TypeError, f"a {_type_name(type(values[start + row]))} has no key hash", start + row
            )
        kinds |= new
    return kinds


def _hash_objects(values: list[Any] | np.ndarray, out: np.ndarray, seed: int) -> None:
    kinds = _kinds(values)
    for start, stop in _blocks(len(values)):
        block = _listed(values[start:stop])
        array = _arrow_block(block, kinds)
        if array is not None:
            _hash_part(array, start, out, seed)
            continue
        for row, value in enumerate(block, start):
            try:
                out[row] = _hash_scalar(value, seed)
            except (TypeError, ValueError) as error:
                raise _BadRow(
                    TypeError if isinstance(error, TypeError) else ValueError, str(error), row
                ) from None


def _arrow_block(block: list[Any], kinds: set[type]) -> pa.Array | None:
    """The same values as Arrow; None unless it is certain that they are the same."""
    kind = pa.large_binary() if kinds <= _TEXT else pa.int64() if kinds <= _INTS else None
    if kind is None:
        return None
    try:
        return pa.array(block, kind, from_pandas=True)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):
        return None


def _listed(block: Any) -> list[Any]:
    return block if isinstance(block, list) else list(block.tolist())


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# ---------------------------------------------------------------------------------------------------- numpy


def _hash_numpy(values: np.ndarray, out: np.ndarray, seed: int) -> None:
    kind = values.dtype.kind
    if (
        kind in "iu"
        and values.dtype == np.dtype(f"{kind}8")
        and values.flags.c_contiguous
        and values.flags.aligned
    ):
        _hash_words(values, out, seed)
        return
    if kind in "SUT":
        for start, stop in _blocks(len(values)):
            _hash_part(values[start:stop].tolist(), start, out, seed)
        return
    if kind not in "biufmM":
        raise _BadRow(TypeError, "this type has no key hash")
    for start, stop in _blocks(len(values)):
        block = values[start:stop]
        if not block.dtype.isnative:
            block = block.astype(block.dtype.newbyteorder("="))
        if kind == "f" and values.dtype.itemsize > 8:
            _hash_part(list(block), start, out, seed)
        elif kind in "mM":
            unit, count = _unit(block.dtype)
            ticks = block.view(np.int64)
            _words_part(ticks, ticks == _NAT, unit, count, start, out, seed)
        else:
            _hash_numbers(block, out[start:stop], seed)


def _hash_numbers(block: np.ndarray, out: np.ndarray, seed: int) -> None:
    if block.dtype.kind != "f":
        _hash_words(block.astype(np.uint64 if block.dtype.kind == "u" else np.int64), out, seed)
        return
    block = block.astype(np.float64)
    words = block.view(np.int64).copy()
    whole = np.floor(block) == block
    signed = whole & (block >= -(2.0**63)) & (block < 2.0**63)
    words[signed] = block[signed].astype(np.int64)
    unsigned = whole & (block >= 2.0**63) & (block < 2.0**64)
    if unsigned.any():
        words[unsigned] = block[unsigned].astype(np.uint64).view(np.int64)
    _hash_words(words, out, seed)
    out[np.isnan(block)] = _NULL


def _unit(dtype: np.dtype[Any]) -> tuple[str, int]:
    """Unit of a numpy time, and how many of it one tick is."""
    unit, count = np.datetime_data(dtype)
    if unit == "generic" or (dtype.kind == "m" and unit in _MONTHS):
        raise _BadRow(TypeError, "a time without a definite unit has no key hash")
    return unit.replace("μs", "us"), count


def _words_part(
    ticks: np.ndarray, null: np.ndarray | None, unit: str, count: int, start: int, out: np.ndarray, seed: int
) -> None:
    part = out[start : start + len(ticks)]
    try:
        words, _ = _time_words(ticks, unit, count, null)
    except _BadRow as bad:
        raise _BadRow(bad.kind, bad.why, start + (bad.row or 0)) from None
    _hash_words(words, part, seed)
    if null is not None:
        part[null] = _NULL


def _time_words(ticks: np.ndarray, unit: str, count: int, null: np.ndarray | None) -> tuple[np.ndarray, None]:
    if unit in _MONTHS:
        factor = _MONTHS[unit] * count
        _refuse(np.abs(ticks) > 12 * 300_000 // factor, null, _BEYOND)
        ticks, unit, count = (ticks * factor).view("M8[M]").astype("M8[D]").view(np.int64), "D", 1
    if unit in _MICROS:
        factor = _MICROS[unit] * count
        if factor == 1:
            return ticks, None
        limit = (2**63 - 1) // factor
        _refuse((ticks > limit) | (ticks < -limit - (2**63 % factor == 0)), null, _BEYOND)
        return ticks * factor, None
    if count != 1:
        limit = (2**63 - 1) // count
        _refuse((ticks > limit) | (ticks < -limit), null, _BEYOND)
        ticks = ticks * count
    if unit != "ns":
        nanos = ticks // _PER_NANO[unit]
        _refuse(nanos * _PER_NANO[unit] != ticks, null, _FINER)
        ticks = nanos
    micros = ticks // 1_000
    return np.where(micros * 1_000 == ticks, micros, ticks), None


def _refuse(bad: np.ndarray, null: np.ndarray | None, why: str) -> None:
    if null is not None:
        bad = bad & ~null
    if bad.any():
        raise _BadRow(ValueError, why, int(bad.argmax()))


# ---------------------------------------------------------------------------------------------------- Arrow


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _time_unit(kind: pa.DataType) -> str | None:
    if pa.types.is_date32(kind):
        return "D"
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return str(kind.unit)
    return None


def _hash_arrow(array: pa.Array, out: np.ndarray, seed: int) -> None:
    kind = array.type
    types = pa.types
    if types.is_null(kind):
        out[:] = _NULL
        return
    if types.is_dictionary(kind):
        codes = array.indices.cast(pa.int64()).fill_null(-1)
        _hash_coded(_Coded(codes.to_numpy(), array.dictionary), out, seed)
        return
    if types.is_run_end_encoded(kind):
        _hash_runs(array, out, seed)
        return
    if _is_uuid(kind):
        array, kind = array.storage, array.storage.type
    if types.is_boolean(kind):
        _hash_numbers(array.cast(pa.uint8()).fill_null(0).to_numpy(), out, seed)
    elif types.is_integer(kind) or types.is_floating(kind):
        _hash_numpy(_fixed(array, kind.to_pandas_dtype()), out, seed)
    elif types.is_date64(kind):
        _hash_ticks(array, np.int64, "D", 86_400_000, out, seed)
    elif (unit := _time_unit(kind)) is not None:
        _hash_ticks(array, np.int32 if kind.bit_width == 32 else np.int64, unit, 1, out, seed)
    elif types.is_string(kind) or types.is_binary(kind):
        _hash_spans(array, 4, out, seed)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        _hash_spans(array, 8, out, seed)
    elif types.is_fixed_size_binary(kind):
        _hash_fixed(_address(array.buffers()[1]) + array.offset * kind.byte_width, kind.byte_width, out, seed)
    elif _is_view(kind):
        _hash_views(array, out, seed)
        return
    elif types.is_decimal(kind):
        _hash_objects(array.to_pylist(), out, seed)
    else:
        raise _BadRow(TypeError, "this type has no key hash")
    _clear_nulls(array, out)


def _is_view(kind: pa.DataType) -> bool:
    return str(kind) in ("string_view", "binary_view")


def _hash_runs(array: pa.Array, out: np.ndarray, seed: int) -> None:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = np.asarray(array.run_ends)[first : first + count].astype(np.int64) - array.offset
    lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
    hashes = np.empty(count, np.uint64)
    try:
        _hash_into(array.values[first : first + count], hashes, seed)
    except _BadRow as bad:
        row = None if bad.row is None else int(lengths[: bad.row].sum())
        raise _BadRow(bad.kind, bad.why, row) from None
    out[:] = np.repeat(hashes, lengths)


def _fixed(array: pa.Array, dtype: Any) -> np.ndarray:
    """The values of a fixed-width array, in place; anything may stand under nulls."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * np.dtype(dtype).itemsize)


def _hash_ticks(array: pa.Array, dtype: Any, unit: str, per_unit: int, out: np.ndarray, seed: int) -> None:
    values = _fixed(array, dtype)
    for start, stop in _blocks(len(array)):
        ticks = values[start:stop].astype(np.int64) // per_unit
        null = None if array.null_count == 0 else ~np.asarray(array[start:stop].is_valid())
        _words_part(ticks, null, unit, 1, start, out, seed)


def _clear_nulls(array: pa.Array, out: np.ndarray) -> None:
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return
    data = np.frombuffer(bitmap, np.uint8)
    for start, stop in _blocks(len(out)):
        first = array.offset + start
        bits = np.unpackbits(data[first // 8 : (array.offset + stop + 7) // 8], bitorder="little")
        out[start:stop] *= bits[first % 8 :][: stop - start]


# ---------------------------------------------------------------------------------------------------- kernels


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _hash_words(words: np.ndarray, out: np.ndarray, seed: int) -> None:
    """XXH64 of 64-bit words."""
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


def _combine(hashes: list[np.ndarray], seed: int) -> np.ndarray:
    """XXH64 over each row's hashes of several columns."""
    out = np.empty(len(hashes[0]), np.uint64)
    for start, stop in _blocks(len(out)):
        rows = np.stack([column[start:stop] for column in hashes], axis=1)
        _hash_fixed(rows.ctypes.data, 8 * len(hashes), out[start:stop], seed)
    return out


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

_lock = threading.Lock()
_compiled: _Kernels | None = None
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


def _kernels() -> _Kernels:
    """The compiled kernels. numba is imported here, so that a process that hashes no column never does it."""
    global _compiled
    if _compiled is None:
        with _lock:
            if _compiled is None:
                _compiled = _compile()
    return _compiled


def _compile() -> _Kernels:
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

    # LLVM leaves these as calls otherwise, at a third of the speed of short strings.
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

    def compiled(function: Callable[..., None], *types: Any) -> Callable[..., None]:
        signature = numba.void(*types)
        try:
            kernel: Callable[..., None] = numba.njit(signature, nogil=True, cache=True)(function)
        except Exception:  # a cache that cannot be written or read: compile for this process alone
            kernel = numba.njit(signature, nogil=True)(function)
        return kernel

    out = uint64[::1]
    source = numba.types.Array(uint64, 1, "C", readonly=True)
    return _Kernels(
        compiled(words, source, uint64, out),
        compiled(spans32, int64, int64, uint64, out),
        compiled(spans64, int64, int64, uint64, out),
        compiled(views, int64, int64, int64, int64, uint64, out),
    )
