"""A block is tagged with the partition of each row, and is the same again afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import assert_unchanged, sample
from test_repartition import CASES, KEYS

from chash_partition import Layout
from chash_partition.dataframe.blocks import PARTITION, packed_columns, tag, untag


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("kind", CASES)
def test_untag_undoes_tag(kind: str, pack: bool) -> None:
    on, case = CASES[kind]
    on = on if isinstance(on, list) else [on]
    block = case()[1]
    before = block.copy()
    packed = packed_columns(block) if pack else ()
    tagged = tag(block, on, 7, 5, packed)
    expected = Layout.create(on, 7, ["a"], seed=5).partition_of(block)
    assert tagged[PARTITION].tolist() == expected.tolist()
    assert all(isinstance(value, bytes) for i in packed for value in tagged[f"c{i}"])
    assert_unchanged(untag(tagged, block.iloc[:0], packed), before)
    assert_unchanged(block, before)
    # An engine may have taken the column away already.
    assert_unchanged(untag(tagged.drop(columns=PARTITION), block.iloc[:0], packed), before)


@pytest.mark.parametrize("kind", KEYS)
def test_only_what_arrow_would_change_is_packed(kind: str) -> None:
    block = pd.DataFrame({"k": KEYS[kind]})
    assert packed_columns(block) == ((0,) if block.k.dtype == object or kind == "dictionary" else ())


def test_a_block_without_rows_keeps_its_types() -> None:
    block = sample(9).assign(o=[[1]] * 9, p=pd.period_range("2000", periods=9, freq="D"))
    packed = packed_columns(block)
    assert packed == (5, 6)
    empty = untag(tag(block[:0], ["k"], 4, 0, packed), block.iloc[:0], packed)
    assert empty.dtypes.tolist() == block.dtypes.tolist()


def test_a_value_that_cannot_be_a_key_is_named() -> None:
    values: Any = np.empty(3, dtype=object)
    values[:] = ["a", 1, {"not": "a key"}]
    with pytest.raises(TypeError, match=r"'k'.*row 2"):
        tag(pd.DataFrame({"k": values}), ["k"], 4, 0, ())
