"""`ShardedDataset`: a dataset on disk, without Dask.

Every operation that changes a dataset is the same three steps, and that is all there is of states on disk:

1. read the latest version;
2. write files that no version names. A crash leaves orphans, which `vacuum` removes by age;
3. create the next version, which names them. A crash leaves the version before, or the new one.

No file changes, and none is deleted but by `vacuum`; whoever reads a version finds its files until then.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import reduce
from operator import and_
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh64_hexdigest

from chash_partition.hashing import hash_key, hash_keys
from chash_partition.layout import MAX_PARTITIONS, Layout, count
from chash_partition.parquet.filters import as_in, equals
from chash_partition.parquet.home import COPIES, Home, replaced
from chash_partition.parquet.log import FOLDER, Change, name_of
from chash_partition.parquet.store import TEMPORARY, DatasetError, Store
from chash_partition.parquet.tables import (
    conform,
    how_written,
    in_shard,
    read_file,
    read_files,
    write_file,
)
from chash_partition.parquet.version import DATA, PATH, ConflictError, File, Version
from chash_partition.planner import RebalancePlan, plan_rebalance
from chash_partition.ring import integer

__all__ = ["Problem", "ShardedDataset"]

KEPT_VERSIONS = 10  # vacuum leaves as many, so that a writer never finds its next number free again
NONE: tuple[File, ...] = ()


class Problem(NamedTuple):
    """What `verify` found.

    Attributes
    ----------
    file : str
    what : str
    """

    file: str
    what: str


class ShardedDataset:
    """A dataset whose files are the shards of a layout, as it was at one version.

    What it says is of the version that was the latest when it was opened. An operation that changes the
    dataset starts from the latest one, and the object is at the version that it made then; `refresh` brings
    in what others have committed.

    Parameters
    ----------
    path : str or path
        A local folder, or a URL of ``file://``, ``memory://`` or ``s3://``.
    storage_options : mapping, optional
        For fsspec.
    roots : mapping of node to str, optional
        For node-local storage: the folder of each node that owns shards. Each file is then in that of its
        shard's owner, and only the versions are in `path`.

    Raises
    ------
    DatasetError
        A ValueError: if there is no dataset, its latest version is damaged, or the root of a node is missing.

    Examples
    --------
    >>> import pandas as pd, dask.dataframe as dd
    >>> from chash_partition import ShardedDataset, chash_repartition
    >>> df = dd.from_pandas(pd.DataFrame({"k": ["a", "b", "a"], "x": [1, 2, 3]}), npartitions=1)
    >>> df.pipe(chash_repartition, on="k", npartitions=4).chash.to_parquet("memory://sharded-example")
    >>> dataset = ShardedDataset("memory://sharded-example")
    >>> dataset
    ShardedDataset('memory://sharded-example', version 0: 3 rows in 2 files, Layout(on=k, 4 partitions on 1
    node: ...))
    >>> dataset.lookup("a").to_pylist()
    [{'k': 'a', 'x': 1}, {'k': 'a', 'x': 3}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        roots: Mapping[Any, str] | None = None,
    ):
        self._home = Home.of(path, storage_options, roots)
        self.refresh()

    def refresh(self) -> ShardedDataset:
        """Go on to the latest version.

        Returns
        -------
        ShardedDataset
            This one.

        Raises
        ------
        DatasetError
            As the constructor.
        """
        latest = self._home.log.latest()
        if latest is None:
            raise DatasetError(
                f"there is no dataset at {self._home.store.url!r} (no {FOLDER}/ with a version): write one "
                f"with df.chash.to_parquet(path)"
            )
        if latest.node_local:
            for shard in latest.by_shard:
                self._home.store_of(latest, shard)
        self._now = latest
        return self

    def __repr__(self) -> str:
        now = self._now
        rows = sum(file.rows for file in now.files)
        return (
            f"ShardedDataset({self._home.store.url!r}, version {now.number}: {count(rows, 'row')} in "
            f"{count(len(now.files), 'file')}, {now.layout!r})"
        )

    # What there is

    @property
    def version(self) -> int:
        """Number of the version, from 0."""
        return self._now.number

    @property
    def layout(self) -> Layout:
        """The layout: partition i is shard i."""
        return self._now.layout

    @property
    def schema(self) -> pa.Schema:
        """The columns of all rows; a file may lack those that came after it."""
        return self._now.schema

    def files(self, shard: int | None = None) -> list[str]:
        """Paths (of local files) or URLs of all live files, or of those of one shard.

        What other engines are to read, in the order of the shards.

        Raises
        ------
        ValueError
            If there is no such shard.
        """
        if shard is not None:
            self.layout.owner_of(shard)
        return [
            self._home.at(self._now.place_of(file)).full(file.path)
            for file in (self._now.files if shard is None else self._now.by_shard.get(shard, NONE))
        ]

    def shards_of(self, node: str | int) -> list[int]:
        """The shards that a node owns, ascending.

        Raises
        ------
        ValueError
            If the layout has no such node.
        """
        return [int(shard) for shard in self.layout.partitions_of(node)]

    def watch(self, interval: float = 1.0) -> Iterator[ShardedDataset]:
        """Follow the dataset: yields it at this version, then at each later one that it finds.

        Of versions that come faster than it looks, only the last is yielded.

        Parameters
        ----------
        interval : float
            Seconds between two looks.

        Yields
        ------
        ShardedDataset
            This one, refreshed.
        """
        yield self
        while True:
            before = self.version
            if self.refresh().version > before:
                yield self
            else:
                time.sleep(interval)

    def lookup(self, key: Any) -> pa.Table:
        """The rows of one key, from one shard.

        Of each file of the shard, only row groups whose statistics allow the key are read: for a table that
        was written with ``sort_within=`` the key, a few. Columns other than the key are read only if it is
        there.

        Parameters
        ----------
        key : scalar, or tuple in the order of the key columns
            A null finds the rows with null keys.

        Returns
        -------
        pyarrow.Table
            No rows if the key is nowhere.

        Raises
        ------
        TypeError
            If the key is of another kind than its column, e.g. a str for a column of numbers.
        DatasetError
            If a file is gone or damaged.
        ValueError
            If a tuple has another length than there are key columns.
        """
        now, on = self._now, [str(name) for name in self.layout.on]
        self.layout.partition_of_key(key)  # as many values as there are key columns
        fields = [now.schema.field(name) for name in on]
        values = key if isinstance(key, tuple) else (key,)
        equal = [equals(field, value) for field, value in zip(fields, values, strict=True)]
        # A date is hashed as such, and the midnight that it is in a column of timestamps as a timestamp.
        exact = [as_in(field, value) for field, value in zip(fields, values, strict=True)]
        key = tuple(exact) if len(exact) > 1 else exact[0]
        shard, hashed = self.layout.partition_of_key(key), np.uint64(hash_key(key, self.layout.seed))
        expression = reduce(and_, [part for part in equal if part is not None] or [None])
        tables = [
            read_file(
                self._home.store_of(now, shard), file, now.schema, now.schema.names, expression,
                lambda keys: hash_keys(keys.select(on), seed=self.layout.seed) == hashed, on,
            )
            for file in now.by_shard.get(shard, NONE)
        ]  # fmt: skip
        return pa.concat_tables([now.schema.empty_table(), *tables])

    def read_shard(self, shard: int) -> pa.Table:
        """All rows of a shard.

        Raises
        ------
        ValueError
            If there is no such shard, or a file is gone or damaged.
        """
        self.layout.owner_of(shard)
        now = self._now
        return read_files(
            self._home.store_of(now, shard), now.by_shard.get(shard, NONE), now.schema, now.schema.names
        )

    # Owners

    def assign(self, nodes: Iterable[str | int] | Mapping[Any, Any]) -> RebalancePlan:
        """Give the shards to these nodes, with the fewest changes of owner; no byte of data moves.

        Parameters
        ----------
        nodes : iterable of names, or mapping {name: weight}
            All nodes there will be. As `plan_rebalance` takes them.

        Returns
        -------
        RebalancePlan
            As committed. If nothing changes, nothing is committed.

        Raises
        ------
        DatasetError
            If the shards are in the nodes' own storage: there it takes `rebalance`.
        ValueError
            As `plan_rebalance`.
        """
        nodes = dict(nodes) if isinstance(nodes, Mapping) else list(nodes)

        def change(latest: Version | None) -> Version:
            latest = _there(latest)
            if latest.node_local:
                raise DatasetError(
                    "the shards are in the nodes' own storage and must be copied: use rebalance(nodes)"
                )
            plans[:] = [plan_rebalance(latest.layout, nodes).with_sizes(_sizes(latest))]
            return replace(latest, layout=plans[0].after)

        plans: list[RebalancePlan] = []
        change(self.refresh()._now)
        if not _same_owners(plans[0]):
            self._now = self._home.commit("assign", change, self._now)
        return plans[0]

    def rebalance(self, nodes: Iterable[str | int] | Mapping[Any, Any]) -> RebalancePlan:
        """Give the shards to these nodes and copy what changes owner to its new one's storage.

        For a dataset in one shared place, that makes it node-local: each shard is copied to its owner. Copies
        are made some at a time, and verified by checksum. What is replaced stays where it is until `vacuum`.
        After a crash, run it again: whole copies are not made twice.

        Parameters
        ----------
        nodes : iterable of names, or mapping {name: weight}
            As for `assign`. Each must be in `roots`, and so must the present owners.

        Returns
        -------
        RebalancePlan
            As committed, with the bytes of each move. (From a shared place, all shards are copied, also those
            whose owner stays.)

        Raises
        ------
        DatasetError
            If a root is missing (nothing was copied then), or a file is damaged.
        """
        nodes = dict(nodes) if isinstance(nodes, Mapping) else list(nodes)
        while True:
            now = self.refresh()._now
            plan = plan_rebalance(now.layout, nodes).with_sizes(_sizes(now))
            for node in plan.after.nodes:
                self._home.at(node)
            if now.node_local and _same_owners(plan):
                return plan
            new = replace(now, layout=plan.after, node_local=True)
            copies = [
                (file, self._home.at(now.place_of(file)), self._home.at(new.place_of(file)))
                for file in now.files
                if now.place_of(file) != new.place_of(file)
            ]
            with ThreadPoolExecutor(COPIES) as pool:
                list(pool.map(lambda copy: _copy(*copy), copies))
            try:
                self._now = self._home.commit("rebalance", replaced(new, now), now)
            except ConflictError:  # copy what has come meanwhile too
                continue
            return plan

    # Growing

    def compact(self) -> int:
        """Make one file of the files of each shard, in the present schema.

        One shard at a time is in memory. Rows are sorted as they were, if all files of a shard were written
        with the same ``sort_within``. Readers of older versions go on until `vacuum`.

        Returns
        -------
        int
            How many shards were compacted. If none has to be, nothing is committed.

        Raises
        ------
        ConflictError
            A ValueError: if another writer has replaced files that were compacted. Nothing is committed then.
        """
        now = self.refresh()._now
        new: dict[int, File] = {}
        for shard, files in now.by_shard.items():
            store = self._home.store_of(now, shard)
            how = [how_written(store, file) for file in files]
            if len(files) == 1 and set(now.schema.names) <= how[0].columns:
                continue
            alike = how[0] if len({h.sorting for h in how}) == 1 else how[0]._replace(sorting=())
            table = read_files(store, files, now.schema, now.schema.names)
            new[shard] = write_file(store, now.folder, shard, table, alike)
        if not new:
            return 0
        old = {file for shard in new for file in now.by_shard[shard]}

        def change(latest: Version | None) -> Version:
            latest = _there(latest)
            if not (old <= set(latest.files) and latest.takes(new.values(), now)):
                raise ConflictError(
                    f"version {latest.number} ({latest.operation}) has replaced files that were being "
                    f"compacted: nothing was committed; compact again"
                )
            return latest.with_files([*new.values(), *(file for file in latest.files if file not in old)])

        self._now = self._home.commit("compact", change, now)
        return len(new)

    def split(self, k: int) -> Layout:
        """Make k shards of each, all still its owner's; each is read and written on its own.

        The new files are in a new folder below ``data``, as shard numbers mean something else from here on.

        Parameters
        ----------
        k : int
            At least 2.

        Returns
        -------
        Layout
            The new one.

        Raises
        ------
        ConflictError
            If the dataset has changed meanwhile. Nothing is committed then.
        ValueError
            If k is less than 2, or there would be more than 2^31 - 1 shards.
        """
        now = self.refresh()._now
        integer("k", k, 2, MAX_PARTITIONS // self.layout.npartitions)
        layout = now.layout.split(k)
        folder = f"{DATA}/p{layout.npartitions}-{uuid4().hex[:12]}"
        new = []
        for shard, files in now.by_shard.items():
            store = self._home.store_of(now, shard)
            for file in files:
                how = how_written(store, file)
                table = read_file(store, file, now.schema, now.schema.names)
                pieces = layout.partition_of(table)
                wanted = np.unique(pieces).tolist() or [k * shard]
                for piece in wanted:
                    rows = table.filter(pa.array(pieces == piece))
                    if rows.num_rows or not sum(f.rows for f in now.files):
                        new.append(write_file(store, folder, piece, rows, how))
        version = replace(now, layout=layout, folder=folder).with_files(new)
        self._now = self._home.commit("split", replaced(version, now), now)
        return layout

    # Care

    def verify(self) -> list[Problem]:
        """Read everything of this version and say what is wrong with it.

        Every file is there, with the bytes, the checksum, the rows and the columns that the version says;
        every row's key is of its shard; the versions have no gap and can all be read.

        Returns
        -------
        list of Problem
            Empty if all is well.
        """
        problems = []
        log, numbers = self._home.log, self._home.log.numbers()
        for number in range(numbers[0], numbers[-1] + 1) if numbers else []:
            try:
                log.read(number)
            except FileNotFoundError:
                problems.append(Problem(name_of(number), f"version {number} is missing in the log"))
            except DatasetError as error:
                problems.append(Problem(name_of(number), str(error)))
        for file in self._now.files:
            store = self._home.store_of(self._now, file.shard)
            problems.extend(Problem(store.full(file.path), what) for what in self._wrong(store, file))
        return problems

    def _wrong(self, store: Store, file: File) -> Iterator[str]:
        try:
            content = store.read(file.path)
        except FileNotFoundError:
            yield "it is gone"
            return
        if len(content) != file.nbytes:
            yield f"it has {len(content):,} bytes, and the version says {file.nbytes:,}"
        elif (checksum := xxh64_hexdigest(content)) != file.checksum:
            yield f"its checksum is {checksum}, and the version says {file.checksum}: its bytes have changed"
        else:
            try:
                table = conform(pq.read_table(pa.BufferReader(content), partitioning=None), self.schema)
                if table.num_rows != file.rows:
                    yield f"it has {table.num_rows:,} rows, and the version says {file.rows:,}"
                in_shard(table, self.layout.on, self.layout.npartitions, self.layout.seed, file.shard)
            except (pa.ArrowException, OSError, ValueError) as error:
                yield str(error)

    def repair(self) -> list[Problem]:
        """Put back damaged or missing files of which a whole copy is left in another node's storage.

        `rebalance` leaves such copies until `vacuum`.

        Returns
        -------
        list of Problem
            What `verify` finds afterwards.
        """
        for file in self._now.files:
            store = self._home.store_of(self._now, file.shard)
            if not any(True for _ in self._wrong(store, file)):
                continue
            for other in (self._home.store, *self._home.roots.values()):
                if other != store and _is_whole(other, file):
                    _copy(file, other, store)
                    break
        return self.verify()

    def vacuum(self, retain: timedelta = timedelta(days=7)) -> list[str]:
        """Delete files that no version of the last while names, and old versions.

        A file goes if it is older than `retain` and no version that was the latest at some time since then
        has it: what was replaced, and what crashed writers have left. The ten newest versions stay.

        Parameters
        ----------
        retain : timedelta
            Longer than any reader stays with one version, and than any write takes. A writer whose files are
            removed fails when it commits.

        Returns
        -------
        list of str
            Paths or URLs of the data files deleted.

        Raises
        ------
        ValueError
            If `retain` is negative.

        Notes
        -----
        First a version says what will be removed, then it is deleted. A writer commits after that version,
        and sees that its files were given up, or before it, and then they are not.
        """
        if retain < timedelta(0):
            raise ValueError(f"retain must not be negative, got {retain}")
        places = {"": self._home.store, **self._home.roots}
        cutoff = datetime.now(timezone.utc) - retain

        def old(when: datetime) -> bool:
            return not retain or when <= cutoff

        while True:
            now = self.refresh()._now
            log = self._home.log.times()
            superseded = {
                number for (number, _), (_, when) in itertools.pairwise(sorted(log.items())) if old(when)
            }
            try:
                live = {file for n in log.keys() - superseded for file in self._home.log.read(n).located}
            except FileNotFoundError:  # another vacuum is at work
                continue
            found = tuple(
                (place, path)
                for place, store in places.items()
                for path, _, when in store.list(DATA)
                if PATH.fullmatch(path) and old(when) and (place, path) not in live
            )
            try:
                if found:
                    self._now = self._home.commit("vacuum", _given_up(now, found), now)
                break
            except ConflictError:
                continue
        for place, path in found:
            places[place].delete(path)
        for name, _, when in self._home.store.list(FOLDER):
            if TEMPORARY in name and old(when):
                self._home.store.delete(name)
        for number in log:  # the oldest first, and no gap
            if number not in superseded or number > now.number - KEPT_VERSIONS:
                break
            self._home.store.delete(name_of(number))
        return [places[place].full(path) for place, path in found]


def _given_up(now: Version, removed: tuple[tuple[str, str], ...]) -> Change:
    def change(latest: Version | None) -> Version:
        if _there(latest).number != now.number:
            raise ConflictError("a version has come meanwhile")
        return replace(now, removed=removed)

    return change


def _there(version: Version | None) -> Version:
    if version is None:
        raise DatasetError("there is no dataset any more: its versions were deleted")
    return version


def _sizes(version: Version) -> list[int]:
    """Bytes of each shard."""
    sizes = [0] * version.layout.npartitions
    for file in version.files:
        sizes[file.shard] += file.nbytes
    return sizes


def _same_owners(plan: RebalancePlan) -> bool:
    return not plan.moves and dict(plan.before.weights) == dict(plan.after.weights)


def _is_whole(store: Store, file: File) -> bool:
    if store.size(file.path) != file.nbytes:
        return False
    return xxh64_hexdigest(store.read(file.path)) == file.checksum


def _copy(file: File, source: Store, target: Store) -> None:
    """Copy a file whole; what a crash has left of an earlier try is replaced."""
    if _is_whole(target, file):
        return
    content = source.read(file.path)
    if len(content) != file.nbytes or xxh64_hexdigest(content) != file.checksum:
        raise DatasetError(
            f"{source.full(file.path)} is damaged: its checksum differs; see verify() and repair()"
        )
    target.delete(file.path)
    target.put(file.path, content)
    if not _is_whole(target, file):
        raise DatasetError(f"{target.full(file.path)} is not what was copied there: its checksum differs")
