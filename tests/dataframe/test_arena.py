"""Memory for arrays that live and die together."""

from __future__ import annotations

import numpy as np
import pytest

from chash_partition.dataframe.arena import ALIGNED, HUGE, SMALL, Arena


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("expected", [0, 2 * SMALL, 2 * HUGE])
def test_arrays_do_not_overlap_though_more_is_taken_than_was_expected(expected: int, huge: bool) -> None:
    arena = Arena(expected, huge)
    sizes = [1, 0, 1000, SMALL, 7, HUGE // 4, HUGE // 8, 3]
    arrays = [arena.empty(n, dtype) for n in sizes for dtype in ("u1", "i2", "c16")]
    for number, array in enumerate(arrays):
        array[:] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()
    assert [len(array) for array in arrays] == np.repeat(sizes, 3).tolist()


def test_arrays_are_of_one_piece_as_long_as_it_has_room() -> None:
    arena = Arena(4 * SMALL)
    pieces = [arena.empty(SMALL, "u1").base for _ in range(4)]
    assert all(piece is pieces[0] for piece in pieces)
    assert arena.empty(1, "u1").base is not pieces[0]


def test_arrays_of_a_piece_are_aligned() -> None:
    arena = Arena(4 * SMALL)
    assert {arena.empty(n, "u1").ctypes.data % ALIGNED for n in (1, 7, 64, 65, 1000)} == {0}


def test_small_arrays_of_an_arena_that_expects_little_are_numpys_own() -> None:
    assert Arena(SMALL - 1).empty(10, "i8").base is None
