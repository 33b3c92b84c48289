"""A folder of files that are written once: on local disk, in memory or on S3.

The only module that touches storage. What the rest relies on:

- `put` returns once the file is whole, and survives a crash (of the machine: once its folders are told to
  `sync`); a crash before that leaves none, or, locally, a torn one at a path that nobody knows of;
- `create` makes a file whole under a name that no other has, or says that the name is taken. However many
  try at once, one succeeds.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import PurePath
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

__all__ = ["DatasetError", "Store"]

TEMPORARY = ".tmp-"
EXCLUSIVE = {"memory", "s3", "s3a"}  # file systems that can create a file only if there is none
_memory = threading.Lock()  # fsspec's looks first and writes then


class DatasetError(ValueError):
    """A dataset on disk that is not as its format says, or not as an operation needs it."""


@dataclass(frozen=True)
class Store:
    """A folder, by its URL.

    Parameters
    ----------
    url : str
        A local path, ``file://``, ``memory://`` or ``s3://``.
    options : mapping, optional
        ``storage_options`` of fsspec.

    Raises
    ------
    DatasetError
        If the file system cannot create a file exclusively.

    Examples
    --------
    >>> store = Store("memory://store-example")
    >>> store.put("data/a", b"rows")
    >>> store.create("1.json", b"{}"), store.create("1.json", b"[]"), store.read("1.json")
    (True, False, b'{}')
    >>> [path for path, _, _ in store.list("data")]
    ['data/a']
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", os.fspath(self.url))
        object.__setattr__(self, "options", dict(self.options))
        if self.local:  # also where a task runs in another folder
            object.__setattr__(self, "url", self._there[1])

    @cached_property
    def _there(self) -> tuple[Any, str]:
        protocol = fsspec.utils.get_protocol(self.url)
        if protocol not in {"file", "local", *EXCLUSIVE}:
            raise DatasetError(
                f"{self.url!r}: a dataset needs a file system that can create a file only if there is none, "
                f"and {protocol!r} is not known to: use local disk, memory:// or s3://"
            )
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        return fs, root.rstrip("/")

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.url, self.options)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "chash_partition.Store", self.url, sorted(map(repr, self.options.items()))

    @property
    def fs(self) -> Any:
        """The fsspec file system."""
        return self._there[0]

    @property
    def local(self) -> bool:
        return type(self.fs) is LocalFileSystem

    @property
    def remedy(self) -> str:
        """What to do where a file is not as it was written."""
        if fsspec.utils.get_protocol(self.url) == "memory":
            return "each process has a memory:// of its own: on a cluster, write where all workers can read"
        return "write again. If vacuum removed it, give that a longer retain than the longest write takes"

    def path(self, name: str) -> str:
        """The path of a file as the file system takes it."""
        return f"{self._there[1]}/{name}"

    def full(self, name: str) -> str:
        """Where a file is, for other libraries: a path on local disk, else a URL."""
        return self.path(name) if self.local else str(self.fs.unstrip_protocol(self.path(name)))

    # Read

    def read(self, name: str, limit: int | None = None) -> bytes:
        """All bytes of a file; with a limit, at most one more than that.

        Raises
        ------
        FileNotFoundError
        """
        if limit is None:
            return bytes(self.fs.cat_file(self.path(name)))
        try:
            file = self.fs.open(self.path(name), "rb")
        except FileNotFoundError:  # by a list that another thread had made before
            self.fs.invalidate_cache()
            file = self.fs.open(self.path(name), "rb")
        with file:
            return bytes(file.read(limit + 1))

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """A file for Parquet to seek in."""
        with pa.OSFile(self.path(name)) if self.local else self.fs.open(self.path(name), "rb") as file:
            yield file

    def list(self, folder: str) -> list[tuple[str, int, datetime]]:
        """Name, bytes and time of every file below a folder; none if it is not there."""
        self.fs.invalidate_cache()
        found = self.fs.find(self.path(folder), detail=True)
        start = len(self._there[1]) + 1
        return sorted((path[start:], int(info["size"]), _time(info)) for path, info in found.items())

    def size(self, name: str) -> int | None:
        """Bytes of a file, None if it is not there."""
        try:
            return (
                os.stat(self.path(name)).st_size if self.local else int(self.fs.info(self.path(name))["size"])
            )
        except FileNotFoundError:
            return None

    # Write

    def put(self, name: str, content: Any) -> None:
        """Write a file under a name of its own, once."""
        if not self.local:
            self.fs.pipe_file(self.path(name), _bytes(content))
            return
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        _write(self.path(name), content)

    def create(self, name: str, content: Any) -> bool:
        """Write a file if there is none by that name; False if there is."""
        if not self.local:
            with _memory:
                try:
                    self.fs.pipe_file(self.path(name), _bytes(content), mode="create")
                except OSError as error:
                    if not _is_taken(error):
                        raise
                    return False
            return True
        folder = os.path.dirname(self.path(name))
        os.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
        try:
            _write(temporary, content)
            try:
                os.link(temporary, self.path(name))
            except FileExistsError:
                return False
            _sync(folder)
            return True
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def sync(self, names: Iterable[str]) -> None:
        """Have the names of these files survive a crash of the machine, as what is in them does."""
        if self.local:
            folders = {parent for name in names for parent in PurePath(self.path(name)).parents}
            root = PurePath(self.path("")).parent
            for folder in sorted(folder for folder in folders if folder == root or root in folder.parents):
                with suppress(PermissionError):  # the folder above, if others own it
                    _sync(str(folder))

    def delete(self, name: str) -> None:
        """Remove a file, if it is still there."""
        with suppress(FileNotFoundError):
            if self.local:
                os.unlink(self.path(name))
            else:
                self.fs.rm_file(self.path(name))


def _write(path: str, content: Any) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(content)
        while len(rest):
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def _sync(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _is_taken(error: OSError) -> bool:
    """Whether a file was not created because there is one, or another writer is at it right now."""
    response = getattr(error.__cause__, "response", None) or {}
    code = response.get("Error", {}).get("Code")
    return isinstance(error, FileExistsError) or code in ("PreconditionFailed", "ConditionalRequestConflict")


def _bytes(content: Any) -> bytes:
    return content if isinstance(content, bytes) else memoryview(content).tobytes()


def _time(info: Mapping[str, Any]) -> datetime:
    """When a file was written; each file system has another word for it."""
    when = info.get("mtime", info.get("LastModified", info.get("created")))
    if isinstance(when, datetime):
        return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return datetime.fromtimestamp(float(when or 0), timezone.utc)
