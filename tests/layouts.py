"""The layouts that the tests of layouts and plans start from."""

from __future__ import annotations

from typing import Any

from chash_partition import Layout


def layout(npartitions: int = 64, nodes: Any = ("w0", "w1", "w2", "w3"), **kwargs: Any) -> Layout:
    return Layout.create("user_id", npartitions, nodes, **kwargs)


def owners(layout: Layout) -> list[str]:
    return [layout.owner_of(p) for p in range(layout.npartitions)]
