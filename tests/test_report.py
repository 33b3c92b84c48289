"""What people read of a plan: text and HTML."""

import pytest
from layouts import layout

from chash_partition import plan_rebalance


def test_the_text_explains_the_plan():
    plan = plan_rebalance(layout(), ["w0", "w1", "w2", "w3", "w4"]).with_sizes([2**20] * 64)
    assert repr(plan) == "RebalancePlan(12 of 64 partitions move, 4 -> 5 nodes, version 0 -> 1)"
    assert (
        str(plan)
        == """\
12 of 64 partitions move (12.0 MiB); 4 -> 5 nodes; version 0 -> 1.
Imbalance (the most that a node owns of its share): 1.25 -> 1.02.

from  to  partitions    bytes
w0    w4           3  3.0 MiB
w1    w4           3  3.0 MiB
w2    w4           3  3.0 MiB
w3    w4           3  3.0 MiB

node    weight  share  owned  stay  come  owns
w0           1  12.80     16    13     0    13
w1           1  12.80     16    13     0    13
w2           1  12.80     16    13     0    13
w3           1  12.80     16    13     0    13
w4     joins 1  12.80      0     0    12    12
total           64.00     64    52    12    64

Why no fewer: each node must own its share of the 64 partitions rounded down, and 4 of 5 one more.
It can keep no more than that of what it owned, and the one more goes first to nodes that owned
more. So at most 52 of 64 can stay, and 12 must move.

12 waves if a node sends and receives one partition at a time; the busiest node sends or receives
12.0 MiB, at 100.0 MiB/s in 0.12 s."""
    )


def test_the_text_of_nodes_that_leave():
    text = str(plan_rebalance(layout(60, list("abc"), vnodes=32), ["a", "b"]))
    assert "c      leaves   0.00     20     0     0     0" in text
    assert "Why no fewer: each node must own exactly its share of the 60 partitions." in text
    assert "inf -> 1." in text


def test_the_text_of_many_nodes_stays_short():
    nodes = [f"w{i}" for i in range(200)]
    text = str(plan_rebalance(layout(2000, nodes[:100]), nodes))
    assert len(text.splitlines()) < 60
    assert "more pairs" in text
    assert "and 184 more nodes" in text


def test_the_text_of_names_that_cannot_be_seen():
    lines = str(plan_rebalance(layout(8, ["", "a\nb"]), ["", "a\nb", " "])).splitlines()
    assert sum(line.startswith(("''", r"'a\nb'", "' '")) for line in lines) == 5


def test_html_escapes_names():
    html = plan_rebalance(layout(8, ["<b>", "&"]), ["<b>", "&", '"x"'])._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert html.count("<table>") == html.count("</table>") == 2
    assert "Why no fewer" in html


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1, "1 B"), (1023, "1,023 B"), (1024, "1.0 kiB"), (3 * 2**30, "3.0 GiB"), (5 * 2**60, "5,120.0 PiB")],
)
def test_bytes_are_readable(nbytes, text):
    plan = plan_rebalance(layout(1, ["a"]), ["b"]).with_sizes([nbytes])
    assert f"move ({text});" in str(plan)


def test_moves_between_old_nodes_are_said_and_explained():
    before = layout()
    assert "nodes that stay" not in str(plan_rebalance(before, [*before.nodes, "w4"]))
    assert "nodes that stay" not in str(plan_rebalance(before, ["w0", "w1"]))
    text = str(plan_rebalance(before, {"w0": 3, "w1": 1, "w2": 1, "w3": 1}))
    assert "move between nodes that stay: weights change, weights are not equal." in text
    text = str(plan_rebalance(before.with_assignment(["w0"] * 40 + ["w1"] * 24), ["w0", "w1"]))
    assert "8 partitions move between nodes that stay: the layout was not balanced." in text
    few, sizes = layout(16), [1 + p % 7 for p in range(16)]
    text = str(plan_rebalance(few, few.nodes, sizes=sizes, tolerance=0.01))
    assert "nodes that stay: sizes are not equal." in text
    assert "it is proved that no plan with so low a largest load moves less than" in " ".join(text.split())
