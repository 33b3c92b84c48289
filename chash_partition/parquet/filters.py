"""Which shards a filter on the key leaves, and what statistics can say of a key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import ROUND_FLOOR, Decimal, localcontext
from itertools import product
from operator import ge, gt, le, lt
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from chash_partition.hashing import hash_key
from chash_partition.layout import Layout
from chash_partition.parquet.store import DatasetError

__all__ = ["as_in", "equals", "expression_of", "shards_left"]

MAX_KEYS = 100_000  # combinations of values that are hashed to find their shards
COMPARED: dict[str, Any] = {"<": lt, "<=": le, ">": gt, ">=": ge}
NEVER = pc.scalar(False)
PER_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
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
    kind = _values(kind)
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if is_null(value):
        return True
    if isinstance(value, np.timedelta64):  # to numpy a kind of integer
        return bool(pa.types.is_duration(kind))
    if pa.types.is_timestamp(kind) and (kind.tz is not None) != (getattr(value, "tzinfo", None) is not None):
        return False
    return any(isinstance(value, types) for holds, types in KINDS if holds(kind))


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def equals(field: pa.Field, value: Any) -> pc.Expression | None:
    """What is true of every row whose key is that value; None for a null one.

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
    _check_kind(field, value)
    if is_null(value):
        return None
    exact = _as(field.type, value)
    return NEVER if exact is None else pc.field(field.name) == exact


def as_in(field: pa.Field, value: Any) -> Any:
    """A key as its column holds it, if that can."""
    exact = _as(field.type, value)
    return value if exact is None else exact


def _check_kind(field: pa.Field, value: Any) -> None:
    if not of_kind(field.type, value):
        raise TypeError(
            f"{value!r} is a {type(value).__name__}{_zone(value)}, but column {field.name!r} is "
            f"{field.type}: give a value as the column holds them"
        )


def _zone(value: Any) -> str:
    if not isinstance(value, (datetime, np.datetime64)):
        return ""
    return " with a time zone" if getattr(value, "tzinfo", None) is not None else " without a time zone"


def _as(kind: pa.DataType, value: Any) -> pa.Scalar | None:
    """The value in the column's type, if there it is the same key."""
    if is_null(value):
        return None
    kind = _values(kind)
    if pa.types.is_temporal(kind):
        ticks, exact = _ticks(kind, value)
        return pa.scalar(ticks, kind) if exact else None
    value = _python(value)
    if isinstance(value, (bool, int, float, Decimal)):
        value = _number(kind, value)
    try:
        scalar = pa.scalar(value, kind)
        return scalar if hash_key(scalar) == hash_key(value) else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _ticks(kind: pa.DataType, value: Any) -> tuple[int, bool]:
    """A time in the units of a type, rounded down, and whether it is so exactly."""
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if pa.types.is_time(kind):
        unit, count = "us", (value.hour * 60 + value.minute) * 60_000_000
        count += value.second * 1_000_000 + value.microsecond
    else:
        stamp: Any = pd.Timedelta(value) if pa.types.is_duration(kind) else pd.Timestamp(value)
        unit, count = stamp.unit, int(stamp.asm8.view("i8"))
    per_day = 1 if pa.types.is_date(kind) else PER_DAY[kind.unit]
    ticks, rest = divmod(count * per_day, PER_DAY[unit])
    return ticks * (PER_DAY["ms"] if pa.types.is_date64(kind) else 1), rest == 0


def _python(value: Any) -> Any:
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


def _number(kind: pa.DataType, value: Any) -> Any:
    """A number as pyarrow takes it for that type; if it is another one there, it is not taken for it."""
    if isinstance(value, (float, Decimal)) and not math.isfinite(value):
        return float(value)
    if pa.types.is_boolean(kind):
        return bool(value) if value in (0, 1) else value
    if pa.types.is_integer(kind):
        return int(value) if value == int(value) else value
    if pa.types.is_floating(kind):
        return float(value) if abs(value) < 2**1023 else value
    return Decimal(value) if pa.types.is_decimal(kind) else value


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
    """What is true of the rows that pass.

    pyarrow would convert values to the type of the column, or the column to that of the values, whatever
    that loses; and statistics know of no NaN and take zeros for -0.0. So each value is put exactly here.
    """
    passes = NEVER
    for clauses in _disjuncts(filters):
        each = pc.scalar(True)
        for clause in clauses:
            if len(clause) != 3:
                raise ValueError(f"{clause!r} is not (column, operator, value)")
            column, operator, value = clause
            each &= _clause(schema.field(column), operator, value)
        passes = each if passes is NEVER else passes | each
    return passes


def _clause(field: pa.Field, operator: str, value: Any) -> pc.Expression:
    column, operator = pc.field(field.name), {"=": "=="}.get(operator, operator)
    if operator in ("in", "not in"):
        if isinstance(value, (str, bytes)):
            raise TypeError(f"{value!r} is one value, and {operator!r} takes a list of them")
        found = _among(field, list(value))
        return found if operator == "in" else ~found
    if operator not in ("==", "!=", "<", "<=", ">", ">="):
        raise ValueError(f"{operator!r} is none of ==, !=, <, <=, >, >=, in, not in")
    _check_kind(field, value)
    if is_null(value):
        return NEVER  # as in SQL
    exact = _as(field.type, value)
    if operator == "==":
        return NEVER if exact is None else column == exact
    if operator == "!=":
        other = column.is_valid() if exact is None else column != exact
        return _or_nan(field, other)
    if pa.types.is_dictionary(field.type):
        raise TypeError(
            f"column {field.name!r} is a category, whose order filters do not know: list the categories "
            f"with 'in'"
        )
    if exact is not None:
        return {"<": column < exact, "<=": column <= exact, ">": column > exact, ">=": column >= exact}[
            operator
        ]
    below = _floor(field.type, value)
    if below is None:  # less than all that the column can hold
        return NEVER if operator in ("<", "<=") else column.is_valid() & ~_nan(field)
    return column <= below if operator in ("<", "<=") else column > below


def _among(field: pa.Field, values: list[Any]) -> pc.Expression:
    """True of rows that have one of the values, and of no others; never null."""
    column, kind = pc.field(field.name), _values(field.type)
    for value in values:
        _check_kind(field, value)
    exact = [one for value in values if (one := _as(kind, value)) is not None]
    found = NEVER
    if pa.types.is_floating(kind) and any(one.as_py() == 0 for one in exact):
        # Statistics have -0.0 for zeros, and `isin` compares bits.
        exact = [one for one in exact if one.as_py() != 0]
        found = pc.coalesce(column == pa.scalar(0, kind), pc.scalar(False))
    if exact:
        isin = column.isin(pa.array(exact, kind))
        found = isin if found is NEVER else found | isin
    if any(map(is_null, values)):
        found = found | column.is_null() | pc.coalesce(_nan(field), pc.scalar(False))
    elif pa.types.is_floating(kind):
        # Asked of NaN too, which statistics do not tell of.
        found = found & ~pc.coalesce(_nan(field), pc.scalar(False))
    return found


def _nan(field: pa.Field) -> pc.Expression:
    return pc.is_nan(pc.field(field.name)) if pa.types.is_floating(field.type) else NEVER


def _or_nan(field: pa.Field, expression: pc.Expression) -> pc.Expression:
    return expression | _nan(field) if pa.types.is_floating(field.type) else expression


def _floor(kind: pa.DataType, value: Any) -> pa.Scalar | None:
    """The largest value of a type that is less than one that it cannot hold; None if there is none."""
    value = _python(value)
    if pa.types.is_boolean(kind):
        return None if value < 0 else pa.scalar(bool(value >= 1))
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        if value < limits.min:
            return None
        return pa.scalar(int(limits.max) if value > limits.max else math.floor(value), kind)
    if pa.types.is_floating(kind):
        dtype = kind.to_pandas_dtype()
        with np.errstate(over="ignore"):
            near = dtype(value)
        return pa.scalar(near if float(near) < value else np.nextafter(near, dtype(-np.inf)), kind)
    if pa.types.is_decimal(kind):
        largest = Decimal(10**kind.precision - 1).scaleb(-kind.scale)
        if value < -largest:
            return None
        with localcontext() as context:
            context.prec = 100
            step = Decimal(1).scaleb(-kind.scale)
            exact = Decimal(value).quantize(step, ROUND_FLOOR) if value < largest else largest
        return pa.scalar(exact, kind)
    if pa.types.is_temporal(kind):
        return pa.scalar(_ticks(kind, value)[0], kind)
    raise TypeError(f"{value!r} cannot be compared with {kind}")


def _disjuncts(filters: Sequence[Any]) -> list[list[tuple[str, str, Any]]]:
    if not all(filters):
        raise ValueError("a list in it is empty")
    flat = all(isinstance(clause[0], str) for clause in filters)
    return [list(filters)] if flat else [list(clauses) for clauses in filters]


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
        values = [_as(schema.field(name).type, one) for one in (value if operator == "in" else [value])]
        if all(one is not None for one in values):
            return values
    return None
