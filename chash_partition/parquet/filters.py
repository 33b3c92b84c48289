"""Which shards a filter on the key leaves, and what statistics can say of a key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chash_partition.hashing import hash_key
from chash_partition.layout import Layout
from chash_partition.parquet.store import DatasetError

__all__ = ["equals", "expression_of", "shards_left"]

MAX_KEYS = 100_000  # combinations of values that are hashed to find their shards
NUMBER = (bool, int, float, Decimal, np.number, np.bool_)
KINDS: list[tuple[Any, tuple[type, ...]]] = [
    (lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind), NUMBER),
    (lambda kind: pa.types.is_decimal(kind) or pa.types.is_boolean(kind), NUMBER),
    (
        lambda kind: (
            pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        ),
        (str,),
    ),
    (lambda kind: pa.types.is_timestamp(kind) or pa.types.is_date(kind), (date, np.datetime64)),
    (pa.types.is_duration, (timedelta, np.timedelta64)),
    (pa.types.is_time, (time,)),
    (
        lambda kind: (
            pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        ),
        (bytes, bytearray, memoryview),
    ),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), (UUID, bytes)),
]


def is_null(value: Any) -> bool:
    """Whether a value is a null key."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def of_kind(kind: pa.DataType, value: Any) -> bool:
    """Whether a column of that type could hold the value, or one equal to it."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    return is_null(value) or any(isinstance(value, types) for holds, types in KINDS if holds(kind))


def equals(field: pa.Field, value: Any) -> pc.Expression | None:
    """What is true of every row whose key is that value; None if nothing that statistics could tell.

    Raises
    ------
    TypeError
        If the value is of another kind than the column. Equal hashes mean equal keys within one kind only:
        0 and the epoch hash alike.

    Examples
    --------
    >>> print(equals(pa.field("k", pa.int64()), 7.0))
    (k == 7)
    """
    if not of_kind(field.type, value):
        raise TypeError(
            f"key {value!r} is a {type(value).__name__}, but column {field.name!r} is {field.type}: look up "
            f"a value as the column holds them"
        )
    exact = _as(field.type, value)
    return None if exact is None else pc.field(field.name) == exact


def _as(kind: pa.DataType, value: Any) -> pa.Scalar | None:
    """The value in the column's type, if there it is the same key."""
    if is_null(value):
        return None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) and isinstance(value, (float, np.floating)) and math.isfinite(value):
        value = int(value) if value == int(value) else value
    try:
        scalar = pa.scalar(value, kind)
        return scalar if hash_key(scalar) == hash_key(value) else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def expression_of(filters: Any, schema: pa.Schema) -> tuple[pc.Expression, list[str]]:
    """Filters as `pyarrow.parquet.filters_to_expression` takes them, and the columns that they look at.

    Raises
    ------
    DatasetError
        If they cannot be asked of this schema, saying why.
    """
    try:
        expression = filters if isinstance(filters, pc.Expression) else _expression(filters, schema)
        schema.empty_table().filter(expression)
    except (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError) as error:
        raise DatasetError(
            f"filters={filters!r:.200} cannot be asked of the columns {schema.names}: {error}. Give a list "
            f"of (column, operator, value), or a list of such lists, of which any may be true"
        ) from None
    if isinstance(filters, pc.Expression):
        return expression, list(schema.names)
    return expression, sorted({column for clauses in _disjuncts(filters) for column, _, _ in clauses})


def _expression(filters: Any, schema: pa.Schema) -> pc.Expression:
    """With values in the columns' own types where that is exact: pyarrow casts the columns otherwise."""

    def typed(column: str, operator: str, value: Any) -> tuple[str, str, Any]:
        kind = schema.field(column).type
        if operator not in ("in", "not in"):
            scalar = _as(kind, value)
            return column, operator, value if scalar is None else scalar
        exact = [_as(kind, one) for one in value]
        known = [one for one in exact if one is not None]
        if not known or len(known) < len(exact):
            return column, operator, list(value)
        return column, operator, pa.array(known, known[0].type)

    return pq.filters_to_expression([[typed(*clause) for clause in each] for each in _disjuncts(filters)])


def _disjuncts(filters: Sequence[Any]) -> list[list[tuple[str, str, Any]]]:
    return (
        [list(filters)]
        if all(isinstance(clause[0], str) for clause in filters)
        else [list(c) for c in filters]
    )


def shards_left(filters: Any, schema: pa.Schema, layout: Layout) -> set[int] | None:
    """The shards that can have rows for which the filters are true; None if any can.

    Examples
    --------
    >>> layout = Layout.create("k", 8, ["w0"])
    >>> sorted(shards_left([("k", "in", [1, 2]), ("x", ">", 0)], pa.schema({"k": pa.int64()}), layout))
    [4, 7]
    """
    if isinstance(filters, pc.Expression):
        return None
    left: set[int] = set()
    for clauses in _disjuncts(filters):
        values = [_values_of(str(name), clauses, schema) for name in layout.on]
        if any(value is None for value in values):
            return None
        known = [value for value in values if value is not None]
        if math.prod(map(len, known)) > MAX_KEYS:
            return None
        left.update(map(layout.partition_of_key, product(*known)))
    return left


def _values_of(name: str, clauses: Iterable[tuple[str, str, Any]], schema: pa.Schema) -> list[Any] | None:
    """The only values that a column can have; None if that cannot be told, or not by their hashes."""
    for column, operator, value in clauses:
        if column != name or operator not in ("=", "==", "in"):
            continue
        values = list(value) if operator == "in" else [value]
        if all(_as(schema.field(name).type, one) is not None for one in values):
            return values
    return None
