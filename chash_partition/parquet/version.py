"""A version of a dataset: one immutable value that names every live file, and its JSON.

What a version says is never trusted: a file's path has one form and no other, so that nothing outside of the
data folder can be named; sizes are limited before anything is parsed.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from chash_partition.layout import FORMAT, Layout, read_object
from chash_partition.parquet.store import DatasetError

__all__ = ["ConflictError", "File", "Version"]

SHARD = "chash_shard"
DATA = "data"
MAX_BYTES = 256 * 2**20  # of a version's JSON
PATH = re.compile(
    r"(data(?:/[0-9a-z-]{1,64})?)/chash_shard=([0-9]{5,10})/([0-9a-z-]{1,64})\.parquet", re.ASCII
)
FOLDER = re.compile(r"data(?:/[0-9a-z-]{1,64})?", re.ASCII)
CHECKSUM = re.compile("[0-9a-f]{16}", re.ASCII)
WORD = re.compile("[0-9a-z-]{1,64}", re.ASCII)
FIELDS = (
    "format", "version", "commit", "operation", "key_hash", "keys", "layout", "schema", "folder",
    "node_local", "files", "removed",
)  # fmt: skip


class ConflictError(DatasetError):
    """Another writer was first, and what was to be committed does not fit what it left."""


class File(NamedTuple):
    """A live file.

    Attributes
    ----------
    path : str
        Below the dataset's folder, or that of the node that owns the shard.
    rows, nbytes : int
    checksum : str
        XXH64 (seed 0) of its bytes, 16 hexadecimal digits.

    Examples
    --------
    >>> File("data/chash_shard=00042/0f.parquet", 10, 812, "00000000deadbeef").shard
    42
    """

    path: str
    rows: int
    nbytes: int
    checksum: str

    @property
    def shard(self) -> int:
        return int(self.path.split("/")[-2].partition("=")[2])


def shard_folder(folder: str, shard: int) -> str:
    """Where the files of a shard are.

    Examples
    --------
    >>> shard_folder("data", 42)
    'data/chash_shard=00042'
    """
    return f"{folder}/{SHARD}={shard:05}"


@dataclass(frozen=True)
class Version:
    """What a dataset is from one commit to the next. An immutable value.

    Attributes
    ----------
    number : int
        From 0.
    commit : str
        Its own: tells a writer whether the version that is there is the one it wrote.
    operation : str
        What made it.
    layout : Layout
    schema : pyarrow.Schema
    folder : str
        Where new files go: ``data``, or a folder below it after a split.
    node_local : bool
        Whether the files of a shard are in the folder of the node that owns it, not in the dataset's.
    files : tuple of File
        By shard, then in the order in which they came.
    removed : tuple of (str, str)
        Place and path of files that this version has given up for good. Only `vacuum` makes such versions,
        before it deletes.
    extra : str
        JSON object of fields that `from_json` did not know and `to_json` writes again.
    """

    number: int
    commit: str
    operation: str
    layout: Layout
    schema: pa.Schema
    folder: str = DATA
    node_local: bool = False
    files: tuple[File, ...] = ()
    removed: tuple[tuple[str, str], ...] = ()
    extra: str = "{}"

    @cached_property
    def by_shard(self) -> dict[int, tuple[File, ...]]:
        """The files of each shard that has any."""
        found = defaultdict(list)
        for file in self.files:
            found[file.shard].append(file)
        return {shard: tuple(files) for shard, files in found.items()}

    def place_of(self, file: File) -> str:
        """Where a file is: "" for the dataset's own folder, or the node whose folder it is in."""
        return self.layout.owner_of(file.shard) if self.node_local else ""

    @cached_property
    def located(self) -> dict[tuple[str, str], File]:
        """The files by place and path."""
        return {(self.place_of(file), file.path): file for file in self.files}

    @property
    def keys(self) -> list[list[str]]:
        """Key columns with the names of their types, for people."""
        return [[str(name), str(self.schema.field(name).type)] for name in self.layout.on]

    def same_shards(self, other: Version) -> bool:
        """Whether a file of one can be a file of the other."""
        return (
            self.layout.on == other.layout.on
            and self.layout.same_partitions(other.layout)
            and self.folder == other.folder
        )

    def takes(self, files: Iterable[File], other: Version) -> bool:
        """Whether files that were written for the other version are files of this one, where they are."""
        return self.same_shards(other) and all(
            file.shard < self.layout.npartitions and self.place_of(file) == other.place_of(file)
            for file in files
        )

    def same_content(self, other: Version) -> bool:
        """Whether nothing but the number differs, and what `vacuum` has removed."""
        return (
            self.files == other.files
            and self.layout == other.layout
            and self.schema.equals(other.schema, check_metadata=True)
            and (self.folder, self.node_local) == (other.folder, other.node_local)
        )

    def with_files(self, files: Iterable[File]) -> Version:
        """These files instead, by shard."""
        return replace(self, files=tuple(sorted(files, key=lambda file: file.shard)))

    # As text

    def to_json(self) -> str:
        """The version as a JSON object, format 1.

        Raises
        ------
        ValueError
            If a column label is not a str.
        """
        return json.dumps(
            {
                "format": FORMAT,
                "version": self.number,
                "commit": self.commit,
                "operation": self.operation,
                "key_hash": FORMAT,
                "keys": self.keys,
                "layout": json.loads(self.layout.to_json()),
                "schema": base64.b64encode(self.schema.serialize()).decode(),
                "folder": self.folder,
                "node_local": self.node_local,
                "files": [list(file) for file in self.files],
                "removed": [list(file) for file in self.removed],
                **json.loads(self.extra),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: bytes | str, where: str = "version JSON") -> Version:
        """The version that `to_json` wrote.

        Parameters
        ----------
        text : bytes or str
        where : str
            What it is called in messages.

        Raises
        ------
        DatasetError
            If it is not a version of format 1, naming what is wrong; whatever the text.
        """
        if len(text) > MAX_BYTES:
            raise DatasetError(f"{where} has more than {MAX_BYTES:,} bytes: no version is as large")
        try:
            return _parsed(text)
        except (ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException) as error:
            raise DatasetError(f"{where} is damaged: {error}".replace("\n", " ")) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Version.from_json, (self.to_json(),)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "chash_partition.Version", self.commit, self.number


def _parsed(text: bytes | str) -> Version:
    fields = read_object(text, "dataset version")
    if missing := [name for name in FIELDS if name not in fields]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    layout = Layout.from_json(json.dumps(fields["layout"]))
    schema = _schema(_text(fields, "schema"))
    version = Version(
        number=_count(fields["version"], "version"),
        commit=_match(WORD, fields, "commit"),
        operation=_match(WORD, fields, "operation"),
        layout=layout,
        schema=schema,
        folder=_match(FOLDER, fields, "folder"),
        node_local=fields["node_local"],
        files=tuple(map(_file, _list(fields, "files"))),
        removed=tuple(map(_removed, _list(fields, "removed"))),
        extra=json.dumps({name: value for name, value in fields.items() if name not in FIELDS}),
    )
    if type(version.node_local) is not bool:
        raise ValueError(f"node_local must be true or false, got {version.node_local!r:.80}")
    if type(fields["key_hash"]) is not int or fields["key_hash"] != FORMAT:
        raise ValueError(f"the key hash is of format {fields['key_hash']!r:.80}; this version reads {FORMAT}")
    for name in layout.on:
        if schema.names.count(name) != 1:
            raise ValueError(f"key column {name!r} is there {schema.names.count(name)} times in the schema")
    if fields["keys"] != version.keys:
        raise ValueError(f"keys are {fields['keys']!r:.200}, but layout and schema say {version.keys!r:.200}")
    for file in version.files:
        if file.shard >= layout.npartitions or not file.path.startswith(
            shard_folder(version.folder, file.shard) + "/"
        ):
            raise ValueError(
                f"file {file.path!r} is of no shard of {version.folder!r}, P = {layout.npartitions}"
            )
    shards = [file.shard for file in version.files]
    if shards != sorted(shards):
        raise ValueError("files are not in the order of their shards")
    [(path, times)] = Counter(file.path for file in version.files).most_common(1) or [("", 1)]
    if times > 1:
        raise ValueError(f"file {path!r} is named {times} times")
    return version


def _schema(text: str) -> pa.Schema:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        schema.empty_table().validate(full=True)
        names = [name.encode() for name in schema.names]
    except Exception as error:  # pyarrow raises all kinds, for bytes that are no schema
        raise ValueError(f"schema is not an Arrow schema in base64: {error!r:.200}") from None
    if len(set(names)) < len(names):
        raise ValueError("schema names a column more than once")
    return schema


def _file(entry: object) -> File:
    if not isinstance(entry, list) or len(entry) != 4:
        raise ValueError(f"a file must be [path, rows, bytes, checksum], got {entry!r:.200}")
    path, rows, nbytes, checksum = entry
    if not isinstance(checksum, str) or not CHECKSUM.fullmatch(checksum):
        raise ValueError(
            f"checksum of file {path!r:.200} must be 16 hexadecimal digits, got {checksum!r:.80}"
        )
    return File(
        _path(path),
        _count(rows, f"rows of {path!r:.200}"),
        _count(nbytes, f"bytes of {path!r:.200}"),
        checksum,
    )


def _removed(entry: object) -> tuple[str, str]:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        raise ValueError(f"what was removed must be [place, path], got {entry!r:.200}")
    return entry[0], _path(entry[1])


def _path(path: object) -> str:
    match = PATH.fullmatch(path) if isinstance(path, str) else None
    if match is None or match[2] != f"{int(match[2]):05}":
        raise ValueError(
            f"file path {path!r:.200} is not of the form data/chash_shard=00042/name.parquet: "
            "it could be anything outside of the dataset"
        )
    return match[0]


def _count(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{what} must be an integer from 0 up to 2^63, got {value!r:.80}")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise ValueError(f"{name} must be a string, got {fields[name]!r:.80}")
    return str(fields[name])


def _match(pattern: re.Pattern[str], fields: dict[str, Any], name: str) -> str:
    if not pattern.fullmatch(text := _text(fields, name)):
        raise ValueError(f"{name} must be of the form {pattern.pattern}, got {text!r:.80}")
    return text


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    entries = fields[name]
    if not isinstance(entries, list):
        raise ValueError(f"{name} must be a list, got {entries!r:.80}")
    return entries
