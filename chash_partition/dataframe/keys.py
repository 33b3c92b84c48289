"""The key of a frame's rows: columns, or levels of its index."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import dask.dataframe as dd
import pandas as pd


def levels_of(frame: pd.DataFrame) -> list[pd.Index]:
    """The levels of the index by position; pandas takes a number for a name where there is one."""
    index = frame.index
    if index.nlevels == 1:
        return [index]
    unnamed = index.set_names([None] * index.nlevels)
    return [unnamed.get_level_values(level) for level in range(index.nlevels)]


def keys_of(frame: pd.DataFrame, on: Sequence[Hashable]) -> pd.DataFrame:
    """The key of each row, its columns labelled as in `on`."""
    columns = list(frame.columns)
    if all(label in columns for label in on):
        return frame[list(on)]
    names, levels = list(frame.index.names), levels_of(frame)
    keys = {i: frame[label] if label in columns else levels[names.index(label)] for i, label in enumerate(on)}
    out = pd.DataFrame(keys, index=frame.index, copy=False)
    out.columns = pd.Index(on, dtype=object, tupleize_cols=False)
    return out


def key_columns(df: dd.DataFrame, on: Hashable | list[Hashable]) -> tuple[Hashable, ...]:
    """The key columns as a tuple, each known to be a column of the frame, or else a level of its index."""
    columns, levels = list(df.columns), [name for name in df._meta.index.names if name is not None]
    if isinstance(on, tuple) and (on in columns or on in levels):
        keys: tuple[Hashable, ...] = (on,)
    else:
        keys = tuple(on) if isinstance(on, (list, tuple)) else (on,)
    if not keys:
        raise ValueError("on= names no key column; give one, e.g. on='user_id'")
    for key in keys:
        if key not in columns and key not in levels:
            raise ValueError(
                f"key column {key!r} is neither a column of the frame (columns: {columns}) "
                f"nor a level of its index (levels: {levels})"
            )
        if key not in columns and levels.count(key) > 1:
            raise ValueError(
                f"key {key!r} names {levels.count(key)} levels of the index: make it a column first, "
                "with df.reset_index()"
            )
        if keys.count(key) > 1:
            raise ValueError(f"key column {key!r} is given twice in on={list(keys)}")
    twice = sorted({repr(label) for label in columns if columns.count(label) > 1})
    if twice:
        raise ValueError(
            f"column label {', '.join(twice)} is not unique: give each column a label of its own, "
            "e.g. with df.columns = [...]"
        )
    return keys
