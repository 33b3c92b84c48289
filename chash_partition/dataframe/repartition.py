"""`chash_repartition`: the entry to everything else."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import dask.dataframe as dd
from dask.utils import get_default_shuffle_method

from chash_partition._dask import new_collection
from chash_partition.cluster.live import active_client, known_addresses, worker_count
from chash_partition.dataframe.expressions import Claim, Place
from chash_partition.dataframe.keys import key_columns, keys_of
from chash_partition.hashing import hash_keys
from chash_partition.layout import Layout
from chash_partition.ring import each_node

Engine = Literal["auto", "p2p", "tasks"]
PARTITIONS_PER_NODE = 16
LOCAL = "local"


def chash_repartition(
    df: dd.DataFrame,
    on: Hashable | list[Hashable],
    *,
    npartitions: int | None = None,
    nodes: Iterable[str] | Mapping[str, Any] | None = None,
    layout: Layout | None = None,
    placement: Literal["bounded", "ring"] = "bounded",
    vnodes: int = 256,
    seed: int = 0,
    engine: Engine = "auto",
) -> dd.DataFrame:
    """Give the rows of a Dask DataFrame to partitions by consistent hash of key columns.

    All rows of a key are in one partition, and partition ``i`` of the result holds exactly the
    rows with ``layout.partition_of(key) == i``. On a cluster each partition is owned by a
    worker: it lands there when persisted with ``df.chash.persist()``, and when workers come or
    go only the fewest possible partitions change owner.

    Parameters
    ----------
    df : dask.dataframe.DataFrame
        Any columns; labels must be unique.
    on : label or list of labels
        The key columns, or names of index levels. Null keys are keys like any other, in partition 0.
    npartitions : int, optional
        Number of partitions P, which scaling never changes. Default: the larger of
        ``df.npartitions`` and 16 per node.
    nodes : iterable of names, or mapping of name to weight, optional
        Who owns partitions. Default: the workers of the active cluster by name, each with
        weight 1; without a cluster, or with an asynchronous client, one node.
    layout : Layout, optional
        Share this layout, e.g. ``other.chash.layout``, instead of making one: frames of one
        layout merge without a shuffle and move together. Excludes the arguments that make one.
    placement : {"bounded", "ring"}
        See `Layout.create`.
    vnodes : int
        Virtual nodes for a node of weight 1.
    seed : int
        Of the key hash and the ring, ``0 <= seed < 2**64``.
    engine : {"auto", "p2p", "tasks"}
        How rows travel. ``"p2p"``: our shuffle run in Dask's P2P machinery, each partition landing
        directly on its owner; needs a distributed client. ``"tasks"``: plain tasks, in memory, on any
        scheduler. ``"auto"``: p2p where a client is active; else tasks, whose shares wait on disk
        unless the Dask config says ``dataframe.shuffle.method: tasks``.

    Returns
    -------
    dask.dataframe.DataFrame
        Lazy, same columns, dtypes and index values, P partitions, with the accessor
        ``df.chash``. Merges and group-bys on the key need no further shuffle.

    Raises
    ------
    TypeError
        If `df` is not a Dask DataFrame, or a key column has a dtype that has no key hash.
    ValueError
        If a key column is missing or ambiguous, or a column label is not unique, if the arguments that make
        a layout are out of range, or if `layout` is keyed by other columns.

    Examples
    --------
    >>> import pandas as pd, dask.dataframe as dd
    >>> from chash_partition import chash_repartition
    >>> df = dd.from_pandas(pd.DataFrame({"user_id": [7, 8, 7, 9], "x": [1, 2, 3, 4]}), npartitions=2)
    >>> placed = df.pipe(chash_repartition, on="user_id", npartitions=8)
    >>> placed.chash.layout
    Layout(on=user_id, 8 partitions on 1 node: 8 each, version 0)
    >>> sorted(placed.chash.lookup(7)["x"])
    [1, 3]

    Notes
    -----
    Rows are spread by consistent hashing [1]_ of partitions, not of rows: a key belongs to a
    fixed partition, and partitions belong to nodes.

    References
    ----------
    .. [1] D. Karger et al., "Consistent hashing and random trees", STOC 1997.
    """
    if isinstance(df, dd.Series):
        raise TypeError("df must be a dask.dataframe.DataFrame, not a Series: make it one with .to_frame()")
    if not isinstance(df, dd.DataFrame):
        raise TypeError(
            f"df must be a dask.dataframe.DataFrame, not {type(df).__module__}.{type(df).__name__}; "
            "make one with dask.dataframe.from_pandas(df, npartitions=...)"
        )
    if isinstance(on, (dd.Series, dd.DataFrame, dd.Index)):
        raise TypeError(
            f"on takes labels of columns, not the columns themselves: on={getattr(on, 'name', None)!r}"
        )
    columns = key_columns(df, on)
    hash_keys(keys_of(df._meta, columns))  # of no rows: raises for a dtype that has no key hash
    if engine not in ("auto", "p2p", "tasks"):
        raise ValueError(f"engine must be 'auto', 'p2p' or 'tasks', not {engine!r}")
    client = active_client()
    if engine == "p2p" and client is None:
        raise ValueError(
            "engine='p2p' needs a distributed client: make one with distributed.Client(), "
            "or use engine='tasks'"
        )
    way = way_of(engine, client is not None)
    asked = client is not None and (way == "p2p" or (nodes is None and layout is None))
    addresses = known_addresses(client) if asked else {}
    if layout is None:
        if nodes is None:
            # Without nodes that are workers, partitions are spread over all workers.
            askable = client is not None and not client.asynchronous
            nodes = sorted(addresses) if askable else [LOCAL]
            if not nodes:
                raise ValueError(
                    "the cluster has no workers yet: call client.wait_for_workers(n) first, or pass nodes="
                )
        elif not isinstance(nodes, Mapping):
            nodes = list(each_node(nodes))
        if npartitions is None:
            workers = worker_count(client) if client is not None and client.asynchronous else 1
            npartitions = max(df.npartitions, PARTITIONS_PER_NODE * max(workers, len(nodes)))
        layout = Layout.create(
            list(columns), npartitions, nodes, placement=placement, vnodes=vnodes, seed=seed
        )
    else:
        if (npartitions, nodes, placement, vnodes, seed) != (None, None, "bounded", 256, 0):
            raise ValueError(
                "layout= already says npartitions, nodes, placement, vnodes and seed: leave those out, "
                "or leave out layout= to make a new one"
            )
        if not isinstance(layout, Layout):
            raise TypeError(
                f"layout must be a chash_partition.Layout, such as other.chash.layout, "
                f"not {type(layout).__name__}"
            )
        if layout.on != columns:
            raise ValueError(
                f"layout= is keyed by {list(layout.on)}, but on={list(columns)}: pass "
                f"on={list(layout.on)}, or, if these columns hold the same keys, "
                f"layout=layout.rename({list(columns)!r})"
            )
    return place(df, columns, layout, way, addresses)


def way_of(engine: Engine, cluster: bool) -> Literal["p2p", "tasks", "disk"]:
    """How rows travel; resolved here, as the scheduler that lowers a graph has no client."""
    if engine != "auto":
        return engine
    if cluster:
        return "p2p"
    return "tasks" if get_default_shuffle_method() == "tasks" else "disk"


def place(
    df: dd.DataFrame,
    columns: tuple[Hashable, ...],
    layout: Layout,
    way: Literal["p2p", "tasks", "disk"],
    addresses: dict[str, str],
) -> dd.DataFrame:
    """The placed frame; the arguments are known to be good."""
    nodes = set(layout.nodes)
    known_addresses = tuple(sorted((name, a) for name, a in addresses.items() if name in nodes))
    return new_collection(
        Claim(Place(df.expr, columns, layout, way, known_addresses if way == "p2p" else ()))
    )
