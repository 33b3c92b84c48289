"""The compiled loops put rows in order of their slots, and gather them again, as numpy would."""

from __future__ import annotations

import numpy as np
import pytest

from chash_partition.dataframe.carriers import address
from chash_partition.dataframe.scatter import kernels

N, WANTED = 500, 5
RNG = np.random.default_rng(0)
# The last slot is not wanted.
SLOTS = RNG.integers(0, WANTED + 1, N).astype(np.int32)
COUNTS = np.bincount(SLOTS, minlength=WANTED + 1)[:WANTED]
ORDER = np.argsort(SLOTS, kind="stable")[: COUNTS.sum()]
# Shorter and longer than what is copied by words.
TEXTS = [bytes(RNG.integers(0, 256, n, np.uint8)) for n in RNG.integers(0, 100, N)]
IN_ORDER = [TEXTS[i] for i in ORDER]


def starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum([0, *sizes], dtype=np.int64)


def test_a_hash_has_the_slot_of_its_partition() -> None:
    hashes, npartitions = RNG.integers(0, 2**64, N, np.uint64), 37
    of_partition = RNG.permutation(npartitions).astype(np.int32)
    out, counts = np.empty(N, np.int32), np.zeros(npartitions, np.int64)
    kernels().slots(hashes, npartitions, of_partition, out, counts)
    expected = [of_partition[(int(h) >> 32) * npartitions >> 32] for h in hashes]
    assert out.tolist() == expected
    assert counts.tolist() == np.bincount(expected, minlength=npartitions).tolist()


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "i8", "c16"])
def test_words_come_in_order_of_their_slots(dtype: str) -> None:
    values = np.arange(N).astype(dtype)
    out = np.empty(len(ORDER), dtype)
    streams = address(out) + starts(COUNTS)[:-1] * values.itemsize
    kernels().words[values.itemsize](address(values), SLOTS, streams)
    assert out.tolist() == values[ORDER].tolist()


@pytest.mark.parametrize("width", [4, 8])
def test_texts_and_their_lengths_come_in_order_of_their_slots(width: int) -> None:
    data, ends = np.frombuffer(b"".join(TEXTS), np.uint8), starts([*map(len, TEXTS)]).astype(f"i{width}")
    lengths = np.empty(len(ORDER), np.int64)
    kernels().lengths[width](ends, SLOTS, address(lengths) + starts(COUNTS)[:-1] * 8)
    assert lengths.tolist() == [*map(len, IN_ORDER)]
    out = np.empty(lengths.sum(), np.uint8)
    streams = address(out) + starts(lengths)[starts(COUNTS)[:-1]]
    kernels().spans[width](address(data), ends, SLOTS, streams)
    assert out.tobytes() == b"".join(IN_ORDER)


def test_pieces_are_gathered_and_what_has_no_source_is_ones() -> None:
    pieces = [np.frombuffer(text, np.uint8) for text in (b"abc", b"", b"defgh")]
    sources = np.array([address(pieces[0]), address(pieces[1]), 0, address(pieces[2])])
    out = np.empty(10, np.uint8)
    kernels().gather(sources, np.array([3, 0, 2, 5]), address(out))
    assert out.tobytes() == b"abc\1\1defgh"


def test_offsets_of_pieces_become_those_of_the_whole() -> None:
    pieces = [np.array(ends, np.int64) for ends in ([5, 7, 7, 9], [0], [100, 130])]
    rows = np.array([len(piece) - 1 for piece in pieces])
    firsts, lasts, out = np.empty(3, np.int64), np.empty(3, np.int64), np.empty(rows.sum() + 1, np.int64)
    kernels().offsets(np.array([*map(address, pieces)]), rows, firsts, lasts, out)
    assert out.tolist() == [0, 2, 2, 4, 34]
    assert firsts.tolist() == [5, 0, 100]
    assert lasts.tolist() == [9, 0, 130]
