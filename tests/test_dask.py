"""What is said where a version of Dask does not fit."""

from __future__ import annotations

import runpy

import pytest
from dask.dataframe.dask_expr import _merge

from chash_partition import _dask


def test_a_dask_that_lacks_something_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_merge, "Merge")
    with pytest.raises(ImportError, match=r"does not fit the installed dask \d.*Merge.*install a version"):
        runpy.run_path(str(_dask.__file__))
