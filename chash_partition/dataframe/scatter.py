"""Compiled loops that put rows in order of their partitions, and gather them again.

A radix partitioning: rows are read in order, and written to as many streams as there are
partitions (Polychroniou and Ross, "A comprehensive study of main-memory partitioning", SIGMOD
2014). Nothing here holds the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from chash_partition.hashing import compiled


class Kernels(NamedTuple):
    places: Callable[..., None]
    words: dict[int, Callable[..., None]]
    lengths: Callable[..., None]
    spans: Callable[..., None]
    gather: Callable[..., None]
    offsets: Callable[..., None]


_lock = threading.Lock()
_compiled: Kernels | None = None
_copy: Any
_load_i64: Any


def kernels() -> Kernels:
    """The compiled loops; numba is imported on the first call."""
    global _compiled
    if _compiled is None:
        with _lock:
            if _compiled is None:
                _compiled = _compile()
    return _compiled


def _compile() -> Kernels:
    global _copy, _load_i64
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic

    i32, i64 = numba.int32, numba.int64

    @intrinsic
    def load_i64(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
            return builder.load(pointer, align=1)

        return i64(i64), generate

    @intrinsic
    def copy(typing_context: Any, target: Any, source: Any, n: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            byte = ir.IntType(8).as_pointer()
            target, source = (builder.inttoptr(a, byte) for a in args[:2])
            i1 = ir.IntType(1)
            memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
            builder.call(memcpy, [target, source, args[2], i1(0)])
            return context.get_dummy_value()

        return numba.void(i64, i64, i64), generate

    _load_i64, _copy = load_i64, copy

    def places(slots: Any, following: Any, out: Any) -> None:
        for i in range(len(slots)):
            slot = slots[i]
            out[i] = following[slot]
            following[slot] += 1

    def words(values: Any, places: Any, out: Any) -> None:
        for i in range(len(values)):
            out[places[i]] = values[i]

    def lengths(offsets: Any, places: Any, out: Any) -> None:
        for i in range(len(places)):
            out[places[i]] = offsets[i + 1] - offsets[i]

    def spans(data: Any, offsets: Any, places: Any, starts: Any, out: Any) -> None:
        for i in range(len(places)):
            n = offsets[i + 1] - offsets[i]
            source, target = data + offsets[i], out + starts[places[i]]
            # Short strings: whole words, the last one overlapping.
            if n >= 8 and n <= 64:
                end = n - 8
                at = 0
                while at < end:
                    _copy(target + at, source + at, 8)
                    at += 8
                _copy(target + end, source + end, 8)
            elif n > 0:
                _copy(target, source, n)

    def gather(sources: Any, sizes: Any, out: Any) -> None:
        for i in range(len(sources)):
            if sizes[i] > 0:
                _copy(out, sources[i], sizes[i])
                out += sizes[i]

    def offsets(sources: Any, rows: Any, out: Any) -> None:
        at, base = 1, 0
        out[0] = 0
        for i in range(len(sources)):
            if rows[i] == 0:
                continue
            first = _load_i64(sources[i])
            for row in range(1, rows[i] + 1):
                out[at] = base + _load_i64(sources[i] + 8 * row) - first
                at += 1
            base = out[at - 1]

    def read(kind: Any) -> Any:
        return numba.types.Array(kind, 1, "C", readonly=True)

    def scatter(kind: Any) -> Callable[..., None]:
        return compiled(words, read(kind), read(i32), kind[::1])

    return Kernels(
        compiled(places, read(i32), i64[::1], i32[::1]),
        {
            1: scatter(numba.uint8),
            2: scatter(numba.uint16),
            4: scatter(numba.uint32),
            8: scatter(numba.uint64),
            16: scatter(numba.complex128),
        },
        compiled(lengths, read(i64), read(i32), i64[::1]),
        compiled(spans, i64, read(i64), read(i32), read(i64), i64),
        compiled(gather, read(i64), read(i64), i64),
        compiled(offsets, read(i64), read(i64), i64[::1]),
    )
