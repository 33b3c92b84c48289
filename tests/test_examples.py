"""The scripts of examples/, run as a user runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed_by(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize(
    "script", sorted({path.name for path in EXAMPLES.glob("*.py")} - {"virtual_nodes.py"})
)
def test_example(script):
    printed = printed_by(script)
    assert printed
    check = globals().get(script.removesuffix(".py"))
    if check is not None:
        check(printed)
