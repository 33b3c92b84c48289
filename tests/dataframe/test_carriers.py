"""Columns of every kind travel, in any frame."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from frames import assert_unchanged
from hypothesis import given, reject
from hypothesis import strategies as st
from test_shuffle import FEW, NODES, travelled

from chash_partition import Layout
from chash_partition.dataframe import carriers
from chash_partition.dataframe.shuffle import Slots, SpillFile, Stack, split

# A strategy for a value, and what makes a column of a list of them. Each block gets a column of its
# own, so blocks may differ in their categories, and in what pandas might infer.
Column = tuple[Any, Callable[[list[Any]], Any]]
INTS, TEXT = st.integers(-(2**31), 2**31 - 1), st.text(st.characters(codec="utf-8"), max_size=30)
DAYS = st.integers(-(10**5), 10**5)


def maybe(values: Any) -> Any:
    return st.one_of(st.none(), values)


def plain(dtype: Any) -> Callable[[list[Any]], Any]:
    return lambda values: pd.array(values, dtype=dtype)


def numpy(dtype: str) -> Callable[[list[Any]], Any]:
    return lambda values: np.array(values, dtype=dtype)


def objects(values: list[Any]) -> Any:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return pd.Series(out, dtype=object).array


def arrow(kind: pa.DataType) -> Callable[[list[Any]], Any]:
    return lambda values: pd.arrays.ArrowExtensionArray(pa.array(values, kind))


def sliced(kind: pa.DataType) -> Callable[[list[Any]], Any]:
    """An array that starts inside its buffers, in two chunks."""

    def make(values: list[Any]) -> Any:
        whole = pa.array([None, *values, None], kind).slice(1, len(values))
        half = len(values) // 2
        return pd.arrays.ArrowExtensionArray(pa.chunked_array([whole[:half], whole[half:]], kind))

    return make


COLUMNS: dict[str, Column] = {
    **{f"int{8 * n}": (st.integers(-100, 100), numpy(f"i{n}")) for n in (1, 2, 4, 8)},
    **{f"uint{8 * n}": (st.integers(0, 200), numpy(f"u{n}")) for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": (st.floats(width=8 * n), numpy(f"f{n}")) for n in (2, 4, 8)},
    "longdouble": (st.floats(), numpy("longdouble")),
    "bool": (st.booleans(), numpy("bool")),
    "complex64": (st.complex_numbers(width=64), numpy("c8")),
    "complex128": (st.complex_numbers(), numpy("c16")),
    **{f"datetime64[{unit}]": (DAYS, numpy(f"M8[{unit}]")) for unit in ("s", "ms", "us", "ns")},
    "timedelta64[ns]": (DAYS, numpy("m8[ns]")),
    "zone": (
        DAYS,
        lambda v: pd.DatetimeIndex(np.array(v, "M8[s]")).tz_localize("UTC").tz_convert("Asia/Tokyo"),
    ),
    "Int64": (maybe(INTS), plain("Int64")),
    "UInt8": (maybe(st.integers(0, 255)), plain("UInt8")),
    "Float32": (maybe(st.floats(width=32, allow_nan=False)), plain("Float32")),
    "boolean": (maybe(st.booleans()), plain("boolean")),
    "str": (maybe(TEXT), plain("str")),
    "string[pyarrow]": (maybe(TEXT), plain("string[pyarrow]")),
    "string[python]": (maybe(TEXT), plain("string[python]")),
    "string": (maybe(TEXT), arrow(pa.string())),
    "large_string": (maybe(TEXT), sliced(pa.large_string())),
    "binary": (maybe(st.binary(max_size=9)), sliced(pa.binary())),
    "fixed binary": (maybe(st.binary(min_size=16, max_size=16)), arrow(pa.binary(16))),
    "odd binary": (maybe(st.binary(min_size=3, max_size=3)), arrow(pa.binary(3))),
    "int16[pyarrow]": (maybe(st.integers(-9, 9)), sliced(pa.int16())),
    "bool[pyarrow]": (maybe(st.booleans()), sliced(pa.bool_())),
    "date32": (maybe(DAYS), arrow(pa.date32())),
    "timestamp[us, UTC]": (maybe(DAYS), arrow(pa.timestamp("us", "UTC"))),
    "time64": (maybe(st.integers(0, 86_399)), arrow(pa.time64("us"))),
    "decimal": (maybe(st.decimals(-99, 99, places=2)), arrow(pa.decimal128(9, 2))),
    "wide decimal": (maybe(st.decimals(-99, 99, places=2)), arrow(pa.decimal256(50, 2))),
    "null": (st.none(), arrow(pa.null())),
    "list": (maybe(st.lists(st.integers(0, 9), max_size=3)), arrow(pa.list_(pa.int8()))),
    "struct": (maybe(st.fixed_dictionaries({"a": INTS})), arrow(pa.struct({"a": pa.int64()}))),
    "dictionary": (maybe(st.sampled_from("abc")), arrow(pa.dictionary(pa.int8(), pa.string()))),
    "category": (maybe(st.sampled_from("abc")), lambda v: pd.Categorical(v, categories=["c", "b", "a"])),
    "categories of each block": (maybe(TEXT), lambda v: pd.Categorical(pd.array(v, dtype="str"))),
    "ordered": (maybe(st.integers(0, 3)), lambda v: pd.Categorical(v, categories=range(4), ordered=True)),
    "period": (DAYS, lambda v: pd.PeriodIndex(np.array(v, "M8[D]").astype("M8[ns]"), freq="D")),
    "interval": (DAYS, lambda v: pd.arrays.IntervalArray.from_arrays(v, [x + 1 for x in v])),
    "sparse": (st.sampled_from([0.0, 0.0, 1.0]), lambda v: pd.arrays.SparseArray(v, fill_value=0.0)),
    "mixed": (st.one_of(INTS, TEXT, st.none(), st.binary(max_size=3), st.booleans()), objects),
    "nested": (st.one_of(st.lists(INTS, max_size=2), st.dictionaries(TEXT, INTS, max_size=1)), objects),
    "arrays": (st.lists(INTS, max_size=2).map(np.array), objects),
    "decimals": (st.decimals(allow_nan=False, places=3), objects),
}

# An index takes -0.0 for 0.0, and has one list of categories.
FLOATS = ("float", "complex", "longdouble", "sparse")
NO_LEVELS = {kind for kind in COLUMNS if kind.lower().startswith(FLOATS)} | {"categories of each block"}

EDGES = st.lists(st.integers(0, 30), max_size=4).map(lambda cuts: [0, *sorted(cuts), 30])


@st.composite
def frames(draw: Any) -> list[pd.DataFrame]:
    """Blocks of one frame: some columns of any kind beside the key, their labels perhaps alike."""
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), max_size=5))
    values = [draw(st.lists(COLUMNS[kind][0], min_size=30, max_size=30)) for kind in kinds]
    labels = draw(
        st.lists(st.sampled_from(["a", "b", 0, None, ("t", 1)]), min_size=len(kinds), max_size=len(kinds))
    )
    levels = draw(st.integers(0, min(2, len(kinds))))
    if NO_LEVELS & set(kinds[:levels]):
        levels = 0
    keys = np.array(draw(st.lists(st.integers(-5, 5), min_size=30, max_size=30)), dtype=np.int64)
    blocks = []
    for start, stop in pairwise(draw(EDGES)):
        columns = [COLUMNS[kind][1](v[start:stop]) for kind, v in zip(kinds, values, strict=True)]
        block = pd.DataFrame({"k": keys[start:stop]} | dict(enumerate(columns[levels:])))
        block.columns = pd.Index(["k", *labels[levels:]], dtype=object, tupleize_cols=False)
        if levels:
            try:
                index = [pd.Index(c, dtype=c.dtype) for c in columns[:levels]]
                block.index = index[0] if levels == 1 else pd.MultiIndex.from_arrays(index)
            except (TypeError, ValueError, NotImplementedError):
                reject()  # values that cannot be hashed make no levels
            block.index.names = labels[:levels]
        blocks.append(block)
    return blocks


def test_categories_of_blocks_without_values_have_any_dtype() -> None:
    nulls = [pd.Categorical([None] * 9, categories=pd.Index([], dtype=kind)) for kind in (object, "M8[ns]")]
    for values in (["a", "b", None], [1, 2, None], [pd.Timestamp(0), None, None]):
        parts = [*nulls, pd.Categorical(values * 3), pd.Categorical(values[:1] * 9)]
        blocks = [pd.DataFrame({"k": range(9), "c": part}) for part in parts]
        for partition in travelled(blocks, ["k"], dict.fromkeys(range(FEW), "x")).values():
            assert set(partition["c"].dropna()) <= set(values)
            assert partition["c"].notna().sum() == sum(
                b["c"][b["k"].isin(partition["k"])].notna().sum() for b in blocks
            )


def test_objects_that_plain_pickle_cannot_carry_travel() -> None:
    class Local:
        def __init__(self, value: int):
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Local) and self.value == other.value

        __hash__ = None  # type: ignore[assignment]

    frame = pd.DataFrame({"k": range(9), "o": pd.Series([Local(i) for i in range(9)], dtype=object)})
    for partition in travelled([frame], ["k"], dict.fromkeys(range(FEW), "x")).values():
        assert [o.value for o in partition["o"]] == partition["k"].tolist()


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_text_beyond_narrow_offsets_comes_in_chunks(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "CHUNK", 7)
    values = ["", None, "a" * 30, "bc", "", "d" * 6, "e", "f" * 8, None]
    column = sliced(kind)([v if v is None or kind == pa.string() else v.encode() for v in values])
    frame = pd.DataFrame({"k": [3] * 9, "t": column})
    [got] = [b for b in travelled([frame], ["k"], dict.fromkeys(range(FEW), "x")).values() if len(b)]
    assert_unchanged(got, frame)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", [1.5, 2.5, 3.0]),
        ("int8", [300, 70_000, 1]),
        ("int32", [2**31 + 5, 1, 2]),
        ("M8[s]", pd.to_datetime(["2000-01-01 00:00:00.5"] * 3).as_unit("us")),
        ("string", [1, 2, 3]),
        ("bool", [2, 1, 0]),
    ],
)
def test_values_that_do_not_fit_the_meta_are_not_changed(dtype: str, values: Any) -> None:
    frame = pd.DataFrame({"k": [3] * 3, "x": values})
    meta = frame[:0].astype({"x": dtype})
    shares = split(frame, ["k"], 0, Slots.of(dict.fromkeys(range(4), "w"), 4))
    whole = Stack([shares["w"]], meta)
    [got] = [block for block in map(whole.unpack, range(4)) if len(block)]
    pd.testing.assert_frame_equal(got, frame)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2, 3], "float64"),
        ([1.0, 2.0, 3.0], "int8"),
        ([1, 2, 3], "Int64"),
        ([1, 2, 3], object),
        ([True, False, True], "int64"),
        (pd.Series([None] * 3, dtype=object), "float64"),
        (pd.Series([None] * 3, dtype=object), "string"),
        (pd.Series(["a", None, "b"], dtype=object), "string"),
        (pd.Categorical(["a", None, "b"]), "string"),
        (pd.to_datetime(["2000-01-01"] * 3).as_unit("s"), "M8[ns]"),
    ],
)
def test_values_that_fit_the_meta_get_its_dtype(values: Any, dtype: Any) -> None:
    frame = pd.DataFrame({"k": [3] * 3, "x": values})
    whole = Stack(
        [split(frame, ["k"], 0, Slots.of(dict.fromkeys(range(4), "w"), 4))["w"]],
        frame[:0].astype({"x": dtype}),
    )
    [got] = [block for block in map(whole.unpack, range(4)) if len(block)]
    pd.testing.assert_series_equal(got["x"], frame["x"].astype(dtype))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@given(blocks=frames(), to_disk=st.booleans())
def test_any_frame_travels(blocks: list[pd.DataFrame], to_disk: bool, tmp_path: Path) -> None:
    spilled = SpillFile(str(tmp_path)) if to_disk else None
    got = travelled(blocks, ["k"], {p: "xyz"[p % 3] for p in range(FEW)}, spilled)
    layout = Layout.create("k", FEW, NODES)
    for partition, block in got.items():
        parts = [b[layout.partition_of(b["k"]) == partition] for b in blocks]
        at = 0
        for part in parts:  # in the order of the blocks, and of their rows
            if len(part):
                assert_unchanged(block.iloc[at : at + len(part)], part)
                at += len(part)
        assert at == len(block)
