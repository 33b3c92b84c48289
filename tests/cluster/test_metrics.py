"""Counters of Prometheus, where the scheduler has its others."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from clusters import TIMEOUT, placed, rows, settled
from distributed import Client, wait

pytestmark = pytest.mark.usefixtures("soon")


def test_counters_on_the_schedulers_metrics_endpoint(new_cluster):
    with Client(new_cluster(2)) as client:
        df = placed(rows(400), nodes=["0"], npartitions=8).chash.persist()
        wait(df)
        url = client.dashboard_link.replace("/status", "/metrics")

        def metrics() -> dict[str, float]:
            text = urlopen(url, timeout=TIMEOUT).read().decode()
            lines = [line for line in text.splitlines() if line.startswith("dask_chash")]
            return {line.split("{")[0]: float(line.split()[-1]) for line in lines}

        assert metrics() == {}
        with df.chash.autobalance() as follows:
            settled(follows)
            found, status = metrics(), follows.status()
            assert found["dask_chash_moves_total"] == status.moves == 4
            assert found["dask_chash_moved_bytes_total"] == status.nbytes > 0
            assert found["dask_chash_failures_total"] == found["dask_chash_out_of_place"] == 0
            assert found["dask_chash_plan_seconds"] > 0
        assert metrics() == {}
