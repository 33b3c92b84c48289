"""How rows travel to the workers, and which worker that is."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed.shuffle._core import ShuffleId
from frames import assert_unchanged
from hypothesis import given
from hypothesis import strategies as st
from test_repartition import CASES, KEYS

from chash_partition import Layout
from chash_partition.dataframe import carriers
from chash_partition.dataframe.keys import keys_of
from chash_partition.dataframe.shuffle import (
    BlockShare,
    PlacedShuffleSpec,
    Slots,
    SpillError,
    SpillFile,
    Stack,
    split,
)

NODES = ["a", "b", "c", "d"]
LAYOUT = Layout.create("k", 64, NODES)
ADDRESSES = {name: f"tcp://{name}" for name in NODES}


def landed(workers: list[str], addresses: dict[str, str] = ADDRESSES) -> list[str]:
    spec = PlacedShuffleSpec(
        id=ShuffleId("s"),
        disk=False,
        views=False,
        meta=pd.DataFrame({"k": [0]})[:0],
        on=("k",),
        parts_out=LAYOUT.npartitions,
        layout=LAYOUT,
        addresses=addresses,
    )
    return [spec.pick_worker(p, workers) for p in range(LAYOUT.npartitions)]


OWNERS = [ADDRESSES[LAYOUT.owner_of(p)] for p in range(LAYOUT.npartitions)]
ALL = [*ADDRESSES.values()]


def test_outputs_go_to_their_owners() -> None:
    assert landed(ALL) == landed(ALL[::-1]) == landed([*ALL, "tcp://unknown"]) == OWNERS


@pytest.mark.parametrize("gone", NODES)
def test_outputs_go_to_the_next_node_of_the_ring_if_the_owner_is_gone(gone: str) -> None:
    left = [ADDRESSES[name] for name in NODES if name != gone]
    ring = LAYOUT.ring.without_nodes([gone])
    for p, (there, owner) in enumerate(zip(landed(left), OWNERS, strict=True)):
        following = ADDRESSES[ring.owners_at([LAYOUT.point(p)])[0]]
        assert there == (following if owner == ADDRESSES[gone] else owner)
    assert landed(left) == landed(left[::-1])


@pytest.mark.parametrize("addresses", [{}, {"a": "tcp://gone"}])
def test_outputs_go_to_any_worker_if_no_node_is_here(addresses: dict[str, str]) -> None:
    workers = ["tcp://x", "tcp://y"]
    assert landed(workers, addresses) == landed(workers[::-1], addresses)
    assert Counter(landed(workers, addresses)) == dict.fromkeys(workers, 32)


# What travels has few keys.
FEW = 8


def travelled(
    blocks: list[pd.DataFrame], on: list[Any], worker_for: dict[int, str], spilled: SpillFile | None = None
) -> dict[int, pd.DataFrame]:
    """The partitions that arrive where `worker_for` says."""
    slots = Slots.of(worker_for, FEW)
    shares = [split(block, on, 0, slots) for block in blocks]
    sent = pickle.loads(pickle.dumps(shares, protocol=5))
    if spilled is not None:
        sent = [{worker: spilled.put(share) for worker, share in block.items()} for block in sent]
    got = {}
    for worker, partitions in slots.local.items():
        stack = Stack([block[worker] for block in sent if worker in block], blocks[0].iloc[:0])
        got |= {partition: stack.unpack(slot) for slot, partition in enumerate(partitions)}
        skewed = Stack(askew(sent, worker), stack.meta) if spilled is None else stack
        with patch.object(carriers, "PIECE", 0):
            for slot, partition in enumerate(partitions):
                if len(got[partition]):
                    viewed = (skewed, stack)[slot % 2].unpack(slot, carriers.view)
                    pd.testing.assert_frame_equal(viewed, got[partition])
        if stack.total:  # all at once, which is done in memory only
            for partition, columns in zip(partitions, stack.unpack_all(map), strict=True):
                pd.testing.assert_frame_equal(stack.frame(columns), got[partition])
    return got


def askew(sent: list[dict[str, BlockShare]], worker: str) -> list[BlockShare]:
    """A worker's shares, with buffers that start at any byte, as they may where they come over a wire."""

    def moved(buffer: np.ndarray) -> np.ndarray:
        out = np.ndarray(len(buffer), buffer.dtype, np.empty(buffer.nbytes + 1, np.uint8), 1)
        out[:] = buffer
        return out

    return [
        replace(share, buffers=[[*map(moved, buffers)] for buffers in share.buffers])
        for block in sent
        if (share := block.get(worker))
    ]


def cut(frame: pd.DataFrame, edges: list[int]) -> list[pd.DataFrame]:
    """Views of some of its rows, so that a column does not start at the start of its buffers."""
    return [frame[a:b] for a, b in pairwise(edges)]


EITHER_WAY = [
    pytest.param(kind, to_disk, marks=() if (number + to_disk) % 2 else pytest.mark.thorough)
    for number, kind in enumerate([*CASES, *KEYS])
    for to_disk in (False, True)
]


# The file has no name, and is closed when the last array in it is gone.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(("kind", "to_disk"), EITHER_WAY)
def test_columns_of_any_type_travel(kind: str, to_disk: bool, tmp_path: Any) -> None:
    on, frame = ("k", pd.DataFrame({"k": KEYS[kind], "x": range(24)})) if kind in KEYS else (None, None)
    if frame is None:
        on, case = CASES[kind]
        frame = case()[1]
    on = on if isinstance(on, list) else [on]
    blocks = cut(frame, [0, 1, 9, 9, 13, len(frame)])
    spilled = SpillFile(str(tmp_path)) if to_disk else None
    got = travelled(blocks, on, dict(enumerate(["x", "y", "z", "x"] * (FEW // 4))), spilled)
    here = Layout.create(on, FEW, NODES).partition_of(keys_of(frame, on))
    for partition, block in got.items():
        expected = frame[here == partition]
        assert_unchanged(block, expected)
        if len(expected) and all(isinstance(dtype, np.dtype) for dtype in frame.dtypes):
            pd.testing.assert_frame_equal(block, expected, check_freq=False)  # in their order


@given(
    values=st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=40)), max_size=60),
    edges=st.lists(st.integers(0, 60), max_size=5),
    wanted=st.dictionaries(st.integers(0, FEW - 1), st.sampled_from(["x", "y"]), min_size=1),
    kind=st.sampled_from(
        ["object", "string[pyarrow]", "string[python]", "large_string[pyarrow]", "category"]
    ),
)
def test_any_text_travels_in_order(
    values: list[Any], edges: list[int], wanted: dict[int, str], kind: str
) -> None:
    frame = pd.DataFrame({"k": pd.Series(values, dtype=object).astype(kind), "x": range(len(values))})
    edges = [0, *sorted(min(edge, len(values)) for edge in edges), len(values)]
    got = travelled(cut(frame, edges), ["k"], wanted)
    here = Layout.create("k", FEW, NODES).partition_of(frame)
    assert set(got) == set(wanted)
    for partition, block in got.items():
        assert_unchanged(block, frame[here == partition])
        assert block.x.tolist() == frame.x[here == partition].tolist()


N = 120
KINDS = {
    "int64": pd.Series(range(N)),
    "float64": pd.Series([1.5, None] * (N // 2)),
    "Int64": pd.Series([1, None] * (N // 2), dtype="Int64"),
    "Int64 without nulls": pd.Series(range(N), dtype="Int64"),
    "boolean": pd.Series([True, None] * (N // 2), dtype="boolean"),
    "str": pd.Series([*"abc", None] * (N // 4), dtype="str"),
    "string": pd.Series([*"abc", None] * (N // 4), dtype="string[pyarrow]"),
    "category": pd.Series([*"abc", None] * (N // 4), dtype="category"),
    "object": pd.Series([*"abc", None] * (N // 4), dtype=object),
    "nothing": pd.Series([None] * N, dtype=object),
    "zoned": pd.Series(pd.date_range("2024", periods=N, tz="UTC")),
    "decimal": pd.Series([Decimal(1), None] * (N // 2), dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
    "list": pd.Series([[1], None] * (N // 2), dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
}
# Each kind comes before two others, and after two others.
TWO_KINDS = [
    pytest.param(one, other, marks=() if (j - i) % len(KINDS) in (1, 5) else pytest.mark.thorough)
    for (i, one), (j, other) in permutations(enumerate(KINDS), 2)
]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning", "ignore:.*concatenation:FutureWarning")
@pytest.mark.parametrize(("one", "other"), TWO_KINDS)
def test_blocks_whose_columns_are_of_other_kinds_travel(one: str, other: str, tmp_path: Any) -> None:
    blocks = [pd.DataFrame({"k": range(N), "x": KINDS[kind], "row": range(N)}) for kind in (one, other)]
    spilled = SpillFile(str(tmp_path)) if one < other else None
    got = travelled(blocks, ["k"], {0: "x", 1: "y"}, spilled)
    here = Layout.create("k", FEW, NODES).partition_of(blocks[0])
    for partition, block in got.items():
        expected = [column for b in blocks for column in b["x"][here == partition].astype(object)]
        found = block["x"].astype(object).tolist()
        assert len(found) == len(expected) > 10
        for ours, theirs in zip(found, expected, strict=True):
            if isinstance(theirs, list):
                assert list(ours) == theirs
            else:
                assert (pd.isna(ours) and pd.isna(theirs)) or ours == theirs


def test_categories_that_differ_between_blocks_travel() -> None:
    frames = [
        pd.DataFrame({"k": range(9), "c": pd.Categorical(["a", "b", None] * 3, categories=["b", "a"])}),
        pd.DataFrame({"k": range(9), "c": pd.Categorical(["z", "b", None] * 3)}),
        pd.DataFrame({"k": range(9), "c": pd.Categorical([None] * 9, categories=["q"])}),
    ]
    got = travelled(frames, ["k"], dict.fromkeys(range(FEW), "x"))
    expected = pd.concat([frame.astype({"c": object}) for frame in frames])
    here = Layout.create("k", FEW, NODES).partition_of(expected)
    for partition, block in got.items():
        assert isinstance(block.c.dtype, pd.CategoricalDtype)
        assert [*block.c.astype(object).fillna("-")] == [*expected.c[here == partition].fillna("-")]


def test_a_spill_file_whose_directory_is_gone_says_so_and_what_to_do(tmp_path: Path) -> None:
    share = BlockShare([], np.array([0, 1]), [[np.zeros(1)]])
    with pytest.raises(SpillError) as error:
        SpillFile(str(tmp_path / "gone")).put(share)
    text = (
        f"^cannot write \\(No such file or directory\\) in {tmp_path}/gone on .*give the workers more memory"
    )
    assert re.search(text, str(pickle.loads(pickle.dumps(error.value))))
