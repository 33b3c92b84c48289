"""A dataset on disk, without Dask: what operations leave, in each kind of storage."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import LAYOUT, assert_sound, at_once, bare, counted, rows, whole, write
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tiers import examples, thorough

from chash_partition import Layout, ShardedDataset, plan_rebalance
from chash_partition.parquet.store import DatasetError
from chash_partition.parquet.version import ConflictError

NOW = timedelta(0)


def test_what_is_written_is_read(place: dict[str, Any]) -> None:
    dataset = write(table=rows(0, 100), **place)
    assert dataset.version == 0
    assert dataset.layout == LAYOUT
    assert dataset.schema.names == ["k", "row", "text"]
    assert_sound(dataset, rows(0, 100))
    for shard in range(8):
        table = dataset.read_shard(shard)
        assert set(LAYOUT.partition_of(table).tolist()) <= {shard}
    assert sorted(dataset.shards_of("a") + dataset.shards_of("b")) == list(range(8))


def test_appended_rows_come_last(place: dict[str, Any]) -> None:
    write(table=rows(0, 50), **place)
    dataset = write(table=rows(50, 80), mode="append", **place)
    assert dataset.version == 1
    assert_sound(dataset, rows(0, 80))
    for shard in range(8):
        numbers = dataset.read_shard(shard)["row"].to_pylist()
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("place", ["local", "memory", *thorough("s3")], indirect=True)
def test_each_operation_keeps_the_rows(place: dict[str, Any]) -> None:
    table = rows(0, 90)
    write(table=rows(0, 50), **place)
    dataset = write(table=rows(50, 90), mode="append", **place)
    several = sum(len(dataset.files(shard)) > 1 for shard in range(8))
    assert dataset.compact() == several > 0
    assert len(dataset.files()) == len(set(LAYOUT.partition_of(table).tolist()))
    assert_sound(dataset, table)
    assert dataset.compact() == 0
    plan = dataset.assign(["a", "b", "c"])
    assert plan.after == dataset.layout == plan_rebalance(LAYOUT, ["a", "b", "c"]).after
    assert_sound(dataset, table)
    layout = dataset.split(3)
    assert layout.npartitions == 24
    assert [layout.owner_of(3 * i) for i in range(8)] == [plan.after.owner_of(i) for i in range(8)]
    assert_sound(dataset, table)
    removed = dataset.vacuum(NOW)
    assert len(removed) > 0
    assert_sound(dataset, table)
    assert_sound(ShardedDataset(**place), table)
    dataset = write(table=rows(200, 210), mode="overwrite", **place)
    assert_sound(dataset, rows(200, 210))


def test_the_data_folder_alone_after_vacuum(tmp_path: Path) -> None:
    write(tmp_path, rows(0, 50))
    dataset = write(tmp_path, rows(50, 90), "append")
    for operation in (dataset.compact, lambda: dataset.split(2), lambda: dataset.assign(["c"])):
        operation()
        dataset.vacuum(NOW)
        assert counted(bare(tmp_path)) == counted(rows(0, 90))
    dataset = write(tmp_path, rows(0, 9), "overwrite")
    dataset.vacuum(NOW)
    assert counted(bare(tmp_path)) == counted(rows(0, 9))
    assert sorted(dataset.files()) == sorted(map(str, tmp_path.glob("data/**/*.parquet")))


def test_an_older_reader_goes_on_until_vacuum(place: dict[str, Any]) -> None:
    write(table=rows(0, 50), **place)
    reader = write(table=rows(50, 90), mode="append", **place)
    dataset = ShardedDataset(**place)
    dataset.compact()
    assert dataset.vacuum() == []  # nothing is as old as that
    assert_sound(reader, rows(0, 90))
    assert len(dataset.vacuum(NOW)) > 0
    with pytest.raises(DatasetError, match="vacuum has removed it"):
        whole(reader)
    assert reader.verify() != []
    assert_sound(reader.refresh(), rows(0, 90))


# Lookup


def test_lookup_finds_the_rows_of_a_key(place: dict[str, Any]) -> None:
    table = rows(0, 300)
    write(table=rows(0, 200), **place)
    dataset = write(table=rows(200, 300), mode="append", sorting=("k",), row_group_size=3, **place)
    for key in (0, 5, 5.0, np.int8(40), 149, True):
        expected = [i for i in range(300) if i % 7 and i // 2 == key]
        assert dataset.lookup(key)["row"].to_pylist() == expected
    for null in (None, float("nan")):
        assert sorted(dataset.lookup(null)["row"].to_pylist()) == [i for i in range(300) if i % 7 == 0]
    for nowhere in (10_000, 5.5, 2**70, -1):
        assert dataset.lookup(nowhere).equals(table.schema.empty_table().cast(dataset.schema))
    for other in ("5", b"5"):
        with pytest.raises(TypeError, match=r"'k' is int64"):
            dataset.lookup(other)
    with pytest.raises(ValueError, match="1 value"):
        dataset.lookup((1, 2))


def test_lookup_opens_one_shard(tmp_path: Path) -> None:
    dataset = write(tmp_path, rows(0, 300))
    shard = LAYOUT.partition_of_key(5)
    for other in set(range(8)) - {shard}:
        for file in dataset.files(other):
            Path(file).write_bytes(b"")
    assert dataset.lookup(5)["row"].to_pylist() == [10, 11]
    with pytest.raises(DatasetError, match="cannot be read"):
        dataset.lookup(next(k for k in range(100) if LAYOUT.partition_of_key(k) != shard))


# Owners


def test_assign_moves_no_byte(tmp_path: Path) -> None:
    layout = Layout.create("k", 1024, [f"n{i}" for i in range(8)])
    dataset = write(tmp_path, rows(0, 3000), layout=layout)

    def files() -> dict[str, tuple[int, int]]:
        return {str(f): (f.stat().st_ino, f.stat().st_mtime_ns) for f in tmp_path.glob("data/**/*")}

    before = files()
    plan = dataset.assign([f"n{i}" for i in range(9)])
    assert len(plan.moves) == plan.lower_bound
    assert files() == before
    assert plan.nbytes == sum(
        Path(file).stat().st_size for move in plan.moves for file in dataset.files(move.partition)
    )
    assert len(dataset.shards_of("n8")) == 1024 // 9
    version = dataset.version
    assert dataset.assign([f"n{i}" for i in range(9)]).moves == ()
    assert dataset.version == version
    with pytest.raises(ValueError, match="n9"):
        dataset.shards_of("n9")


def node_local(tmp_path: Path, *nodes: str) -> dict[str, str]:
    return {node: str(tmp_path / f"disk-{node}") for node in nodes}


def test_rebalance_copies_what_the_plan_says(tmp_path: Path) -> None:
    roots = node_local(tmp_path, "a", "b", "c")
    write(tmp_path / "shared", rows(0, 200))
    with pytest.raises(DatasetError, match=r"roots=\{'a': url"):
        ShardedDataset(tmp_path / "shared").rebalance(["a", "b"])
    dataset = ShardedDataset(tmp_path / "shared", roots=roots)
    dataset.rebalance(["a", "b"])
    assert_sound(dataset, rows(0, 200))
    dataset.vacuum(NOW)
    assert list((tmp_path / "shared").glob("data/**/*.parquet")) == []
    with pytest.raises(DatasetError, match="roots="):
        ShardedDataset(tmp_path / "shared")
    with pytest.raises(DatasetError, match=r"rebalance\(nodes\)"):
        dataset.assign(["a"])
    dataset = write(tmp_path / "shared", rows(200, 250), "append", roots=roots)
    assert_sound(dataset, rows(0, 250))
    before = on_disk(roots)
    plan = dataset.rebalance(["a", "b", "c"])
    assert sum(on_disk(roots).values()) - sum(before.values()) == plan.nbytes > 0
    for shard in range(8):
        for file in dataset.files(shard):
            assert file.startswith(roots[dataset.layout.owner_of(shard)])
    assert_sound(dataset, rows(0, 250))
    assert dataset.rebalance(["a", "b", "c"]).moves == ()
    dataset.vacuum(NOW)
    assert sum(on_disk(roots).values()) == sum(before.values())
    dataset.rebalance(["b"])
    dataset.compact()
    dataset.split(2)
    dataset.vacuum(NOW)
    assert_sound(dataset, rows(0, 250))
    assert {name for name, size in on_disk(roots).items() if size} == {"b"}


def on_disk(roots: dict[str, str]) -> dict[str, int]:
    """Bytes of the files of each node."""
    return {
        node: sum(file.stat().st_size for file in Path(root).rglob("*.parquet"))
        for node, root in roots.items()
    }


def test_rebalance_copies_what_came_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = node_local(tmp_path, "a", "b", "c")
    write(tmp_path / "shared", rows(0, 100), roots=roots)
    dataset = ShardedDataset(tmp_path / "shared", roots=roots)
    at_once(
        monkeypatch,
        lambda: write(tmp_path / "shared", rows(100, 150), "append", roots=roots),
        lambda: dataset.rebalance(["a", "b", "c"]),
    )
    assert_sound(dataset, rows(0, 150))
    dataset.vacuum(NOW)
    assert_sound(dataset, rows(0, 150))


def test_what_moved_meanwhile_is_not_written_to_the_old_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = node_local(tmp_path, "a", "b", "c")
    write(tmp_path / "x", rows(0, 100), roots=roots)
    dataset = write(tmp_path / "x", rows(100, 150), "append", roots=roots)
    others = ShardedDataset(tmp_path / "x", roots=roots)
    for then, nodes in (
        (dataset.compact, ["c"]),
        (lambda: write(tmp_path / "x", rows(150, 200), "append", roots=roots), ["a", "b"]),
    ):
        with pytest.raises(ConflictError, match="nothing was committed"), monkeypatch.context() as patch:
            at_once(patch, partial(others.rebalance, nodes), then)
        assert_sound(dataset.refresh(), rows(0, 150))


def test_rebalance_finishes_what_a_crash_left(tmp_path: Path) -> None:
    roots = node_local(tmp_path, "a", "b", "c")
    dataset = write(tmp_path / "shared", rows(0, 100), roots=roots)
    plan = plan_rebalance(dataset.layout, ["a", "b", "c"])
    [torn, whole_, *_] = [
        file for move in plan.moves for file in dataset._now.by_shard.get(move.partition, ())
    ]
    for file, cut in ((torn, 100), (whole_, None)):
        source = Path(roots[dataset._now.place_of(file)], file.path)
        copy = Path(roots["c"], file.path)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(source.read_bytes()[:cut])
    kept = copy.stat()
    dataset.rebalance(["a", "b", "c"])
    assert copy.stat().st_ino == kept.st_ino
    assert_sound(dataset, rows(0, 100))


def test_watch_follows_versions(place: dict[str, Any]) -> None:
    write(table=rows(0, 9), **place)
    seen: list[int] = []
    first = threading.Event()

    def follow() -> None:
        for dataset in islice(ShardedDataset(**place).watch(interval=0.01), 2):
            seen.append(dataset.version)
            first.set()

    follower = threading.Thread(target=follow)
    follower.start()
    assert first.wait(30)
    write(table=rows(9, 20), mode="append", **place)
    follower.join(30)
    assert seen == [0, 1]


# Damage


def test_verify_finds_damage(tmp_path: Path) -> None:
    dataset = write(tmp_path, rows(0, 100))
    write(tmp_path, rows(100, 110), "append")
    dataset = write(tmp_path, rows(110, 120), "append")
    flipped, gone, short, *_ = map(Path, dataset.files())
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    gone.unlink()
    short.write_bytes(short.read_bytes()[:-1])
    dataset._home.store.delete("_chash/00000000000000000001.json")
    found = {problem.file: problem.what for problem in dataset.verify()}
    assert len(found) == 4
    assert "checksum" in found[str(flipped)]
    assert found[str(gone)] == "it is gone"
    assert "bytes" in found[str(short)]
    assert "missing in the log" in found["_chash/00000000000000000001.json"]


def test_verify_finds_rows_in_the_wrong_shard(tmp_path: Path) -> None:
    dataset = write(tmp_path, rows(0, 100))
    now = dataset._now
    file = now.files[-1]
    wrong = file._replace(path=file.path.replace(f"={file.shard:05}", "=00001"))
    (tmp_path / wrong.path).parent.mkdir(exist_ok=True)
    (tmp_path / wrong.path).write_bytes((tmp_path / file.path).read_bytes())
    others = [f for f in now.files if f != file]
    dataset._home.commit("test", lambda latest: replace(now).with_files([*others, wrong]), now)
    [problem] = dataset.refresh().verify()
    assert "keys belong elsewhere" in problem.what


def test_repair_takes_whole_copies(tmp_path: Path) -> None:
    roots = node_local(tmp_path, "a", "b", "c")
    write(tmp_path / "shared", rows(0, 100), roots=roots)
    dataset = ShardedDataset(tmp_path / "shared", roots=roots)
    moved = {move.partition for move in dataset.rebalance(["a", "b", "c"]).moves}
    hurt = [Path(file) for shard in moved for file in dataset.files(shard)]
    hurt[0].unlink()
    hurt[1].write_bytes(b"")
    assert len(dataset.verify()) == 2
    assert dataset.repair() == []
    assert_sound(dataset, rows(0, 100))
    lost = Path(dataset.files(next(s for s in range(8) if s not in moved and dataset.files(s)))[0])
    lost.unlink()
    assert [problem.file for problem in dataset.repair()] == [str(lost)]


# Any order of operations


class Operations(RuleBasedStateMachine):
    """The rows are those of a list, whatever the operations and their order."""

    def __init__(self) -> None:
        super().__init__()
        self.path = f"memory://machine-{uuid.uuid4().hex}"
        self.start = 0
        self.dataset = write(self.path, rows(0, 0))
        self.expected = [rows(0, 0)]

    def _rows(self, n: int) -> pa.Table:
        self.start += n
        return rows(self.start - n, self.start)

    @rule(n=st.integers(0, 12))
    def append(self, n: int) -> None:
        self.expected.append(self._rows(n))
        write(self.path, self.expected[-1], "append")

    @rule(n=st.integers(0, 12), p=st.integers(1, 6))
    def overwrite(self, n: int, p: int) -> None:
        self.expected = [self._rows(n)]
        write(self.path, self.expected[0], "overwrite", Layout.create("k", p, ["a"]))

    @rule()
    def compact(self) -> None:
        self.dataset.compact()

    @rule()
    def split(self) -> None:
        if self.dataset.refresh().layout.npartitions < 50:
            self.dataset.split(2)

    @rule(nodes=st.sets(st.sampled_from("abcd"), min_size=1))
    def assign(self, nodes: set[str]) -> None:
        self.dataset.assign(nodes)
        assert set(self.dataset.layout.nodes) == nodes

    @rule()
    def vacuum(self) -> None:
        self.dataset.vacuum(NOW)
        listed = self.dataset._home.store.list("data")
        assert sorted(name for name, _, _ in listed) == sorted(f.path for f in self.dataset._now.files)

    @invariant()
    def same_rows(self) -> None:
        assert_sound(self.dataset.refresh(), pa.concat_tables(self.expected))


TestOperations = Operations.TestCase
TestOperations.settings = settings(examples(0.2), stateful_step_count=12)


@examples(0.25)
@given(
    keys=st.lists(
        st.tuples(st.sampled_from(["a", "b", None, "ü"]), st.integers(0, 3)), min_size=1, max_size=30
    ),
    p=st.sampled_from([1, 2, 7, 4096]),
    size=st.sampled_from([None, 1, 5]),
)
def test_lookup_of_any_key(keys: list[tuple[str | None, int]], p: int, size: int | None) -> None:
    table = pa.table(
        {
            "a": pa.array([a for a, _ in keys], pa.string()),
            "b": [b for _, b in keys],
            "row": range(len(keys)),
        }
    )
    layout = Layout.create(["b", "a"], p, ["n"])
    path = f"memory://lookup-{uuid.uuid4().hex}"
    dataset = write(path, table, layout=layout, row_group_size=size, sorting=("a", "b"))
    assert_sound(dataset, table)
    for a, b in set(keys):
        expected = [i for i, key in enumerate(keys) if key == (a, b)]
        assert sorted(dataset.lookup((b, a))["row"].to_pylist()) == expected
