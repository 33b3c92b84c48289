"""Where a dataset is, and the changes that writers make to it: pure functions from version to version."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from chash_partition.parquet.log import Change, Log
from chash_partition.parquet.store import DatasetError, Store
from chash_partition.parquet.tables import evolved
from chash_partition.parquet.version import ConflictError, File, Version

__all__ = ["Home", "appended", "replaced"]

COPIES = 8  # at a time


@dataclass(frozen=True)
class Home:
    """Where a dataset is: its versions in one folder, its files there too or in folders of the nodes.

    Parameters
    ----------
    store : Store
    roots : mapping of node to Store, optional
        Folders of the nodes. They are told by whoever opens a dataset and never read from it.
    """

    store: Store
    roots: Mapping[str, Store] = field(default_factory=dict)

    @classmethod
    def of(
        cls, path: Any, storage_options: Mapping[str, Any] | None, roots: Mapping[Any, Any] | None = None
    ) -> Home:
        options = storage_options or {}
        stores = {str(node): Store(os.fspath(url), options) for node, url in (roots or {}).items()}
        home = cls(Store(os.fspath(path), options), stores)
        seen: dict[str, str] = {home.store.full(""): "the dataset itself"}
        for node, store in stores.items():
            if (other := seen.setdefault(store.full(""), f"node {node!r}")) != f"node {node!r}":
                raise DatasetError(
                    f"the root of node {node!r} is that of {other}: give each node one of its own"
                )
        return home

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        parts = [(node, store.__dask_tokenize__()) for node, store in sorted(self.roots.items())]
        return "chash_partition.Home", self.store.__dask_tokenize__(), parts

    @property
    def log(self) -> Log:
        return Log(self.store)

    def at(self, place: str) -> Store:
        """The folder of a place.

        Raises
        ------
        DatasetError
            If nobody has told the root of that node.
        """
        if not place:
            return self.store
        if place not in self.roots:
            raise DatasetError(
                f"the shards of node {place!r} are in a folder of its own: give it in "
                f"roots={{{place!r}: url, ...}}"
            )
        return self.roots[place]

    def store_of(self, version: Version, shard: int) -> Store:
        """The folder that has the files of a shard."""
        return self.at(version.layout.owner_of(shard) if version.node_local else "")

    def check(self, new: Version, written: set[tuple[str, str]]) -> None:
        """Nothing, if these files of a version are there, as large as it says, and will be."""
        for place, keys in itertools.groupby(sorted(written), key=lambda key: key[0]):
            store, paths = self.at(place), [path for _, path in keys]
            store.sync(paths)
            if store.local or len(paths) <= COPIES:
                sizes: Mapping[str, int | None] = {path: store.size(path) for path in paths}
            else:
                sizes = {path: nbytes for path, nbytes, _ in store.list(new.folder)}
            for path in paths:
                if sizes.get(path) != (nbytes := new.located[place, path].nbytes):
                    there = "is gone" if sizes.get(path) is None else f"has {sizes[path]:,}"
                    raise DatasetError(
                        f"{store.full(path)} must have {nbytes:,} bytes and {there}: nothing was committed; "
                        f"{store.remedy}"
                    )

    def commit(self, operation: str, change: Change, since: Version | None) -> Version:
        """See `Log.commit`."""
        return self.log.commit(operation, change, since, self.check)


def appended(files: Iterable[File], schema: pa.Schema, written: Version) -> Change:
    """The change that adds files to whatever is there, written as files of that version."""
    files = tuple(files)

    def change(latest: Version | None) -> Version:
        if latest is None:
            return replace(written, schema=schema).with_files(files)
        if not latest.takes(files, written):
            raise ConflictError(
                f"rows were to be appended to {written.layout!r} and the dataset has {latest.layout!r} by "
                f"now: nothing was committed; append again"
            )
        # A file without rows is only there where there is no other.
        kept = [file for file in latest.files if file.rows]
        new = [file for file in files if file.rows]
        return replace(latest, schema=evolved(latest.schema, schema)).with_files(
            [*kept, *new] or (latest.files or files)
        )

    return change


def replaced(new: Version, since: Version | None) -> Change:
    """The change that puts one version in the place of another, if that is still there."""

    def change(latest: Version | None) -> Version:
        if latest is None:
            return new
        if since is None:
            raise ConflictError(
                "another writer has made a dataset here meanwhile: nothing was committed; to replace it, "
                "write with mode='overwrite'"
            )
        if not latest.same_content(since):
            raise ConflictError(
                f"version {latest.number} ({latest.operation}) came while what replaces version "
                f"{since.number} was written: nothing was committed; do it again on what is there now"
            )
        return new

    return change
