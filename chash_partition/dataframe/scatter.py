"""Compiled loops that put rows in order of their partitions, and gather them again.

A radix partitioning: rows are read in order, and written to as many streams as there are
partitions (Polychroniou and Ross, "A comprehensive study of main-memory partitioning", SIGMOD
2014). A stream is the address of its next value. Nothing here holds the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from chash_partition.hashing import compiled, once


class Kernels(NamedTuple):
    slots: Callable[..., None]
    words: dict[int, Callable[..., None]]
    lengths: dict[int, Callable[..., None]]
    spans: dict[int, Callable[..., None]]
    gather: Callable[..., None]
    offsets: Callable[..., None]


_copy: Any
_load_i64: Any
_store_i64: Any
_fill: Any


@once
def kernels() -> Kernels:
    """The compiled loops; numba is imported on the first call."""
    global _copy, _fill, _load_i64, _store_i64
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic

    i32, i64, u64 = numba.int32, numba.int64, numba.uint64
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(64).as_pointer()

    @intrinsic
    def load_i64(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], word), align=1)

        return i64(i64), generate

    @intrinsic
    def store_i64(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], builder.inttoptr(args[0], word), align=1)
            return context.get_dummy_value()

        return numba.void(i64, i64), generate

    @intrinsic
    def copy(typing_context: Any, target: Any, source: Any, n: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, source = (builder.inttoptr(a, byte) for a in args[:2])
            memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
            builder.call(memcpy, [target, source, args[2], ir.IntType(1)(0)])
            return context.get_dummy_value()

        return numba.void(i64, i64, i64), generate

    @intrinsic
    def fill(typing_context: Any, target: Any, n: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            memset = builder.module.declare_intrinsic("llvm.memset", [byte, ir.IntType(64)])
            builder.call(
                memset, [builder.inttoptr(args[0], byte), ir.IntType(8)(1), args[1], ir.IntType(1)(0)]
            )
            return context.get_dummy_value()

        return numba.void(i64, i64), generate

    _load_i64, _store_i64, _copy, _fill = load_i64, store_i64, copy, fill
    half = u64(32)

    def slots(hashes: Any, npartitions: Any, of_partition: Any, out: Any, counts: Any) -> None:
        for i in range(len(hashes)):
            slot = of_partition[i64(((hashes[i] >> half) * npartitions) >> half)]
            out[i] = slot
            counts[slot] += 1

    def words(width: int) -> Callable[..., None]:
        def words(values: Any, slots: Any, streams: Any) -> None:
            for i in range(len(slots)):
                slot = slots[i]
                if slot < len(streams):
                    _copy(streams[slot], values + width * i, width)
                    streams[slot] += width

        return compiled(words, i64, read(i32), i64[::1])

    def lengths(offsets: Any, slots: Any, streams: Any) -> None:
        for i in range(len(slots)):
            slot = slots[i]
            if slot < len(streams):
                _store_i64(streams[slot], i64(offsets[i + 1]) - i64(offsets[i]))
                streams[slot] += 8

    def spans(data: Any, offsets: Any, slots: Any, streams: Any) -> None:
        for i in range(len(slots)):
            slot = slots[i]
            if slot < len(streams):
                n, source, target = i64(offsets[i + 1]) - i64(offsets[i]), data + offsets[i], streams[slot]
                streams[slot] += n
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
            if sources[i] == 0:
                _fill(out, sizes[i])
            else:
                _copy(out, sources[i], sizes[i])
            out += sizes[i]

    def offsets(sources: Any, rows: Any, firsts: Any, lasts: Any, out: Any) -> None:
        at, base = 1, 0
        out[0] = 0
        for i in range(len(sources)):
            firsts[i] = _load_i64(sources[i])
            lasts[i] = _load_i64(sources[i] + 8 * rows[i])
            base -= firsts[i]
            for row in range(1, rows[i] + 1):
                out[at] = base + _load_i64(sources[i] + 8 * row)
                at += 1
            base += lasts[i]

    def read(kind: Any) -> Any:
        return numba.types.Array(kind, 1, "C", readonly=True)

    ends = {4: read(i32), 8: read(i64)}
    return Kernels(
        compiled(slots, read(u64), u64, read(i32), i32[::1], i64[::1]),
        {width: words(width) for width in (1, 2, 4, 8, 16)},
        {width: compiled(lengths, kind, read(i32), i64[::1]) for width, kind in ends.items()},
        {width: compiled(spans, i64, kind, read(i32), i64[::1]) for width, kind in ends.items()},
        compiled(gather, read(i64), read(i64), i64),
        compiled(offsets, read(i64), read(i64), i64[::1], i64[::1], i64[::1]),
    )
