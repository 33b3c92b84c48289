"""The picture of a plan."""

import sys

import pytest
from layouts import layout

from chash_partition import plan_rebalance


def test_a_plot_shows_each_node_before_and_after():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    before = layout(64, ["a$b", "<c>", "名", "d"])
    plan = plan_rebalance(before, ["a$b", "<c>", "e"], sizes=range(64), tolerance=0.05)
    ax = plan.plot()
    assert len(ax.texts) == 10  # five nodes, before and after
    assert "partitions move" in ax.get_title()
    assert plan_rebalance(before, before.nodes).plot(ax=ax) is ax
    plt.close("all")


def test_plot_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'chash-partition\[viz\]'"):
        plan_rebalance(layout(), ["w0"]).plot()
