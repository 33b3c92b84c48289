"""The scripts of examples/, each run by itself and to its end."""

from __future__ import annotations

import io
import os
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pytest
from clusters import TIMEOUT, forked_dask, forked_process
from distributed import Client, wait
from distributed.utils import get_mp_context

from chash_partition import chash_repartition

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def printed_by(processes: ExitStack, tmp_path: Path) -> Callable[..., str]:
    """Runs a script as `python` does, but for what is imported already, and gives what it prints."""

    def printed_by(script: str, *arguments: object, answer: str = "", code: int = 0) -> str:
        path, given = str(EXAMPLES / script), [*map(str, arguments)]
        out, err = tmp_path / "out", tmp_path / "err"

        def run() -> None:
            for number, file in ((1, out), (2, err)):  # of its workers, too
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            get_mp_context().set_forkserver_preload(["forked"])
            sys.argv, sys.stdin = [path, *given], io.StringIO(answer)
            runpy.run_path(path, run_name="__main__")

        config = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}
        process = processes.enter_context(forked_process(run, **config))
        process.join(2 * TIMEOUT)
        assert process.exitcode == code, err.read_text()
        assert "Traceback" not in err.read_text()
        return out.read_text()

    return printed_by


def test_each_example_is_run_here():
    assert {f"test_{path.stem}" for path in EXAMPLES.glob("*.py")} <= globals().keys()


@pytest.mark.thorough
def test_elastic_scaling(printed_by):
    printed = printed_by("elastic_scaling.py")
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


@pytest.mark.thorough
def test_virtual_nodes(printed_by, tmp_path):
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


@pytest.mark.thorough
def test_adaptive(printed_by):
    printed = printed_by("adaptive.py")
    assert printed.count("equal pandas'") == 2
    assert "on 2 workers: [16, 16] partitions; 0 moved so far" in printed
    moved = re.findall(r"on 2 workers: \[16, 16\] partitions; (\d+) moved so far", printed)
    assert int(moved[1]) > 0
    assert printed.endswith("Stopped: ended\n")


def test_scale_script(printed_by, processes, tmp_path):
    """Against a scheduler and workers started from the command line."""
    info = tmp_path / "scheduler.json"
    start = ("scheduler", "--port", 0, "--no-dashboard", "--scheduler-file", info)
    processes.enter_context(forked_dask(*start))

    def worker(name: str) -> None:
        start = ("worker", "--scheduler-file", info, "--no-nanny", "--no-dashboard")
        processes.enter_context(forked_dask(*start, "--name", name, "--nthreads", 1))

    worker("a")
    worker("b")
    with Client(scheduler_file=str(info), timeout=TIMEOUT) as client:
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
