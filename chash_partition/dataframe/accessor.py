"""`df.chash`: what a placed frame can do."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.dataframe.extensions import register_dataframe_accessor
from distributed import Client, wait

from chash_partition._dask import Partitions, new_collection
from chash_partition.cluster import live
from chash_partition.cluster.handle import AutobalanceHandle
from chash_partition.dataframe.explain import explain, why_not
from chash_partition.dataframe.expressions import Claim, PersistedFrame, Pin, persisted
from chash_partition.dataframe.keys import key_columns, keys_of
from chash_partition.dataframe.knowledge import KeepsKey, Known, by_columns, known, labels
from chash_partition.dataframe.repartition import place, way_of
from chash_partition.hashing import hash_key, hash_keys
from chash_partition.layout import Layout
from chash_partition.planner import RebalancePlan, moves_between, plan_rebalance
from chash_partition.ring import node_weights


@register_dataframe_accessor("chash")
class ChashAccessor:
    """What a placed frame can do, as ``df.chash``.

    Raises
    ------
    ValueError
        On a frame that is not placed: say ``df.pipe(chash_repartition, on=...)`` first.
    """

    def __repr__(self) -> str:
        facts = self._known
        try:
            layout = self.layout
        except (OSError, RuntimeError, ValueError):  # the cluster is gone
            layout = facts.layout.rename(facts.on)
        return f"<df.chash: {layout!r}>"

    def __init__(self, df: dd.DataFrame):
        # Dask keeps the accessor with the collection; a cycle would keep its partitions in memory.
        self._collection = weakref.ref(df)
        self._expr = df.expr
        _ = self._known

    @property
    def _df(self) -> dd.DataFrame:
        df = self._collection()
        return new_collection(self._expr) if df is None else df

    @property
    def _known(self) -> Known:
        facts = known(self._df.expr)
        if facts is None:
            raise ValueError(
                f"this frame is not placed: {why_not(self._df.expr)}. Make it one with "
                "df.pipe(chash_repartition, on=...), and keep it in memory with df.chash.persist(); "
                "chash_partition.explain(df) shows what its plan shuffles"
            )
        return facts

    @property
    def layout(self) -> Layout:
        """The layout of the frame.

        For a frame that was persisted on a cluster this is the scheduler's, so after
        `rebalance` or `retire` it is the new one.
        """
        facts = self._known
        layout = facts.layout.rename(facts.on)
        client = _client_of(facts.persisted) if facts.persisted is not None else None
        return layout if client is None else live.current_layout(client, layout)

    def persist(self) -> dd.DataFrame:
        """Start computing the partitions into memory, each on its owner.

        Returns
        -------
        dask.dataframe.DataFrame
            The placed frame in memory. As with ``df.persist()`` it returns at once and the work
            goes on in the background. Without a distributed client the frame is computed in
            this process.

        Examples
        --------
        >>> import pandas as pd, dask.dataframe as dd
        >>> from chash_partition import chash_repartition
        >>> df = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1]}), npartitions=1)
        >>> placed = df.pipe(chash_repartition, on="k", npartitions=4).chash.persist()
        >>> placed.npartitions
        4
        """
        facts = self._known
        keeper = _client_of(facts.persisted) if facts.persisted is not None else None
        client = keeper or live.active_client()
        if client is None:
            graph = self._df.persist().expr
            return new_collection(persisted(graph, facts.on, facts.layout))
        layout = live.current_layout(client, facts.layout)
        addresses = live.worker_addresses(client)
        owners = tuple(addresses.get(layout.nodes[i]) for i in layout.assignment)
        if absent := sorted({layout.nodes[i] for i in set(layout.assignment.tolist())} - addresses.keys()):
            warnings.warn(
                f"the layout gives partitions to {', '.join(absent)}, not a worker of this cluster "
                f"(workers: {', '.join(sorted(addresses))}): they land on others until df.chash.rebalance()",
                UserWarning,
                stacklevel=2,
            )
        graph = client.persist(new_collection(Pin(self._df.expr, owners))).expr
        frame = persisted(graph, facts.on, layout)
        live.register(client, layout, frame.frame.frame_name)
        return new_collection(frame)

    def placement(self) -> pd.Series:
        """Which worker holds each partition now, as the scheduler reports it.

        Waits until all partitions are computed.

        Returns
        -------
        pandas.Series
            Worker names (str), indexed by partition. Of several copies, the owner's is named.

        Raises
        ------
        ValueError
            If the frame is not persisted on a cluster.
        """
        layout, held = self._held()
        names = []
        for partition, (workers, _) in enumerate(held):
            owner = layout.owner_of(partition)
            names.append(owner if owner in workers else workers[0])
        return pd.Series(names, index=_partitions(layout), name="node", dtype=object)

    def sizes(self) -> pd.Series:
        """Bytes of each partition in memory, as the scheduler reports them.

        Waits until all partitions are computed.

        Returns
        -------
        pandas.Series
            int64, indexed by partition.

        Raises
        ------
        ValueError
            If the frame is not persisted on a cluster.
        """
        layout, held = self._held()
        return pd.Series(
            [nbytes for _, nbytes in held], index=_partitions(layout), name="nbytes", dtype="int64"
        )

    def _live(self) -> tuple[PersistedFrame, Client] | None:
        """The frame in memory and the client that keeps it; None for a lazy one or without a cluster."""
        frame = self._df.expr
        while isinstance(frame, Claim):
            frame = frame.frame
        client = _client_of(frame) if isinstance(frame, PersistedFrame) else None
        return None if client is None else (frame, client)

    def _must_be_live(self) -> tuple[PersistedFrame, Client]:
        _ = self._known
        if (live_frame := self._live()) is None:
            raise ValueError(
                "the partitions of this frame are not in memory on a cluster: "
                "call `df = df.chash.persist()` with a distributed client first"
            )
        return live_frame

    def _held(self) -> tuple[Layout, list[tuple[Any, int]]]:
        frame, client = self._must_be_live()
        layout = self.layout
        with client.as_current():
            wait([*frame.operand("layer").values()])
        held = live.holders(client, frame.frame_name, layout.npartitions)
        lost = [p for p, (workers, _) in enumerate(held) if not workers]
        if lost:
            for future in frame.operand("layer").values():
                if future.status == "error":
                    raise RuntimeError(
                        f"{len(lost)} of {layout.npartitions} partitions are not in memory: computing "
                        f"partition {future.key[1]} failed; mend what it says above, then persist it anew"
                    ) from future.exception()
            raise RuntimeError(
                f"{len(lost)} of {layout.npartitions} partitions are not in memory (the first is {lost[0]}): "
                "their worker died and they are being computed again; "
                "wait for `distributed.wait(df)` and try again, or persist the frame anew"
            )
        return layout, held

    def plan(self, nodes: Iterable[str] | Mapping[str, Any] | None = None, **options: Any) -> RebalancePlan:
        """The fewest moves that balance the partitions over `nodes`.

        Parameters
        ----------
        nodes : iterable of names, or mapping of name to weight, optional
            Default: the workers that the cluster has now, with the weights that the layout has
            for them; new ones weigh 1.
        **options
            Passed on to `plan_rebalance`. Bytes count instead of partitions with
            ``sizes=df.chash.sizes(), tolerance=0.05``.

        Returns
        -------
        RebalancePlan
            For a persisted frame it starts from the placement, with bytes from `sizes`.
        """
        live_frame = self._live()
        client = live_frame[1] if live_frame is not None else live.active_client()
        if nodes is None:
            if client is None:
                raise ValueError("there is no cluster to take the nodes from: pass nodes=")
            nodes = sorted(live.worker_addresses(client))
        layout = self.layout
        if live_frame is None:
            return plan_rebalance(layout, nodes, **options)
        plan = plan_rebalance(layout.with_assignment(self.placement().tolist()), nodes, **options)
        return plan.with_sizes(self.sizes())

    def rebalance(self, plan: RebalancePlan | None = None, progress: bool = True) -> RebalancePlan:
        """Move the partitions of a plan between the workers of the live cluster.

        All frames that share the layout move together. Each partition is copied to its new
        owner and then dropped from the old one, while other work goes on; the call returns when
        the scheduler reports every partition where it should be.

        Parameters
        ----------
        plan : RebalancePlan, optional
            From ``df.chash.plan(...)``. Default: a plan for the workers that are here now.
        progress : bool
            Show a progress bar, and at the end what moved and how long it took.

        Returns
        -------
        RebalancePlan
            The plan as carried out.

        Raises
        ------
        ValueError
            If the plan is for another layout or an older version of it, or for workers that are
            not here. Nothing was moved then.

        Warns
        -----
        RuntimeWarning
            If some partitions could not be moved, with the reason for each.
        """
        _, client = self._must_be_live()
        if plan is None:
            plan = self.plan()
        if not isinstance(plan, RebalancePlan):
            raise TypeError(
                f"plan must be a RebalancePlan, from `df.chash.plan()`, not {type(plan).__name__}"
            )
        layout = self.layout
        if plan.before.id != layout.id:
            raise ValueError(
                f"this plan is for layout {plan.before.id} (on={list(plan.before.on)}), the frame has layout "
                f"{layout.id} (on={list(layout.on)}): make one with `df.chash.plan()`"
            )
        if plan.before.version != layout.version:
            raise ValueError(
                f"this plan starts from version {plan.before.version} of the layout, which is at version "
                f"{layout.version} now: make a new one with `df.chash.plan()`"
            )
        return live.carry_out(client, plan, progress)

    def retire(self, names: str | int | Iterable[str | int], progress: bool = True) -> RebalancePlan:
        """Move all partitions off some workers, to their new owners, then retire those workers.

        While `autobalance` is on, the scheduler moves them as they retire, which comes to the same.

        On a `LocalCluster` or another that starts workers itself, follow with
        ``cluster.sync(cluster.scale_down, names)``, so that it does not count on them any more.

        Parameters
        ----------
        names : str, int, or iterable of them
            Names of the workers to retire.
        progress : bool
            As for `rebalance`.

        Returns
        -------
        RebalancePlan
            The plan as carried out.

        Raises
        ------
        ValueError
            If a name is not a worker, or none would be left. Nothing was moved then.
        RuntimeError
            If a partition could not be moved off a worker. No worker was retired then.
        """
        leaving = {str(n) for n in ([names] if isinstance(names, (str, int)) else names)}
        _, client = self._must_be_live()
        addresses = live.worker_addresses(client)
        if unknown := sorted(leaving - addresses.keys()):
            raise ValueError(
                f"no worker is named {', '.join(unknown)} (workers: {', '.join(sorted(addresses))})"
            )
        if not leaving:
            raise ValueError(f"name at least one worker to retire (workers: {', '.join(sorted(addresses))})")
        staying = sorted(addresses.keys() - leaving)
        if not staying:
            raise ValueError("retiring all workers would lose the frame: leave at least one")
        before = self.layout
        follows = live.autobalance_status(client, before.id)
        done = self.plan(staying)
        gone = [addresses[name] for name in sorted(leaving)]
        if follows is not None and follows["state"] != "paused":
            retired = live.retire(client, before.id, gone, progress)
            after = self.layout
            done = RebalancePlan(before, after, moves_between(before, after), done.lower_bound)
        else:
            done = self.rebalance(done, progress)
            if left := sorted(leaving & _owners(done.after)):
                raise RuntimeError(
                    f"workers {', '.join(left)} still hold partitions that could not be moved (see the "
                    "warning): no worker was retired; call retire again"
                )
            retired = set(client.retire_workers(workers=gone))
        if kept := sorted(name for name in leaving if addresses[name] not in retired):
            raise RuntimeError(
                f"workers {', '.join(kept)} were not retired: no other worker could take what they hold; "
                "call retire again when one can"
            )
        return done

    def autobalance(
        self, weights: str | Mapping[Any, Any] | None = None, replicas: int = 1
    ) -> AutobalanceHandle:
        """Let the partitions follow the workers of the cluster, from now on.

        Whenever workers join, leave or die, the scheduler waits until they have stayed the same for
        ``chash-partition.autobalance.settle`` (Dask config), plans for those that are there, and moves
        the fewest partitions, of all frames that share the layout together. Workers that are retired,
        by ``client.retire_workers`` or by adaptive scaling, hand their partitions to the new owners at
        once. Nothing is lost whichever worker dies, and when: at every instant each partition is in memory
        somewhere, or is being computed again because its last holder died.

        It goes on until it is stopped, or no frame of the layout is left. A layout has one of it: called
        again, it goes on with the new arguments.

        Parameters
        ----------
        weights : "memory", "threads", or mapping of name to weight, optional
            By memory, a worker of 4 GiB weighs 1. Default: the weights that the layout has; of new
            workers, and of those not in the mapping, 1.
        replicas : int
            2 keeps a second copy of each partition, on the next worker of the ring, at twice the memory:
            then one crash recomputes nothing.

        Returns
        -------
        AutobalanceHandle
            With ``status()``, ``pause()``, ``resume()`` and ``stop()``; a context manager that stops at its
            end.

        Raises
        ------
        ValueError
            If the frame is not in memory on a cluster, or for weights that workers do not have.

        Warns
        -----
        UserWarning
            If workers were started without a name, since after a restart they are other nodes.

        Examples
        --------
        >>> with df.chash.autobalance() as follows:    # doctest: +SKIP
        ...     cluster.adapt(minimum=2, maximum=8)
        ...     ...
        """
        if replicas not in (1, 2):
            raise ValueError(f"replicas must be 1 or 2, got {replicas!r}")
        if isinstance(weights, Mapping):
            weights = {name: str(weight) for name, weight in node_weights(weights).items()}
        elif weights not in (None, "memory", "threads"):
            raise ValueError(
                f'weights must be "memory", "threads" or a mapping of name to weight: {weights!r}'
            )
        _, client = self._must_be_live()
        layout = self.layout
        unnamed = live.autobalance(client, layout, weights, replicas)
        if unnamed:
            warnings.warn(
                f"workers {', '.join(unnamed)} were started without a name: after a restart each is another "
                "node, and gets other partitions. Start them with `dask worker --name ...`",
                UserWarning,
                stacklevel=2,
            )
        return AutobalanceHandle(client, layout.id)

    def merge(
        self,
        right: dd.DataFrame | pd.DataFrame,
        how: str = "inner",
        on: Hashable | list[Hashable] | None = None,
        left_on: Hashable | list[Hashable] | None = None,
        right_on: Hashable | list[Hashable] | None = None,
        suffixes: tuple[str, str] = ("_x", "_y"),
        indicator: bool = False,
    ) -> dd.DataFrame:
        """Merge with `right`, shuffling `right` into this frame's layout if it is not placed there.

        Parameters
        ----------
        right : dask.dataframe.DataFrame or pandas.DataFrame
        how, on, left_on, right_on, suffixes, indicator
            As for ``df.merge``. The merge keys must include this frame's key columns. `on`
            defaults to the key columns.

        Returns
        -------
        dask.dataframe.DataFrame
            P partitions; partition i is joined from partition i of both.

        Raises
        ------
        ValueError
            If the merge keys do not include the key columns, or are not columns of `right`, or if the
            key is a level of the index.
        """
        facts = self._known
        layout = self.layout
        if levels := [name for name in facts.on if name not in self._df.columns]:
            raise ValueError(
                f"the key {levels[0]!r} of this frame is a level of its index, by which Dask would shuffle "
                "both frames: df.reset_index() makes it a column, and keeps the frame placed"
            )
        if isinstance(right, pd.DataFrame):
            right = dd.from_pandas(right, npartitions=1)
        if on is None and left_on is None and right_on is None:
            on = list(facts.on)
        lefts, rights = (labels(on),) * 2 if on is not None else (labels(left_on), labels(right_on))
        if len(lefts) != len(rights):
            raise ValueError(f"left_on={lefts} and right_on={rights} name different numbers of columns")
        if missing := [column for column in facts.on if column not in lefts]:
            raise ValueError(
                f"the merge keys {lefts} do not include the key column {missing[0]!r} of this frame, so "
                "equal keys need not meet: merge with df.merge(...), which shuffles both sides"
            )
        mates = tuple(rights[lefts.index(column)] for column in facts.on)
        if levels := [
            name for name in mates if name not in right.columns and name in right._meta.index.names
        ]:
            raise ValueError(
                f"the merge key {levels[0]!r} is a level of the index of `right`, by which Dask would "
                "shuffle both frames: right.reset_index() makes it a column, and keeps a placed frame placed"
            )
        there = by_columns(right.expr)
        if there is None or there.on != mates or not there.layout.same_partitions(layout):
            key_columns(right, list(mates))
            hash_keys(keys_of(right._meta, mates))
            client = live.active_client()
            addresses = live.known_addresses(client)
            way = way_of("auto", client is not None)
            right = place(right, mates, layout.rename(mates), way, addresses)
        return self._df.merge(
            right, how=how, left_on=lefts, right_on=rights, suffixes=suffixes, indicator=indicator
        )

    def explain(self) -> None:
        """Print which shuffles the plan of this frame has, and why.

        Examples
        --------
        >>> import pandas as pd, dask.dataframe as dd
        >>> from chash_partition import chash_repartition
        >>> df = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "x": [1, 2, 3]}), npartitions=1)
        >>> placed = df.pipe(chash_repartition, on="k", npartitions=4)
        >>> placed.merge(placed.rename(columns={"x": "y"}), on="k").chash.explain()
        shuffle: 1 blocks into 4 partitions by k, as chash_repartition was asked to
        no shuffle: merge on k
        1 shuffle in all
        """
        print(explain(self._df))

    def map_partitions(
        self, function: Callable[..., pd.DataFrame], *args: Any, keeps_key: bool = False, **kwargs: Any
    ) -> dd.DataFrame:
        """``df.map_partitions``, of a function that leaves each row in its partition.

        Parameters
        ----------
        function : callable
            Takes a partition as a pandas DataFrame, and `args` and `kwargs`; returns a DataFrame.
        keeps_key : bool
            Say True if each row that `function` returns has a key of the partition that it was
            given, in the key columns: then the result is a placed frame. That is checked, at the
            cost of a key hash of each row.
        **kwargs
            Also ``meta=`` and what else ``df.map_partitions`` takes.

        Returns
        -------
        dask.dataframe.DataFrame

        Raises
        ------
        ValueError
            If the function returns no key column. When computed, if rows have come into a partition
            that is not theirs, or into one without rows.

        Examples
        --------
        >>> import pandas as pd, dask.dataframe as dd
        >>> from chash_partition import chash_repartition
        >>> df = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "x": [1, 2, 3]}), npartitions=1)
        >>> placed = df.pipe(chash_repartition, on="k", npartitions=4)
        >>> largest = placed.chash.map_partitions(
        ...     lambda rows: rows.sort_values("x").drop_duplicates("k", keep="last"), keeps_key=True
        ... )
        >>> largest.chash.layout
        Layout(on=k, 4 partitions on 1 node: 4 each, version 0)
        """
        facts = self._known
        plain = self._df.map_partitions(function, *args, **kwargs)
        if not keeps_key:
            return plain
        there = [*getattr(plain, "columns", []), *plain._meta.index.names]
        if missing := [name for name in facts.on if name not in there]:
            raise ValueError(
                f"the function returns rows without the key column {missing[0]!r} (columns: "
                f"{list(getattr(plain, 'columns', []))}): return it too, or leave out keeps_key=True"
            )
        # The meta comes from the function itself: the rows that Dask makes up for it are of no partition.
        kwargs["meta"] = plain._meta
        return self._df.map_partitions(KeepsKey(function, facts.on, facts.layout), *args, **kwargs)

    def lookup(self, key: Any) -> pd.DataFrame:
        """The rows of one key, computing one partition.

        Parameters
        ----------
        key : scalar, or tuple in the order of the key columns
            A null key gives the rows with null keys.

        Returns
        -------
        pandas.DataFrame
            No rows if the key is nowhere.

        Raises
        ------
        TypeError
            If the key is of another kind than its column, e.g. a str for a column of numbers.
        ValueError
            If a tuple has another length than there are key columns.

        Examples
        --------
        >>> import pandas as pd, dask.dataframe as dd
        >>> from chash_partition import chash_repartition
        >>> df = dd.from_pandas(pd.DataFrame({"k": ["a", "b", "a"], "x": [1, 2, 3]}), npartitions=1)
        >>> df.pipe(chash_repartition, on="k", npartitions=4).chash.lookup("a")["x"].tolist()
        [1, 3]
        """
        facts = self._known
        partition = facts.layout.partition_of_key(key)
        columns = keys_of(self._df._meta, facts.on)
        for column, value in zip(facts.on, key if isinstance(key, tuple) else (key,), strict=True):
            _check_kind(column, columns[column].dtype, value)
        one = new_collection(Partitions(self._df.expr, [partition]))
        return one.map_partitions(
            _rows_of, list(facts.on), key, facts.layout.seed, meta=self._df._meta
        ).compute()

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        mode: Literal["error", "append", "overwrite"] = "error",
        compression: str | None = "snappy",
        row_group_size: int | None = None,
        sort_within: str | list[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        roots: Mapping[Any, str] | None = None,
    ) -> None:
        """Write the frame as a dataset of Parquet shards: partition i becomes shard i.

        Each partition is written by a task of its own; then this process commits all of them at once.
        Straight after `chash_repartition` rows are repartitioned and written in one pass. If it fails or is
        killed, the dataset is as it was before.

        Parameters
        ----------
        path : str or path
            A local folder, or a URL of ``file://``, ``memory://`` or ``s3://``.
        mode : {"error", "append", "overwrite"}
            If there is a dataset already. Appended rows go into its shards (the frame is shuffled if its own
            partitions are others); new columns are added, and are null in older rows.
        compression : str or None
            "snappy", "zstd", "gzip", "brotli", "lz4" or None.
        row_group_size : int, optional
            Rows of a row group, at most. With `sort_within`, a small one (say 10,000) makes lookups fast.
        sort_within : str or list of str, optional
            Columns by which the rows of each file are sorted.
        storage_options : mapping, optional
            For fsspec.
        roots : mapping of node to str, optional
            For node-local storage, as for `ShardedDataset`.

        Raises
        ------
        ValueError
            Before anything is written: if there is a dataset and `mode` is "error"; if a column cannot be in
            a Parquet file, is called ``chash_shard``, or does not fit the dataset it is appended to; if an
            argument is out of range. Afterwards, with nothing committed: if another writer was first, or
            objects of a column turn out to be of several kinds.

        Notes
        -----
        A named index, or level of it, is stored as a column, and comes back as one. An index without a name
        is not stored.

        Examples
        --------
        >>> import pandas as pd, dask.dataframe as dd
        >>> from chash_partition import chash_repartition, read_parquet
        >>> df = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "x": [1, 2, 3]}), npartitions=1)
        >>> df = df.pipe(chash_repartition, on="k", npartitions=4)
        >>> df.chash.to_parquet("memory://write-example", sort_within="x")
        >>> df.chash.to_parquet("memory://write-example", mode="append")
        >>> len(read_parquet("memory://write-example"))
        6
        """
        from chash_partition.parquet.collection import (  # which needs this module's others
            how_asked,
            to_parquet,
        )

        how = how_asked(compression, row_group_size, sort_within)
        to_parquet(self._df, self.layout, path, mode, how, storage_options, roots)


def _rows_of(block: pd.DataFrame, on: list[Hashable], key: Any, seed: int) -> pd.DataFrame:
    rows = hash_keys(keys_of(block, on), seed=seed) == np.uint64(hash_key(key, seed))
    for name, value in zip(on, key if isinstance(key, tuple) else (key,), strict=True):
        column = keys_of(block, (name,))[name]
        if pd.api.types.is_integer_dtype(column.dtype) and isinstance(value, (int, np.integer)):
            # One hash stands for -1 and for 2**64 - 1, of which an int64 and an uint64 hold one each.
            rows = rows & (column == int(value)).to_numpy(bool, na_value=False)
        if column.dtype == object and not pd.isna(value):  # may hold values of several kinds
            kind = _kind(value)
            rows &= np.array(
                [here and _kind(v) == kind for here, v in zip(rows, column, strict=True)], dtype=bool
            )
    return block[rows]


# Equal key hashes mean equal keys within one of these.
KINDS: list[tuple[type, ...]] = [
    (bool, int, float, Decimal, np.number, np.bool_),
    (str,),
    (bytes,),
    (date, np.datetime64),
    (timedelta, np.timedelta64),
    (time,),
    (UUID,),
]


def _kind(value: Any) -> int:
    return next((i for i, types in enumerate(KINDS) if isinstance(value, types)), -1)


def _check_kind(column: Hashable, dtype: Any, value: Any) -> None:
    """Refuse a key of another kind than the column: 0 and the epoch hash alike."""
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = getattr(dtype.categories, "dtype", dtype)
    numbers, texts, _, times, spans, *_ = KINDS
    kinds: list[tuple[bool, tuple[type, ...]]] = [
        (pd.api.types.is_numeric_dtype(dtype), numbers),
        (isinstance(dtype, pd.StringDtype), texts),
        (pd.api.types.is_datetime64_any_dtype(dtype), times),
        (pd.api.types.is_timedelta64_dtype(dtype), spans),
    ]
    zones = [getattr(dtype, "tz", None) is not None, getattr(value, "tzinfo", None) is not None]
    for holds, types in kinds:
        wrong = not isinstance(value, types) or (types is numbers and isinstance(value, np.timedelta64))
        if holds and not pd.isna(value) and (wrong or (types is times and zones[0] != zones[1])):
            raise TypeError(
                f"key {value!r} is a {type(value).__name__}, but column {column!r} has dtype {dtype}: "
                "look up a value as the column holds them"
            )


def _owners(layout: Layout) -> set[str]:
    return {layout.nodes[i] for i in set(layout.assignment.tolist())}


def _partitions(layout: Layout) -> pd.RangeIndex:
    return pd.RangeIndex(layout.npartitions, name="partition")


def _client_of(frame: PersistedFrame) -> Client | None:
    """The client that keeps a persisted frame; None if it was computed without a cluster."""
    for value in frame.operand("layer").values():
        client = getattr(value, "client", None)
        return client if isinstance(client, Client) else None
    return None
