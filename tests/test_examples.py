"""The scripts of examples/, run as a user runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed_by(script: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script],
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


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(script):
    printed = printed_by(script)
    assert printed
    check = globals().get(script.removesuffix(".py"))
    if check is not None:
        check(printed)
