"""The JSON of a version: there and back, and what is made of any other text."""

from __future__ import annotations

import json
import random
import resource
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import LAYOUT, rows, write
from hypothesis import given
from hypothesis import strategies as st

from chash_partition import ShardedDataset, read_parquet
from chash_partition.parquet.log import name_of
from chash_partition.parquet.store import DatasetError
from chash_partition.parquet.version import MAX_BYTES, File, Version

SCHEMA = pa.schema({"k": pa.int64(), "x": pa.list_(pa.string())})
FILE = File("data/chash_shard=00003/0f.parquet", 10, 800, "00000000deadbeef")
VERSION = Version(7, "c0ffee", "append", LAYOUT, SCHEMA, files=(FILE,), removed=(("", FILE.path),))
TEXT = VERSION.to_json()


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(TEXT), **fields})


def test_a_version_comes_back() -> None:
    assert Version.from_json(TEXT) == VERSION
    assert Version.from_json(TEXT.encode()) == VERSION
    later = Version.from_json(changed(later={"a": [1]}))
    assert json.loads(later.to_json())["later"] == {"a": [1]}
    assert replace(later, extra="{}") == VERSION


OUTSIDE = [
    "/etc/passwd",
    "data/chash_shard=00003/../../x.parquet",
    "data/../chash_shard=00003/x.parquet",
    "../data/chash_shard=00003/x.parquet",
    "data/chash_shard=00003/..",
    "data//chash_shard=00003/x.parquet",
    "s3://other/data/chash_shard=00003/x.parquet",
    "file:///data/chash_shard=00003/x.parquet",
    "data/chash_shard=3/x.parquet",
    "data/chash_shard=000003/x.parquet",
    "data/chash_shard=٠٠٠٠٣/x.parquet",
    "data/chash_shard=00003/x.parquet\n",
    "data/chash_shard=00003/\x00.parquet",
    "data/chash_shard=00003/a/b.parquet",
    "data\\chash_shard=00003\\x.parquet",
    "data/chash_shard=00003/::x.parquet",
    "data/chash_shard=00008/x.parquet",  # there are 8
    "data/p16-0/chash_shard=00003/x.parquet",  # another folder than the version's
    "",
    None,
    3,
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_outside_is_refused(path: Any) -> None:
    with pytest.raises(DatasetError, match="file"):
        Version.from_json(changed(files=[[path, *FILE[1:]]]))


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"format": True},
        {"version": -1},
        {"version": 2**64},
        {"version": "7"},
        {"commit": "../x"},
        {"operation": None},
        {"key_hash": 2},
        {"keys": [["k", "string"]]},
        {"layout": {}},
        {"schema": "AAAA"},
        {"schema": 3},
        {"folder": "data/../.."},
        {"folder": "/tmp"},
        {"node_local": 1},
        {"files": {}},
        {"files": [[*FILE[:3]]]},
        {"files": [[FILE.path, -1, 800, FILE.checksum]]},
        {"files": [[FILE.path, 1.5, 800, FILE.checksum]]},
        {"files": [[FILE.path, 1, True, FILE.checksum]]},
        {"files": [[FILE.path, 1, 800, "zz"]]},
        {"files": [list(FILE), list(FILE)]},
        {"removed": [[3, FILE.path]]},
        {"removed": [["", "/etc/passwd"]]},
    ],
)
def test_what_is_wrong_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match="is damaged"):
        Version.from_json(changed(**fields))


def test_every_field_is_needed() -> None:
    for name in json.loads(TEXT):
        fields = json.loads(TEXT)
        del fields[name]
        with pytest.raises(DatasetError):
            Version.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format":' * 50_000,
        "9" * 100_000,
        '{"format": 1e999}',
        '{"format": NaN}',
        '{"format": 1, "version": ' + "9" * 5000 + "}",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        "",
        "null",
        "[]",
    ],
)
def test_text_of_other_kinds_is_refused(text: Any) -> None:
    with pytest.raises(DatasetError):
        Version.from_json(text)


class Large(bytes):
    def __len__(self) -> int:
        return MAX_BYTES + 1


def test_a_large_text_is_not_parsed() -> None:
    with pytest.raises(DatasetError, match="more than"):
        Version.from_json(Large(b"{}"))


ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, float("inf"), float("nan"), "", "0",
    "..", "/", "../../etc/passwd", "s3://a/b", "data", "x" * 5000, "\x00", "\ud800", "1/0", "1" * 400, [], {},
    [[]], [None], {"a": 1}, ["a", "1"], [["a", "1e999999999"]], "AAAA", "/////w==",
]  # fmt: skip


def mutated(text: str, chance: random.Random) -> bytes:
    """The text with bytes or parts of its structure changed."""
    if chance.random() < 0.4:
        content = bytearray(text.encode())
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(content))
            what = chance.random()
            if what < 0.6:
                content[at] = chance.randrange(256)
            elif what < 0.8:
                del content[at : at + chance.randint(1, 40)]
            else:
                content[at:at] = content[chance.randrange(len(content)) :][: chance.randint(1, 40)]
            if not content:
                break
        return bytes(content)
    fields = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        parent: Any = fields
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            key = chance.choice(keys)
            child = parent[key]
            if isinstance(child, (dict, list)) and child and chance.random() < 0.8:
                parent = child
                continue
            what = chance.random()
            if what < 0.15:
                del parent[key]
            elif what < 0.3 and isinstance(parent, list):
                parent.insert(key, deepcopy(child))
            elif isinstance(child, str) and what < 0.6 and child:
                at = chance.randrange(len(child))
                parent[key] = child[:at] + chance.choice(["", "A", "/", "9", ".", "ü"]) + child[at + 1 :]
            else:
                parent[key] = deepcopy(chance.choice(ODD))
            break
    return json.dumps(fields).encode()


def manifest() -> str:
    files = tuple(
        FILE._replace(path=f"data/chash_shard={shard:05}/{name}.parquet")
        for shard in range(3)
        for name in "ab"
    )
    schema = pa.schema(
        {
            "k": pa.int64(),
            "d": pa.dictionary(pa.int32(), pa.string()),
            "n": pa.list_(pa.struct({"a": pa.decimal128(9, 2), "b": pa.timestamp("us", "UTC")})),
            "f": pa.list_(pa.int8(), 3),
            "m": pa.map_(pa.string(), pa.binary(4)),
        },
        {"pandas": "{}"},
    )
    return replace(VERSION, schema=schema, files=files).to_json()


@pytest.mark.parametrize(
    ("cases", "seed"),
    [
        (1_000, 0),
        pytest.param(4_000, 0, marks=pytest.mark.thorough),
        *(pytest.param(6_000, seed, marks=pytest.mark.long) for seed in range(1, 21)),
    ],
)
def test_fuzzed_versions_are_sound_or_refused(cases: int, seed: int) -> None:
    chance, text = random.Random(seed), manifest()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = 0
    for _ in range(cases):
        mutant = mutated(text, chance)
        try:
            version = Version.from_json(mutant)
        except DatasetError:
            continue
        accepted += 1
        for file in version.files:
            assert file.path.startswith("data/")
            assert ".." not in file.path
            assert 0 <= file.shard < version.layout.npartitions
        assert Version.from_json(version.to_json()) == version
    assert accepted < cases
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kiB


def test_fuzzed_datasets_are_read_or_refused(tmp_path: Path) -> None:
    """The whole reader, not only the parser."""
    dataset = write(tmp_path, rows(0, 30))
    text = dataset._now.to_json()
    chance = random.Random(7)
    for _ in range(150):
        (tmp_path / name_of(0)).write_bytes(mutated(text, chance))
        with suppress(DatasetError):
            there = ShardedDataset(tmp_path)
            read_parquet(tmp_path)
            there.files()
            there.read_shard(0)
            if there.layout.on == ("k",) and there.schema.field("k").type == "int64":
                there.lookup(3)


@given(st.text() | st.binary())
def test_any_text(text: str | bytes) -> None:
    with pytest.raises(DatasetError):
        Version.from_json(text)
