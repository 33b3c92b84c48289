"""Which tests are for which of the three targets.

`make test` runs each behaviour once. `make test-all` adds what is marked `thorough`, and runs the property
tests again with more examples. `make test-long` adds what is marked `long`, with more examples still.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from allpairspy import AllPairs
from hypothesis import settings

QUICK = 20  # examples of a property test in `make test`


def thorough(*cases: Any) -> list[Any]:
    """Cases of a parametrized test that `make test-all` runs."""
    return [pytest.param(case, marks=pytest.mark.thorough) for case in cases]


def some(cases: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """All the cases, of which `make test` runs the quick ones."""
    quick = list(quick)
    cases = list(cases)
    unknown = [case for case in quick if case not in cases]
    assert not unknown, f"no such case: {unknown}"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.thorough) for case in cases]


def together(argument: str, names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize by a list of names: all of them in `make test`, each alone in `make test-all`."""
    names = list(names)
    alone = (pytest.param([name], id=name, marks=pytest.mark.thorough) for name in names)
    return pytest.mark.parametrize(argument, [pytest.param(names, id="all"), *alone])


def pairs(indirect: Sequence[str] = (), **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize by the product of the axes, of which `make test` runs so many that each two values meet."""
    values = {name: list(axis) for name, axis in axes.items()}
    return _product(values, AllPairs(list(values.values())), indirect)


def once(indirect: Sequence[str] = (), **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize by the product of the axes, of which `make test` runs so many that each value is there."""
    values = {name: list(axis) for name, axis in axes.items()}
    longest = max(map(len, values.values()))
    quick = ([axis[i % len(axis)] for axis in values.values()] for i in range(longest))
    return _product(values, quick, indirect)


def _product(
    values: dict[str, list[Any]], quick: Iterable[Iterable[Any]], indirect: Sequence[str]
) -> pytest.MarkDecorator:
    chosen = set(map(tuple, quick))
    cases = [
        pytest.param(*case, marks=() if case in chosen else pytest.mark.thorough)
        for case in product(*values.values())
    ]
    return pytest.mark.parametrize(list(values), cases, indirect=indirect)


def examples(share: float = 1, quick: int | None = None) -> settings:
    """As many examples as this share of what the target gives a property test; in `make test` so many."""
    usual = settings.default.max_examples
    if quick is not None and usual == QUICK:
        return settings(max_examples=quick)
    return settings(max_examples=max(1, round(usual * share)))
