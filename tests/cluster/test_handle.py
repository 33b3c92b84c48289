"""Pausing, resuming and stopping what follows the workers."""

from __future__ import annotations

import dask.dataframe as dd
import pytest
from clusters import FOUR, assert_on_owners, holders, keys_of, management, placed, rows, settled, until
from distributed import Client, wait

pytestmark = pytest.mark.usefixtures("soon")


def restrictions(client: Client, *frames: dd.DataFrame) -> dict[object, object]:
    """Where the tasks of the partitions may run."""
    keys = keys_of(*frames)

    def look(dask_scheduler):
        tasks = {key: dask_scheduler.tasks[key] for key in keys}
        return {
            key: (sorted(ts.worker_restrictions or ()), ts.loose_restrictions) for key, ts in tasks.items()
        }

    return client.run_on_scheduler(look)


def test_stopping_leaves_nothing_behind(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    around, restricted = management(client), restrictions(client, df)
    follows = df.chash.autobalance(replicas=2)
    settled(follows)
    assert management(client) != around
    follows.stop()
    until(lambda: management(client) == around)
    assert restrictions(client, df) == restricted
    assert follows.status().state == "ended"
    follows.stop()
    # A second copy is no longer protected.
    until(lambda: all(len(held) == 1 for held in holders(client, df)))
    with pytest.raises(RuntimeError, match="it has ended"):
        follows.resume()


def test_a_paused_layout_goes_on_when_it_is_resumed(client):
    df = placed(rows(400)).chash.persist()
    wait(df)
    follows = df.chash.autobalance(dict.fromkeys(FOUR, 1) | {"4": 2})
    settled(follows)
    assert df.chash.layout.counts()["4"] in (6, 7)
    follows.pause()
    until(lambda: follows.status().state == "paused")
    assert df.chash.autobalance()._layout_id == follows._layout_id
    follows.resume()
    settled(follows)
    follows.stop()
    assert_on_owners(client, df)
