"""Key hashes against a plain reading of the table, in every representation that can hold a value."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import re
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import examples, some, thorough

from chash_partition.hashing import canonical_bytes, compiled, hash_key, hash_keys, partition_ids, xxh64

# ------------------------------------------------------------ the table, read plainly


class Time:
    """A point in time, a span or a time of day, as nanoseconds: what no Python type can hold."""

    def __init__(self, kind: str, nanos: int) -> None:
        self.kind, self.nanos = kind, nanos

    def __repr__(self) -> str:
        return f"Time({self.kind!r}, {self.nanos})"


def oracle_bytes(value: Any) -> bytes | None:
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, bytes):
        return value
    if isinstance(value, uuid.UUID):
        return value.int.to_bytes(16, "big")
    if isinstance(value, Time):
        nanos = value.nanos
        return (nanos // 1000 if nanos % 1000 == 0 else nanos).to_bytes(8, "little", signed=True)
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=None) - (value.utcoffset() or dt.timedelta(0)) - dt.datetime(1970, 1, 1)
        return (since // dt.timedelta(microseconds=1)).to_bytes(8, "little", signed=True)
    if isinstance(value, dt.date):
        return ((value - dt.date(1970, 1, 1)).days * 86_400_000_000).to_bytes(8, "little", signed=True)
    if isinstance(value, dt.time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return micros.to_bytes(8, "little")
    if isinstance(value, dt.timedelta):
        return (value // dt.timedelta(microseconds=1)).to_bytes(8, "little", signed=True)
    # A number.
    if value != value:
        return None
    if value in (math.inf, -math.inf):
        return np.array(float(value), "<f8").tobytes()
    exact = Fraction(value)
    if exact.denominator == 1 and -(2**63) <= exact < 2**64:
        return (int(exact) % 2**64).to_bytes(8, "little")
    if abs(exact) < 2**1024 and Fraction(float(exact)) == exact:
        return np.array(float(exact), "<f8").tobytes()
    sign, whole, places = "-" if exact < 0 else "", abs(exact), 0
    while whole.denominator != 1:
        whole, places = whole * 10, places + 1
    digits = str(whole.numerator).rjust(places + 1, "0")
    return (sign + digits[: len(digits) - places] + ("." + digits[-places:] if places else "")).encode()


def oracle(value: Any, seed: int = 0) -> int:
    if isinstance(value, tuple) and len(value) > 1:
        return xxhash.xxh64_intdigest(b"".join(oracle(v, seed).to_bytes(8, "little") for v in value), seed)
    data = oracle_bytes(value)
    return 0 if data is None else xxhash.xxh64_intdigest(data, seed)


# ------------------------------------------------------------ representations


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def taken(array: pa.Array, positions: list[int]) -> pa.Array:
    """As `take`, which pyarrow does not have for every type."""
    return pa.concat_arrays([array[:0], *(array[i : i + 1] for i in positions)])


def garbage(array: pa.Array) -> pa.Array | None:
    """The same values with others under the nulls, and bits set in the bitmap beyond its end."""
    valid = np.asarray(array.is_valid())
    if valid.all() or not valid.any() or isinstance(array, pa.ExtensionArray):
        return None
    full = taken(array, [i if ok else int(valid.argmax()) for i, ok in enumerate(valid)])
    bitmap = pa.py_buffer(np.packbits([*valid, *[True] * 9], bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *full.buffers()[1:]], offset=full.offset)


def shapes(array: pa.Array) -> Iterator[tuple[str, Any]]:
    """Ways in which Arrow holds the same values."""
    n, kind = len(array), array.type
    yield f"{kind}", array
    yield f"{kind} chunks", pa.chunked_array([array[:1], array[:0], array[1:]], kind)
    for before in (1, 9):
        pad = pa.concat_arrays([array] * before)[:before] if n else array
        sliced = pa.concat_arrays([pad, array, pad])[len(pad) : len(pad) + n]
        yield f"{kind} slice at {before}", sliced
        yield f"{kind} table", pa.table({"k": sliced})
    yield f"{kind} batch", pa.record_batch({"k": array})
    dirty = garbage(array)
    if dirty is not None:
        yield f"{kind} with garbage under nulls", dirty
        yield f"{kind} with garbage under nulls, slices", pa.chunked_array([dirty[:1], dirty[1:]], kind)
    yield f"{kind} as pandas", pd.Series(array, dtype=pd.ArrowDtype(kind))
    if isinstance(array, pa.ExtensionArray):
        return
    codes = list(range(n))[::-1]
    nulls = pa.nulls(1, kind)
    for index in (pa.int8(), pa.uint16(), pa.int64()):
        values = pa.concat_arrays([taken(array, codes), nulls])
        valid = [code if i % 2 or array[i].is_valid else None for i, code in enumerate(codes)]
        dictionary = pa.DictionaryArray.from_arrays(pa.array(valid, index), values)
        yield f"{dictionary.type}", dictionary
        yield f"{dictionary.type} slice", pa.concat_arrays([dictionary, dictionary])[n:]
    yield (
        f"dictionary of dictionary {kind}",
        pa.DictionaryArray.from_arrays(pa.array(range(n), pa.int64()), dictionary),
    )
    for index in (pa.int16(), pa.int64()):
        encoded = pa.run_end_encoded(index, kind)
        yield f"{encoded}", pa.RunEndEncodedArray.from_arrays(list(range(1, n + 1)), array, encoded)
        # The first run is twice as long, of which the slice leaves one row.
        ends, values = [1, *range(2, n + 2)], pa.concat_arrays([array[:1], array]) if n else nulls
        yield f"{encoded} slice", pa.RunEndEncodedArray.from_arrays(ends, values, encoded)[1 : n + 1]


def pandas_shapes(label: str, series: pd.Series) -> Iterator[tuple[str, Any]]:
    yield label, series
    if series.dtype == np.float16:  # pandas has no such index, so no such category
        return
    yield f"{label} index", pd.Index(series)
    yield f"{label} frame", series.to_frame("k")
    yield f"{label} strided", pd.concat([series, series]).sort_index(kind="stable").iloc[::2]
    category = series.astype("category")
    yield f"category of {label}", category
    yield f"category of {label}, reversed", category.cat.reorder_categories(category.cat.categories[::-1])
    yield f"ordered category of {label}", category.cat.as_ordered()
    yield f"category index of {label}", pd.CategoricalIndex(category)
    yield f"multi-index of {label}", pd.MultiIndex.from_arrays([series], names=["k"])


def numpy_shapes(array: np.ndarray) -> Iterator[tuple[str, Any]]:
    label = f"numpy {array.dtype}"
    yield label, array
    yield f"{label} swapped", array.astype(array.dtype.newbyteorder())
    yield f"{label} strided", np.repeat(array, 3)[::3]
    yield f"{label} reversed", array[::-1].copy()[::-1]
    raw = np.zeros(array.nbytes + 1, np.uint8)
    raw[1:] = array.view(np.uint8)
    yield f"{label} unaligned", raw[1:].view(array.dtype)


ARROW_TYPES = [
    *[pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    *[pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()],
    *[
        pa.decimal32(9, 3),
        pa.decimal64(18, 2),
        pa.decimal128(38, 0),
        pa.decimal128(38, 9),
        pa.decimal128(38, 30),
    ],
    *[pa.decimal128(5, -2), pa.decimal256(76, 0), pa.decimal256(76, 20)],
    *[pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    *[pa.binary(n) for n in (0, 1, 3, 8, 16, 40)],
    pa.uuid(),
]
NUMPY_TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"]
NULLABLE_TYPES = ["Int8", "UInt16", "Int64", "UInt64", "Float32", "Float64", "boolean"]


def same(values: list[Any], others: list[Any]) -> bool:
    return [oracle_bytes(v) for v in values] == [oracle_bytes(v) for v in others]


def arrow_arrays(values: list[Any]) -> Iterator[pa.Array]:
    """The values as every Arrow type that holds them exactly."""
    for kind in ARROW_TYPES:
        try:
            if kind == pa.uuid():
                raw = [v.bytes if isinstance(v, uuid.UUID) else v for v in values]
                array = pa.ExtensionArray.from_storage(kind, pa.array(raw, pa.binary(16)))
            elif pa.types.is_boolean(kind):
                array = pa.array([v if v is None else {0: False, 1: True}[v] for v in values], kind)
            elif pa.types.is_integer(kind) or pa.types.is_decimal(kind):
                whole = [v if v is None or isinstance(v, Decimal) else Decimal(v) for v in values]
                array = pa.array(whole, pa.decimal256(76, 20)).cast(kind) if values else pa.array([], kind)
            elif pa.types.is_floating(kind):
                array = pa.array([v if v is None else float(v) for v in values], kind, from_pandas=True)
            else:
                array = pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, KeyError, ArithmeticError):
            continue
        if same(array.to_pylist(), values):
            yield array


def columns(values: list[Any]) -> Iterator[tuple[str, Any]]:
    """The values (numbers, text, bytes, UUIDs, nulls) in every column that can hold them."""
    yield "list", values
    yield "list of tuples of one", [(value,) for value in values] if values else values
    yield "objects", objects(values)
    yield "object series", pd.Series(objects(values), dtype=object)
    yield "object index", pd.Index(objects(values), dtype=object)
    for array in arrow_arrays(values):
        yield from shapes(array)
    present = [value for value in values if oracle_bytes(value) is not None]
    if not any(isinstance(value, (str, bytes, uuid.UUID)) for value in present):
        for code in NUMPY_TYPES:
            if code[0] != "f" and len(present) < len(values):
                continue
            read = int if code[0] in "iu" else float
            with np.errstate(all="ignore"):
                try:
                    array = np.array([math.nan if v is None else read(v) for v in values], np.dtype(code))
                except (OverflowError, ValueError):
                    continue
            if same(array.tolist(), values):
                yield from numpy_shapes(array)
                yield from pandas_shapes(f"series {code}", pd.Series(array))
                if code == "f8":
                    yield "sparse", pd.Series(pd.arrays.SparseArray(array))
        for name in NULLABLE_TYPES:
            read = int if "nt" in name else float
            with np.errstate(all="ignore"):
                try:
                    data = pd.array([pd.NA if oracle_bytes(v) is None else read(v) for v in values], name)
                except (OverflowError, ValueError, TypeError):
                    continue
            if same(data.tolist(), values):
                yield from pandas_shapes(name, pd.Series(data))
    if all(isinstance(value, str) for value in present):
        for dtype in ("string[python]", "string[pyarrow]", "str"):
            series = pd.Series(objects(values), dtype=dtype)
            if series.isna().sum() + len(present) == len(values):
                yield from pandas_shapes(dtype, series)
    if all(isinstance(value, str) for value in values) and not any(v.endswith("\0") for v in values):
        array = np.array(values, "U" if any(values) else "U1")
        yield from [("numpy U", array), ("numpy U swapped", array.astype(array.dtype.newbyteorder()))]
        if hasattr(np.dtypes, "StringDType"):
            yield "numpy T", np.array(values, np.dtypes.StringDType())
    if all(isinstance(value, bytes) for value in values) and not any(v.endswith(b"\0") for v in values):
        yield "numpy S", np.array(values, "S" if any(values) else "S1")


UNITS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
NUMPY_UNITS = {"W": 604_800 * 10**9, "D": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, **UNITS}


def ticks(nanos: list[int | None], size: int, bits: int = 64) -> list[int | None] | None:
    """The times in a unit of `size` nanoseconds, if they are whole and fit."""
    if any(
        n is not None and (n % size or not -(2 ** (bits - 1)) < n // size < 2 ** (bits - 1)) for n in nanos
    ):
        return None
    return [None if n is None else n // size for n in nanos]


def time_columns(kind: str, nanos: list[int | None]) -> Iterator[tuple[str, Any]]:
    """Times, given as nanoseconds, in every column that can hold them."""
    arrow: list[tuple[pa.DataType, int]] = []
    if kind == "timestamp":
        arrow = [
            (pa.timestamp(u, z), size) for u, size in UNITS.items() for z in (None, "UTC", "Asia/Kolkata")
        ]
        arrow += [(pa.date32(), NUMPY_UNITS["D"]), (pa.date64(), NUMPY_UNITS["D"])]
    elif kind == "duration":
        arrow = [(pa.duration(u), size) for u, size in UNITS.items()]
    elif kind == "time":
        arrow = [
            (pa.time32("s"), 10**9),
            (pa.time32("ms"), 10**6),
            (pa.time64("us"), 1000),
            (pa.time64("ns"), 1),
        ]
    for type_, size in arrow:
        bits = type_.bit_width
        whole = ticks(nanos, size, bits)
        if whole is not None:
            scale = 86_400_000 if type_ == pa.date64() else 1
            whole = [None if tick is None else tick * scale for tick in whole]
            yield from shapes(pa.array(whole, pa.int32() if bits == 32 else pa.int64()).view(type_))
    if kind in ("timestamp", "duration"):
        letter = "M" if kind == "timestamp" else "m"
        finer = {"ps": 1000, "fs": 10**6, "as": 10**9}
        for unit, size in [*NUMPY_UNITS.items(), *finer.items()]:
            whole = ticks(nanos, size) if unit in NUMPY_UNITS else ticks([n and n * size for n in nanos], 1)
            if whole is None:
                continue
            raw = np.array([np.iinfo(np.int64).min if t is None else t for t in whole], np.int64)
            array = raw.view(f"{letter}8[{unit}]")
            yield from numpy_shapes(array)
            yield f"objects of {unit}", objects(list(array))
            if all(t is None or t % 7 == 0 for t in whole):
                sevens = np.array([np.iinfo(np.int64).min if t is None else t // 7 for t in whole], np.int64)
                yield f"seven {unit}", sevens.view(f"{letter}8[7{unit}]")
            if unit in UNITS:
                series = pd.Series(array)
                assert series.dtype == array.dtype
                yield from pandas_shapes(f"series {array.dtype}", series)
                yield "object series", series.astype(object)
                if kind == "timestamp" and abs(series.dt.year - 2000).max() < 7000:
                    yield from pandas_shapes(
                        "aware", series.dt.tz_localize("UTC").dt.tz_convert("America/New_York")
                    )
    python = [None if n is None else python_time(kind, n) for n in nanos]
    if all(value is not None or n is None for value, n in zip(python, nanos, strict=True)):
        yield "python", python
        if kind == "timestamp":
            zone = dt.timezone(dt.timedelta(hours=-3, minutes=-30))
            yield "python, aware", [v and v.replace(tzinfo=dt.timezone.utc).astimezone(zone) for v in python]
            if all(v is None or v.time() == dt.time() for v in python):
                yield "python dates", [v and v.date() for v in python]


def python_time(kind: str, nanos: int) -> Any:
    try:
        if nanos % 1000:
            return None
        if kind == "timestamp":
            value = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=nanos // 1000)
            return value if 2 < value.year < 9990 else None
        if kind == "duration":
            return dt.timedelta(microseconds=nanos // 1000)
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=nanos // 1000)).time()
    except OverflowError:
        return None


def elements(keys: Any) -> list[Any]:
    """A column's scalars, where it is one and its library can express them."""
    try:
        if isinstance(keys, pd.Series):
            return [keys.iloc[i] for i in range(len(keys))]
        return list(keys) if isinstance(keys, (list, np.ndarray, pa.Array)) else []
    except (OverflowError, ValueError):  # pyarrow has no such datetime
        return []


def agree(representations: Iterator[tuple[str, Any]], values: list[Any], seed: int = 0) -> int:
    """Every representation has the oracle's hashes, so any two are equal; so have its elements as scalars."""
    expected = [oracle(value, seed) for value in values]
    count = 0
    for label, keys in representations:
        hashes = hash_keys(keys, seed=seed)
        assert hashes.dtype == np.uint64
        assert hashes.tolist() == expected, label
        if count % 4 == 0:
            assert [hash_key(key, seed) for key in elements(keys)] in (expected, []), label
        count += 1
    return count


# ------------------------------------------------------------ golden vectors

VECTORS = json.loads((Path(__file__).parent / "data" / "key_hash_vectors.json").read_text())["vectors"]


def read_timestamp(text: str) -> Time:
    seconds, fraction = text.split(".")
    since = dt.datetime.fromisoformat(seconds) - dt.datetime(1970, 1, 1)
    return Time("timestamp", since // dt.timedelta(seconds=1) * 10**9 + int(fraction))


def read_time(text: str) -> Time:
    since = dt.datetime.combine(dt.date(1970, 1, 1), dt.time.fromisoformat(text)) - dt.datetime(1970, 1, 1)
    return Time("time", since // dt.timedelta(microseconds=1) * 1000)


READERS: dict[str, Any] = {
    "int": int,
    "python_int": int,
    "float16": float.fromhex,
    "float32": float.fromhex,
    "float64": float.fromhex,
    "bool": bool,
    "decimal": Decimal,
    "string": str,
    "binary_hex": bytes.fromhex,
    "uuid": uuid.UUID,
    "null": lambda _: None,
    "timestamp_utc": read_timestamp,
    "date": lambda text: read_timestamp(f"{text}T00:00:00.0"),
    "time": read_time,
    "timedelta_us": lambda text: Time("duration", int(text) * 1000),
}


def representations(values: list[Any]) -> Iterator[tuple[str, Any]]:
    times = [value for value in values if isinstance(value, Time)]
    if times:
        yield from time_columns(times[0].kind, [None if v is None else v.nanos for v in values])
    else:
        yield from columns(values)


def name_of(vector: dict[str, Any]) -> str:
    return f"{vector['kind']} {vector['value']}"[:40].encode("unicode_escape").decode()


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == "composite"], ids=name_of)
def test_golden_vectors_of_several_columns(vector: dict[str, Any]) -> None:
    key, expected = tuple(READERS[kind](value) for kind, value in vector["value"]), int(vector["hash"])
    frame = pd.DataFrame({i: objects([value]) for i, value in enumerate(key)})
    assert oracle(key) == hash_key(key) == hash_keys([key]).item() == hash_keys(frame).item() == expected
    assert hash_keys(pa.table({str(i): [value] for i, value in enumerate(key)})).item() == expected


SINGLE = [vector for vector in VECTORS if vector["kind"] != "composite"]


@pytest.mark.parametrize("vector", SINGLE, ids=name_of)
def test_golden_vectors(vector: dict[str, Any]) -> None:
    seed, expected = int(vector.get("seed", 0)), int(vector["hash"])
    value = READERS[vector["kind"]](vector["value"])
    _, keys = next(representations([value]))
    assert oracle(value, seed) == hash_keys(keys, seed=seed).item() == expected
    assert [hash_key(key, seed) for key in elements(keys)] in ([expected], [])
    hashes = np.array([expected], np.uint64)
    assert partition_ids(hashes, 64).item() == vector["partition_of_64"]
    assert partition_ids(hashes, 1000).item() == vector["partition_of_1000"]


ONE_OF_EACH_KIND = list({vector["kind"]: vector for vector in SINGLE}.values())


@pytest.mark.parametrize("vector", some(SINGLE, ONE_OF_EACH_KIND), ids=name_of)
def test_golden_vectors_in_every_representation(vector: dict[str, Any]) -> None:
    value, seed = READERS[vector["kind"]](vector["value"]), int(vector.get("seed", 0))
    for values in ([value], [value, None, value, None, None, value]):
        assert agree(representations(values), values, seed) >= 10


DOCS = (Path(__file__).parent.parent / "docs" / "key-hash.md").read_text(encoding="utf-8")
WORKED = re.findall(r"^\| `(.+?)` \| (?:`([0-9a-f ]+)`|none) \| (\d+) \|$", DOCS, re.MULTILINE)


@pytest.mark.parametrize(("code", "data", "expected"), WORKED)
def test_worked_values_of_the_docs(code: str, data: str, expected: str) -> None:
    names = {"Decimal": Decimal, "dt": dt, "np": np, "pd": pd, "uuid": uuid}
    key = eval(code, names)
    assert hash_key(key) == int(expected)
    if isinstance(key, tuple):
        assert b"".join(hash_key(value).to_bytes(8, "little") for value in key) == bytes.fromhex(data)
    else:
        assert (canonical_bytes(key) or b"") == bytes.fromhex(data)
    assert len(WORKED) > 20


# ------------------------------------------------------------ random columns

EDGES = [
    0,
    1,
    -1,
    2**31,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**19,
    10**20,
]
small = st.integers(-130, 130)
floats = st.floats() | st.floats(width=16) | st.floats(width=32) | st.sampled_from(EDGES).map(float)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.decimals("-1e9", "1e9", places=9)
numbers = (
    small | small.map(float) | small.map(Decimal) | floats | decimals | st.sampled_from(EDGES) | st.booleans()
)
spans = st.timedeltas(dt.timedelta(-(10**8)), dt.timedelta(10**8))
FAMILIES = {
    "small ints": small,
    "ints": st.integers(-(2**63), 2**63 - 1) | small,
    "big ints": st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from(EDGES),
    "bools": st.booleans(),
    "floats": floats,
    "whole floats": small.map(float) | st.sampled_from(EDGES).map(float),
    "decimals": decimals | st.decimals(allow_nan=False, places=40) | st.decimals(-10, 10, places=0),
    "numbers": numbers,
    "text": st.text(max_size=80) | st.text("ab", min_size=3, max_size=3),
    "bytes": st.binary(max_size=80),
    "words": st.binary(min_size=8, max_size=8),
    "uuids": st.uuids(),
    "text and bytes": st.text(max_size=20) | st.binary(max_size=20),
    "anything": numbers
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.uuids()
    | st.datetimes()
    | spans
    | st.times()
    | st.dates(),
}
seeds = st.integers(0, 2**64 - 1) | st.just(0)


def nullable(values: st.SearchStrategy[Any], sizes: int = 12) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=sizes) | st.lists(values | st.none(), max_size=sizes)


@example(values=[], seed=0)
@example(values=[None, None], seed=0)
@examples(quick=5)
@given(
    values=st.sampled_from([name for name in FAMILIES if name != "anything"]).flatmap(
        lambda family: nullable(FAMILIES[family])
    ),
    seed=seeds,
)
def test_every_representation_agrees(values: list[Any], seed: int) -> None:
    agree(columns(values), values, seed)


@example(kind="timestamp", unit=1, counts=[], seed=0)
@example(kind="timestamp", unit=1000, counts=[-(2**63) + 1, 2**63 - 1, None], seed=0)
@example(kind="duration", unit=1, counts=[-(2**63) + 1, 2**63 - 1, None], seed=0)
@examples(quick=5)
@given(
    kind=st.sampled_from(["timestamp", "duration", "time"]),
    unit=st.sampled_from(sorted(NUMPY_UNITS.values())),
    counts=nullable(small | st.integers(-(2**63), 2**63) | st.integers(0, 10**6)),
    seed=seeds,
)
def test_every_representation_of_times_agrees(
    kind: str, unit: int, counts: list[int | None], seed: int
) -> None:
    limit = 86_400 * 10**9 if kind == "time" else 2**63 * 1000
    nanos = [
        None if count is None else count * unit % limit if kind == "time" else count * unit
        for count in counts
    ]
    nanos = [None if n is None or abs(n) >= limit or (n % 1000 and abs(n) >= 2**63) else n for n in nanos]
    agree(time_columns(kind, nanos), [None if n is None else Time(kind, n) for n in nanos], seed)


@examples(0.5)
@given(
    rows=st.lists(
        st.tuples(numbers | st.none(), st.text(max_size=9) | st.none(), st.binary(max_size=9)), min_size=1
    ),
    seed=seeds,
)
def test_several_columns_combine_their_hashes(rows: list[tuple[Any, ...]], seed: int) -> None:
    expected = [oracle(row, seed) for row in rows]
    frame = pd.DataFrame(
        {name: objects(list(values)) for name, values in zip("abc", zip(*rows, strict=True), strict=True)}
    )
    assert hash_keys(rows, seed=seed).tolist() == expected
    assert hash_keys(frame, seed=seed).tolist() == expected
    assert hash_keys(frame.astype({"b": "category"}), seed=seed).tolist() == expected
    assert hash_keys(pd.MultiIndex.from_frame(frame[["b", "c"]]), seed=seed).tolist() == [
        oracle(row[1:], seed) for row in rows
    ]
    assert [hash_key(row, seed) for row in rows] == expected
    strings = pa.table({"b": pa.array(frame["b"], pa.string()), "c": pa.array(frame["c"], pa.binary())})
    assert hash_keys(strings, seed=seed).tolist() == [oracle(row[1:], seed) for row in rows]
    assert (
        hash_keys(strings.combine_chunks().to_batches()[0], seed=seed).tolist()
        == hash_keys(strings, seed=seed).tolist()
    )
    assert hash_keys(frame[["a"]], seed=seed).tolist() == hash_keys(frame["a"], seed=seed).tolist()


@examples(0.5)
@given(values=nullable(FAMILIES["anything"], 30), seed=seeds)
def test_object_columns_go_value_by_value(values: list[Any], seed: int) -> None:
    expected = [oracle(value, seed) for value in values]
    for keys in (values, objects(values), pd.Series(objects(values), dtype=object)):
        assert hash_keys(keys, seed=seed).tolist() == expected
    assert [hash_key(value, seed) for value in values] == expected
    assert [canonical_bytes(value) for value in values] == [oracle_bytes(value) for value in values]


@pytest.mark.parametrize("n", [32_767, 32_768, 32_769, 140_000])
def test_blocks_meet(n: int) -> None:
    """Rows at the edges of the blocks in which columns are converted."""
    numbers = np.arange(n) * 7919 - n
    expected = hash_keys(numbers)
    assert [expected[i] for i in (0, 32_767 % n, n - 1)] == [
        oracle(int(numbers[i])) for i in (0, 32_767 % n, n - 1)
    ]
    valid = np.arange(n) % 5 != 0
    masked = np.where(valid, expected, 0)
    codes = np.where(valid, np.arange(n) % 1000, -1)
    for keys in (
        numbers.astype(float),
        numbers.astype(">i4"),
        list(map(int, numbers)),
        pd.Series(numbers, dtype="Int64"),
        pd.Index(numbers),
    ):
        assert (hash_keys(keys) == expected).all()
    assert (hash_keys(pd.RangeIndex(-n, -n + n * 7919, 7919)) == expected).all()
    array = pa.array(numbers, mask=~valid)
    runs = pa.RunEndEncodedArray.from_arrays(np.arange(2, 2 * n + 2, 2), array)
    padded = pa.concat_arrays([pa.array([None, 1, 2]), array])[3:]
    for keys in (array, padded, array.cast(pa.decimal128(38, 3)), pd.Series(numbers).where(valid)):
        assert (hash_keys(keys) == masked).all()
    assert (hash_keys(runs) == np.repeat(masked, 2)).all()
    assert (
        hash_keys(pd.Categorical.from_codes(codes, numbers[:1000])) == np.where(valid, expected[codes], 0)
    ).all()
    pairs = pd.DataFrame({"a": numbers, "b": pd.Series(numbers).where(valid)})
    assert hash_keys(pairs)[[0, n - 1]].tolist() == [
        oracle((int(numbers[i]), int(numbers[i]) if valid[i] else None)) for i in (0, n - 1)
    ]
    for text in (pa.string(), pa.large_string(), pa.string_view()):
        strings = pa.array(
            [str(i) if ok else None for i, ok in zip(numbers.tolist(), valid, strict=True)], text
        )
        assert hash_keys(strings)[[1, 32_767 % n, n - 1]].tolist() == [
            oracle(strings[i].as_py()) for i in (1, 32_767 % n, n - 1)
        ]
        assert (hash_keys(strings) == hash_keys(strings.to_pylist())).all()


@pytest.mark.parametrize("length", range(120))
def test_every_length_of_text(length: int) -> None:
    text = "".join(chr(33 + i * 7 % 90) for i in range(length))
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.binary_view(),
        pa.binary(length),
    ):
        for before in ("", "x", "yyy"):
            array = pa.array([text] if str(kind).startswith("fixed") else [before, text, before], kind)
            assert hash_keys(array, seed=2**64 - 1)[len(array) // 2] == oracle(text, 2**64 - 1)


def test_nulls_hash_to_zero_whatever_the_seed() -> None:
    nulls = [
        None,
        float("nan"),
        np.float32("nan"),
        pd.NA,
        pd.NaT,
        np.datetime64("NaT", "s"),
        np.timedelta64("NaT", "s"),
    ]
    nulls += [
        Decimal("nan"),
        Decimal("sNaN"),
        pa.scalar(None),
        pa.scalar(None, pa.string()),
        np.longdouble("nan"),
    ]
    for null in nulls:
        assert hash_key(null, 5) == 0
        assert canonical_bytes(null) is None
    assert hash_keys(nulls, seed=5).tolist() == [0] * len(nulls)
    assert hash_keys(pa.nulls(3), seed=5).tolist() == [0] * 3


def test_numbers_are_equal_across_types() -> None:
    assert hash_key(2.0**63) == hash_key(2**63) == hash_keys(np.array([2**63], np.uint64))[0]
    assert (
        hash_key(1)
        == hash_key(True)
        == hash_key(1.0)
        == hash_key(Decimal("1.000"))
        == hash_key(np.float16(1))
    )
    assert hash_key(-0.0) == hash_key(0)
    edges = [
        1.5 * 2.0**62,
        2.0**63,
        1.5 * 2.0**63,
        2.0**64,
        -(2.0**63),
        -1.5 * 2.0**63,
        2.0**53 + 2,
        0.0,
        -0.0,
        1e-320,
    ]
    assert hash_keys(np.array(edges)).tolist() == [oracle(edge) for edge in edges]
    assert hash_key(10**20) == hash_key(1e20) == hash_key(Decimal("1E+20"))
    assert canonical_bytes(10**5000) == b"1" + b"0" * 5000
    assert canonical_bytes(Decimal("-0.10")) == b"-0.1"
    assert (
        canonical_bytes(np.longdouble(2) ** 70 + 128) == str(2**70 + 128).encode()
        or np.finfo(np.longdouble).nmant < 63
    )
    assert hash_keys(np.array([1.5, 0.1, np.nan], np.longdouble)).tolist() == [oracle(1.5), oracle(0.1), 0]


@pytest.mark.parametrize("scale", [*range(20), 25, -3])
def test_decimals_of_every_kind(scale: int) -> None:
    """Integral, exactly a float64, or neither; digits in an int64 or not; text with an exponent in Arrow."""
    digits = [
        0,
        1,
        -1,
        5,
        -10,
        125,
        2**53,
        2**53 + 1,
        5**18,
        2**62,
        2**63 - 1,
        -(2**63),
        2**63,
        3 * 2**62,
        10**25,
    ]
    digits += [10**k * 7 for k in range(0, 30, 3)] + [5**k * 3 for k in range(0, 30, 4)]
    values = [None if d == 7 else Decimal(d).scaleb(-scale) for d in digits]
    for kind in (pa.decimal128(38, scale), pa.decimal256(76, scale)):
        array = pa.array(values, kind)
        assert hash_keys(array, seed=9).tolist() == [oracle(value, 9) for value in values]
        assert hash_keys(array[3:], seed=9).tolist() == [oracle(value, 9) for value in values[3:]]
    if 0 <= scale <= 18:
        values = [v for v, d in zip(values, digits, strict=True) if d == 7 or (abs(d) < 10**9 and scale < 10)]
        for kind in (pa.decimal32(9, min(scale, 9)), pa.decimal64(18, scale)):
            assert hash_keys(pa.array(values, kind)).tolist() == [oracle(value) for value in values]


def test_years_and_months() -> None:
    years = np.array([-3000, 0, 54, 20_000, "NaT"], "M8[Y]")
    months = np.array([-36_000, 0, 650, 240_000, "NaT"], "M8[M]")
    for times in (years, months, years.astype(">M8[Y]"), np.array([27, 0], "M8[2Y]")):
        days = times.astype("M8[D]")
        assert hash_keys(times).tolist() == hash_keys(days).tolist() == [hash_key(time) for time in times]
    assert hash_keys(years)[2] == oracle(dt.date(2024, 1, 1))
    quarters = np.array([2**62 // 1000 * 1000], "M8[4ns]")  # in reach as microseconds only
    assert hash_keys(quarters)[0] == hash_key(quarters[0]) == oracle(Time("timestamp", 2**62 // 1000 * 4000))


# ------------------------------------------------------------ codes, views and garbage


def view(values: list[int | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def test_only_values_in_use_matter() -> None:
    late = pa.array([2**62, 5, 7], pa.int64()).view(pa.timestamp("s"))
    dictionary = pa.DictionaryArray.from_arrays(pa.array([1, None, 2, 1], pa.int8()), late)
    assert hash_keys(dictionary).tolist() == hash_keys(dictionary.cast(late.type)).tolist()
    with pytest.raises(ValueError, match="row 2: a time beyond int64 microseconds"):
        hash_keys(pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), late))
    mixed = pd.Categorical.from_codes([1, -1, 1], pd.Index([(1, 2), "a"], tupleize_cols=False))
    assert hash_keys(mixed).tolist() == [oracle("a"), 0, oracle("a")]
    with pytest.raises(TypeError, match=r"column 'c' \(dtype category\), row 3: .*tuple"):
        hash_keys(pd.Series(pd.Categorical.from_codes([1, -1, 1, 0], mixed.categories), name="c"))


def test_more_values_than_rows() -> None:
    """A few rows of a large dictionary, among them nulls."""
    values = [f"value {i}" for i in range(1000)]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        dictionary = pa.DictionaryArray.from_arrays(pa.array([999, None, 0, 999]), pa.array(values, kind))
        assert hash_keys(dictionary).tolist() == [
            oracle(v) for v in ("value 999", None, "value 0", "value 999")
        ]
    category = pd.Categorical.from_codes([999, -1, 0], values)
    assert hash_keys(category).tolist() == [oracle("value 999"), 0, oracle("value 0")]
    ranged = pd.MultiIndex(levels=[pd.RangeIndex(1000)], codes=[[999, -1, 0]])
    assert hash_keys(ranged).tolist() == [oracle(999), 0, oracle(0)]


def test_garbage_under_nulls_is_never_read() -> None:
    valid = pa.py_buffer(bytes([0b101]))
    wild = np.array([[3, 0x636261, 0, 0], [2**30, 7, 2**30, 2**30], [1, 0x61, 0, 0]], np.int32)
    views = pa.Array.from_buffers(pa.string_view(), 3, [valid, pa.py_buffer(wild.tobytes())])
    assert hash_keys(views).tolist() == [oracle("abc"), 0, oracle("a")]
    codes = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([0, 2**60, 1]).tobytes())])
    for n in (2, 1000):
        dictionary = pa.DictionaryArray.from_arrays(codes, pa.array([f"{i}" for i in range(n)]), safe=False)
        assert hash_keys(dictionary).tolist() == [oracle("0"), 0, oracle("1")]
    for kind in (pa.timestamp("s"), pa.duration("ms"), pa.date64(), pa.float64(), pa.uint64()):
        raw = pa.py_buffer(np.array([1, 2**62 + 1, 2]).tobytes())
        dirty = pa.Array.from_buffers(kind, 3, [valid, raw])
        assert hash_keys(dirty)[1] == 0


def test_the_lowest_time_of_arrow_is_a_time() -> None:
    """What numpy and pandas take for NaT."""
    lowest = view([-(2**63), 1000], pa.timestamp("us"))
    assert hash_keys(lowest).tolist() == [hash_key(-(2**63)), hash_key(1000)] == [hash_key(t) for t in lowest]


def test_a_date_is_midnight() -> None:
    """date64 counts milliseconds; what is within a day does not matter, as for pyarrow's own values."""
    dates = pa.array([86_400_000 * 3 + 5, -1], pa.int64()).view(pa.date64())
    assert hash_keys(dates).tolist() == [oracle(dt.date(1970, 1, 4)), oracle(dt.date(1969, 12, 31))]
    assert [hash_key(date) for date in dates] == hash_keys(dates).tolist()


# ------------------------------------------------------------ errors


LISTS = pa.array([None, [1]], pa.list_(pa.int64()))
NO_HASH = [
    (LISTS, r"keys \(dtype list<.*>\), row 1: this type has no key hash"),
    (pa.chunked_array([LISTS[:1], LISTS]), r"row 2"),
    (pa.table({"a": [1, 2], "b": LISTS}), r"column 'b' \(dtype list<.*>\), row 1"),
    (pa.array([{"a": 1}]), r"dtype struct<a: int64>\), row 0"),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), r"dtype map<.*>\), row 0"),
    (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), r"dtype month_day_nano_interval\), row 0"),
    (pa.RunEndEncodedArray.from_arrays([1, 3], LISTS), r"row 1"),
    (pd.Series([1j], name="z"), r"column 'z' \(dtype complex128\), row 0"),
    (pd.period_range("2024-01", periods=2, freq="M", name="p"), r"column 'p' \(dtype period\[M\]\), row 0"),
    (pd.Series(pd.interval_range(0, 2), name="i"), r"column 'i' \(dtype interval.*\), row 0"),
    (pd.Categorical(pd.interval_range(0, 2)), r"dtype category\), row 0"),
    (np.zeros(2, "i4,i4"), r"dtype \[.*\]\), row 0"),
    (np.array([1, 2], "m8[M]"), r"dtype timedelta64\[M\]\), row 0: .*fixed length"),
    (np.array([5], "i8").view("m8"), r"row 0: .*fixed length"),
    (pd.Series([1, "a", [2], {}], name="o"), r"column 'o' \(dtype object\), row 2: .*list"),
    (pd.DataFrame({"a": [1, 2], "b": [None, {}]}), r"column 'b' \(dtype object\), row 1: .*dict"),
    (objects([None, (1, 2)]), r"row 1: .*tuple"),
    (objects([dt.time(1), dt.time(1, tzinfo=dt.timezone.utc)]), r"row 1: a time of day with a zone"),
    ([1, Fraction(1, 3)], r"row 1: .*fractions.Fraction"),
    ([pa.scalar(1), pa.scalar([1])], r"row 1: .*list<"),
    ([(1, "a"), (2, ["b"])], r"column 1 \(dtype object\), row 1: .*list"),
    ([np.timedelta64(3, "Y")], r"row 0: .*fixed length"),
]


@pytest.mark.parametrize(("keys", "message"), NO_HASH, ids=lambda value: type(value).__name__)
def test_types_without_a_key_hash(keys: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as raised:
        hash_keys(keys)
    if "dtype object" not in str(raised.value):
        keys = keys[:0]
        with pytest.raises(TypeError, match="no key hash"):  # the dtype is enough
            hash_keys(keys[:0])


NO_VALUE = [
    (
        pa.chunked_array([view([1, None], pa.timestamp("s")), view([2, 2**60], pa.timestamp("s"))]),
        "row 3: .*beyond",
    ),
    (view([2**31 - 1], pa.date32()), "row 0: .*beyond"),
    (pa.RunEndEncodedArray.from_arrays([3, 9], view([1, 2**60], pa.timestamp("s"))), "row 3: .*beyond"),
    (pa.RunEndEncodedArray.from_arrays([3, 9], view([1, 2**60], pa.timestamp("s")))[2:], "row 1: .*beyond"),
    (view([1, -(2**63)], pa.duration("ms")), "row 1: .*beyond"),
    (np.array(["2024", "NaT", "300000"], "M8[Y]"), r"dtype datetime64\[Y\]\), row 2: .*beyond"),
    (np.array([0, -4_000_000], "M8[M]"), "row 1: .*beyond"),
    (np.array([2**62], "M8[Y]"), "row 0: .*beyond"),
    (np.array([2**62], "M8[W]"), "row 0: .*beyond"),
    (np.array([2**62], "M8[25us]"), "row 0: .*beyond"),
    (np.array([0, 1001], "m8[ps]"), "row 1: .*finer"),
    (np.array([10**6 + 1], "M8[fs]"), "row 0: .*finer"),
    (np.array([5, 10**9], "M8[as]"), "row 0: .*finer"),
    ([np.datetime64(2**60, "s")], "row 0: .*beyond"),
    ([None, np.timedelta64(1, "as")], "row 1: .*finer"),
    ([np.datetime64(4_000_000, "Y")], "row 0: .*beyond"),
    (
        pd.Series(["a", "b\ud800"], name="s", dtype=object),
        r"column 's' \(dtype object\), row 1: a lone surrogate",
    ),
    (np.array(["a", "\udfff"]), r"dtype <U1\), row 1: a lone surrogate"),
    (
        pd.Series(pd.Categorical.from_codes([1, 0, 1], pd.Index(["\udfff", "x"], dtype=object)), name="s"),
        r"column 's' \(dtype category\), row 1: a lone surrogate",
    ),
    (objects(["x"] * 40_000 + ["\ud800"]), "row 40000: a lone surrogate"),
    (
        pa.table({"a": range(140_000), "b": view([1] * 139_999 + [2**60], pa.timestamp("s"))}),
        "'b'.*row 139999: ",
    ),
    ([(1, 2), (3,)], "row 1: .*tuples of 2 values"),
    ([(1, 2), None], "row 1: .*tuples of 2 values"),
    ([()], "no columns"),
    (pd.DataFrame(index=[1, 2]), "no columns"),
    (np.zeros((2, 2)), "one dimension"),
]


@pytest.mark.parametrize(("keys", "message"), NO_VALUE, ids=lambda value: type(value).__name__)
def test_values_without_a_key_hash(keys: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hash_keys(keys)


@pytest.mark.parametrize("keys", ["abc", 5, None, (1, 2), {1: 2}, np.ma.masked_array([1], [True])])
def test_what_is_no_column(keys: Any) -> None:
    with pytest.raises(TypeError, match="keys must be a Series"):
        hash_keys(keys)


@pytest.mark.parametrize(
    "value", [[1], {}, object(), 1j, Fraction(1, 3), pd.Period("2024"), np.array([1]), ()]
)
def test_scalars_without_a_key_hash(value: Any) -> None:
    with pytest.raises(TypeError, match=r"no key hash|at least one value"):
        hash_key(value)


def test_python_string_storage_with_a_lone_surrogate() -> None:
    series = pd.Series(["a", "\ud800"], dtype="string[python]", name="s")
    with pytest.raises(ValueError, match=r"column 's' \(dtype string\), row 1: a lone surrogate"):
        hash_keys(series)


def test_types_are_refused_before_anything_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("chash_partition.hashing._hash_words", lambda words, *_: calls.append(len(words)))
    frame = pd.DataFrame({"a": np.arange(1000), "b": objects(["x"] * 999 + [[1]])})
    with pytest.raises(TypeError, match=r"column 'b' .*row 999"):
        hash_keys(frame)
    assert sum(calls) == 0


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_is_64_bits(seed: int) -> None:
    for call in (lambda: hash_keys([1], seed=seed), lambda: hash_key(1, seed), lambda: xxh64(b"", seed)):
        with pytest.raises(ValueError, match="seed must be from 0"):
            call()
    with pytest.raises(TypeError):
        hash_keys([1], seed=1.5)  # type: ignore[arg-type]


# ------------------------------------------------------------ partitions


@given(
    hashes=st.lists(st.integers(0, 2**64 - 1)),
    npartitions=st.integers(1, 2**31 - 1) | st.integers(1, 100),
    split=st.integers(1, 50),
)
def test_partitions_are_equal_ranges(hashes: list[int], npartitions: int, split: int) -> None:
    array = np.array([*hashes, 0, 2**64 - 1], np.uint64)
    ids = partition_ids(array, npartitions)
    assert ids.dtype == np.int32
    assert ids.tolist() == [(h >> 32) * npartitions >> 32 for h in array.tolist()]
    assert ids[-2:].tolist() == [0, npartitions - 1 if npartitions <= 2**31 else None]
    if npartitions * split < 2**31:
        assert (partition_ids(array, npartitions * split) // split == ids).all()


def test_partitions_need_sense() -> None:
    hashes = np.zeros(1, np.uint64)
    for npartitions in (0, -1, 2**31):
        with pytest.raises(ValueError, match="npartitions must be from 1"):
            partition_ids(hashes, npartitions)
    with pytest.raises(TypeError, match="hashes must be uint64, got int64"):
        partition_ids(hashes.astype(np.int64), 5)


KEYS: dict[str, Callable[[np.ndarray], Any]] = {
    "sequential": lambda n: n,
    "negative": lambda n: -n,
    **{f"steps of 2^{k}": (lambda n, k=k: n << k) for k in (1, 4, 8, 16, 32, 40)},
    "floats": lambda n: n / 7,
    "seconds": lambda n: (n + 1_700_000_000).view("M8[s]"),
    "UUIDs": lambda n: pa.array([str(uuid.UUID(int=(i * 2**64 + 7) % 2**128)) for i in n.tolist()]),
    "e-mail addresses": lambda n: pa.array([f"user.{i}@example.com" for i in n.tolist()]),
    "zero-padded": lambda n: pa.array([f"{i:012d}" for i in n.tolist()]),
    "two columns": lambda n: pd.DataFrame({"a": n // 1000, "b": n % 1000}),
}


def is_uniform(counts: np.ndarray) -> bool:
    """Pearson's test at 0.1 %, by the approximation of Wilson and Hilferty, for many degrees of freedom."""
    free, mean = len(counts) - 1, counts.mean()
    statistic = ((counts - mean) ** 2).sum() / mean
    return statistic < free * (1 - 2 / (9 * free) + 3.0902 * math.sqrt(2 / (9 * free))) ** 3


@pytest.mark.parametrize("n", [100_000, *thorough(1_000_000)])
@pytest.mark.parametrize("name", KEYS)
def test_keys_spread_evenly(name: str, n: int) -> None:
    hashes = hash_keys(KEYS[name](np.arange(n)))
    low, high = hashes & np.uint64(1023), hashes >> np.uint64(54)
    for ids in (partition_ids(hashes, 1024), partition_ids(hashes, 1000), low, high):
        assert is_uniform(np.bincount(ids.astype(np.int64), minlength=1000))


# ------------------------------------------------------------ processes and threads


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_come_with_the_first_column_in_whichever_threads() -> None:
    code = """
    import sys, threading
    from chash_partition.hashing import hash_key, hash_keys, partition_ids, xxh64
    import numpy as np, pandas as pd, pyarrow as pa
    hash_key("a"), hash_key(pa.scalar(1)), partition_ids(np.zeros(1, np.uint64), 5), xxh64(b"")
    for keys in ([], np.zeros(0), pa.array([], pa.string()), pa.array([], pa.binary(3)), pd.Categorical([])):
        hash_keys(keys)
    print("numba" in sys.modules)
    barrier, results = threading.Barrier(8), []
    def work():
        barrier.wait()
        results.append(hash_keys(list(range(1000))).tobytes())
    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    print("numba" in sys.modules, len(results), len(set(results)))
    """
    assert python(code).split() == ["False", "True", "8", "1"]


def test_what_cannot_be_cached_is_compiled_for_this_process() -> None:
    import numba

    names: dict[str, Any] = {}
    exec("def add(out):\n    out[0] += 1", names)  # in no file, beside which numba would write
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(numba.void(numba.int64[::1]), cache=True)(names["add"])
    out = np.zeros(1, np.int64)
    compiled(names["add"], numba.int64[::1])(out)
    assert out.tolist() == [1]


HASHES = "import reproduced; print(reproduced.results())"


@pytest.mark.thorough
def test_a_process_without_a_folder_for_compiled_code_agrees(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert python(HASHES, NUMBA_CACHE_DIR=str(tmp_path / "file" / "below")) == python(HASHES)


@pytest.mark.long
def test_processes_may_start_together_with_an_empty_cache(tmp_path: Path) -> None:
    for cache in (tmp_path / "1", tmp_path / "2", tmp_path / "3"):
        with ThreadPoolExecutor(6) as pool:
            results = set(pool.map(partial(python, NUMBA_CACHE_DIR=str(cache)), [HASHES] * 6))
        for stored in cache.rglob("*.nb*"):
            stored.write_bytes(stored.read_bytes()[:10])
        assert results == {python(HASHES, NUMBA_CACHE_DIR=str(cache))}


@pytest.mark.thorough
def test_the_first_call_compiles_nothing_with_a_warm_cache(tmp_path: Path) -> None:
    code = """
    from chash_partition import hashing
    hashing.hash_keys(["a", "b"])
    kernels = hashing._kernels()
    print(sum(len(kernel.stats.cache_hits) for kernel in kernels), len(kernels))
    """
    assert [python(code, NUMBA_CACHE_DIR=str(tmp_path)).split() for _ in range(2)] == [["0", "4"], ["4", "4"]]


MEMORY = """
import numpy as np, pandas as pd, pyarrow as pa
from chash_partition.hashing import hash_keys
n = 4_000_000
numbers = np.arange(n)
text = pa.array(numbers).cast(pa.string())
columns = {
    "int64": lambda: numbers,
    "int32": lambda: numbers.astype("i4"),
    "float64": lambda: numbers / 2,
    "seconds": lambda: numbers.view("M8[s]"),
    "Int64": lambda: pd.Series(numbers, dtype="Int64"),
    "range": lambda: pd.RangeIndex(n),
    "text": lambda: text,
    "views": lambda: text.cast(pa.string_view()),
    "str": lambda: pd.Series(text, dtype="str"),
    "U": lambda: np.full(n, "abcdefgh"),
    "objects": lambda: pd.Series(["user"] * n, dtype=object),
    "bool": lambda: pa.array(numbers % 2 == 0),
    "columns": lambda: pd.DataFrame({"a": numbers, "b": numbers % 1000, "c": pd.Series(text, dtype="str")}),
    "nulls": lambda: pa.array(numbers, mask=numbers % 3 == 0),
    "decimal": lambda: pa.array(numbers).cast(pa.decimal128(38, 0)),
    "category": lambda: pd.Series(numbers % 1000).astype("category"),
    "dictionary": lambda: pa.array(numbers % 1000).dictionary_encode(),
    "runs": lambda: pa.RunEndEncodedArray.from_arrays(np.arange(100, n + 1, 100), numbers[: n // 100]),
}
keys = columns["int64"]()
hash_keys(keys[:1000])
def memory(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
hashes = hash_keys(keys)
print(memory("VmHWM") - before - hashes.nbytes / 2**20)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", [line.split('"')[1] for line in MEMORY.splitlines() if ": lambda: " in line])
def test_extra_memory_is_the_output_and_ten_megabytes(name: str) -> None:
    assert float(python(MEMORY.replace('columns["int64"]', f'columns["{name}"]'))) < 10
