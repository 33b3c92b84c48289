"""Memory for arrays that live and die together."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np

# What is smaller comes from numpy.
SMALL = 1 << 18
HUGE = 1 << 21
ALIGNED = 64


class Arena:
    """Room for arrays that live and die together.

    A repartition touches several times the memory of its rows, and most of its time can go to
    the system handing out pages. So an arena asks for it in one piece, and gives it back, still
    warm, when its last array is gone.

    Parameters
    ----------
    nbytes : how much is likely to be wanted; more is given, in further pieces. With 0, each array
        of some size has a piece of its own.
    huge : in huge pages, where the system has them: quick for what is gone soon. For what stays
        they may be slow to find.
    """

    def __init__(self, nbytes: int, huge: bool = False):
        self._huge = huge
        self._expected = int(nbytes)
        self._piece = np.empty(0, np.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def empty(self, n: int, dtype: Any) -> np.ndarray:
        """An array of `n` values that are not set."""
        dtype = np.dtype(dtype)
        nbytes = n * dtype.itemsize
        if max(self._expected, nbytes) < SMALL:
            return np.empty(n, dtype)
        with self._lock:
            if self._used + nbytes > len(self._piece):
                self._piece = _pages(max(nbytes, self._expected), self._huge)
                self._used, self._expected = 0, self._expected // 4
            piece, start = self._piece, self._used
            self._used += -(-nbytes // ALIGNED) * ALIGNED
        return np.ndarray(n, dtype, piece, start)


def _pages(nbytes: int, huge: bool) -> np.ndarray:
    """Fresh pages, huge as far as they are filled."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(nbytes, np.uint8)
    pages = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    out = np.frombuffer(pages, np.uint8)
    start = -out.ctypes.data % HUGE
    if huge and nbytes >= HUGE:
        pages.madvise(mmap.MADV_HUGEPAGE, start, nbytes // HUGE * HUGE)
    return out[start : start + nbytes]
