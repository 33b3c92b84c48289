"""A block is tagged with the partition of each row, and is the same again afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import assert_unchanged
from test_repartition import CASES

from chash_partition import Layout
from chash_partition.dataframe.blocks import PARTITION, tag, untag


@pytest.mark.parametrize("kind", CASES)
def test_untag_undoes_tag(kind: str) -> None:
    on, case = CASES[kind]
    on = on if isinstance(on, list) else [on]
    block = case()[1]
    before = block.copy()
    tagged = tag(block, on, 7, 5)
    expected = Layout.create(on, 7, ["a"], seed=5).partition_of(block)
    assert tagged[PARTITION].tolist() == expected.tolist()
    assert_unchanged(untag(tagged, block.iloc[:0]), before)
    assert_unchanged(block, before)
    # An engine may have taken the column away already.
    assert_unchanged(untag(tagged.drop(columns=PARTITION), block.iloc[:0]), before)


def test_a_value_that_cannot_be_a_key_is_named() -> None:
    values: Any = np.empty(3, dtype=object)
    values[:] = ["a", 1, {"not": "a key"}]
    with pytest.raises(TypeError, match=r"'k'.*row 2"):
        tag(pd.DataFrame({"k": values}), ["k"], 4, 0)
