"""The scripts of examples/, run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client, wait

from chash_partition import chash_repartition

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed_by(script: str, *arguments: object, answer: str = "", code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        input=answer,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def elastic_scaling(printed: str) -> None:
    assert "336,776 flights of 4,043 aircraft,\n  2,512 flights with no tail number; 3,322 planes" in printed
    assert printed.count("equal pandas'") == 3
    moves = re.findall(r"moved (\d+) of 64 partitions .*\n  fewest possible: (\d+); .* moved (\d+)", printed)
    out, back = ([int(number) for number in numbers] for numbers in moves)
    assert out[:2] == [12, 12]
    assert back[0] == back[1] < back[2]
    held = [
        [int(n) for n in re.findall(r"worker \d: +(\d+) partitions", step)]
        for step in printed.split("\nScaling")
    ]
    assert held[0] == [16] * 4
    assert sorted(held[1]) == [12, 13, 13, 13, 13]
    assert sorted(held[2]) == [21, 21, 22]


def test_virtual_nodes(tmp_path):
    picture = tmp_path / "drawn.svg"
    printed = printed_by("virtual_nodes.py", "--keys", 2000, "--nodes", 2, "--svg", picture)
    assert "10 rows on 3 nodes, a fourth joins: 7 rows move with modulo, 2 on the ring" in printed
    rows = re.findall(r"\[([\d, ]+)\]", printed)
    assert len(rows) == 20 * 4
    assert {sum(map(int, row.split(", "))) for row in rows} == {2000}
    needed = re.findall(r"\b2 .* (\d+) .* (\d+) .* (\d+) .* (\d+) ", printed)
    for five, ten in zip(*[iter(map(int, needed[-1]))] * 2, strict=True):
        assert 10 < ten < five < 300
    assert picture.exists() or "needs matplotlib" in printed


def adaptive(printed: str) -> None:
    assert printed.count("equal pandas'") == 2
    assert "on 2 workers: [16, 16] partitions; 0 moved so far" in printed
    moved = re.findall(r"on 2 workers: \[16, 16\] partitions; (\d+) moved so far", printed)
    assert int(moved[1]) > 0
    assert printed.endswith("Stopped: ended\n")


@contextmanager
def command_line(*arguments: object) -> Iterator[None]:
    """A process of `dask ...`, until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_scale_script(tmp_path):
    """Against a scheduler and workers started from the command line."""
    info = tmp_path / "scheduler.json"
    with ExitStack() as processes:
        start = ["scheduler", "--port", 0, "--no-dashboard", "--scheduler-file", info]
        processes.enter_context(command_line(*start))

        def worker(name: str) -> None:
            start = ["worker", "--scheduler-file", info, "--no-nanny", "--no-dashboard"]
            processes.enter_context(command_line(*start, "--name", name, "--nthreads", 1))

        worker("a")
        worker("b")
        with Client(scheduler_file=str(info), timeout=60) as client:
            client.wait_for_workers(2)
            rows = pd.DataFrame({"k": range(1000)})
            df = dd.from_pandas(rows, npartitions=2).pipe(chash_repartition, on="k", npartitions=12)
            df = df.chash.persist()
            wait(df)
            client.publish_dataset(numbers=df)
            address = client.scheduler.address
            worker("c")
            client.wait_for_workers(3)
            assert "4 of 12 partitions move" in printed_by("scale_script.py", address, "numbers", code=1)
            assert df.chash.layout.version == 0
            printed = printed_by("scale_script.py", address, "numbers", answer="y\n")
            assert "Moved 4 of 4 partitions." in printed
            assert df.chash.placement().value_counts().to_dict() == {"a": 4, "b": 4, "c": 4}
            assert "Nothing has to move." in printed_by("scale_script.py", address, "numbers")
            printed = printed_by("scale_script.py", address, "numbers", "--retire", "a", "--yes")
            assert "Moved 4 of 4 partitions." in printed
            assert df.chash.placement().value_counts().to_dict() == {"b": 6, "c": 6}
            assert len(df) == 1000


@pytest.mark.parametrize(
    "script",
    sorted({path.name for path in EXAMPLES.glob("*.py")} - {"virtual_nodes.py", "scale_script.py"}),
)
def test_example(script):
    printed = printed_by(script)
    assert printed
    check = globals().get(script.removesuffix(".py"))
    if check is not None:
        check(printed)
