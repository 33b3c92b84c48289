"""Placements of the least cost by an integer programme, which knows nothing of how plans are made."""

from __future__ import annotations

from typing import Any

import numpy as np


def least_cost(
    sizes: Any, cost: Any, low: Any, high: Any, allowed: Any = None, time_limit: float | None = None
) -> int | None:
    """Of placements that give each node from `low` to `high` of the sizes; None if there is none.

    `cost` and `allowed` are by partition and node. Partitions that cannot be split go to one node each.
    """
    from scipy.optimize import LinearConstraint, milp  # which takes a second of those who need none of it
    from scipy.sparse import csr_array, kron

    cost = np.asarray(cost, float)
    partitions, nodes = cost.shape
    once = kron(csr_array(np.eye(partitions)), np.ones((1, nodes)))
    held = kron(np.asarray(sizes, float).reshape(1, -1), csr_array(np.eye(nodes)))
    found = milp(
        cost.ravel(),
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(held, low, high)],
        integrality=np.ones(cost.size),
        bounds=(0, 1 if allowed is None else np.asarray(allowed, float).ravel()),
        options={} if time_limit is None else {"time_limit": time_limit},
    )
    return round(found.fun) if found.success else None
