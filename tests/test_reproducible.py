"""Layouts, plans and hashes are the same in each process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import reproduced
from tiers import thorough


@pytest.mark.parametrize("hash_seed", ["1", *thorough("2")])
def test_neither_process_nor_hash_seed_nor_environment_changes_a_result(hash_seed: str) -> None:
    # Of two seeds, one at least is not that of this process.
    ran = subprocess.run(
        [sys.executable, "-W", "error", reproduced.__file__],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == reproduced.results()
