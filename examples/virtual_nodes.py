"""How many virtual nodes are enough: the reference experiment of consistent hashing.

Keys on 2 nodes, then a third joins: how many keys each node has, by the number of virtual nodes, with MD5
and XXH64. Then how many virtual nodes a ring of n nodes needs for its fullest node to be within 5 % or 10 %
of its share. And why a ring at all: ten rows by modulo and on a ring. No cluster is needed.

    python examples/virtual_nodes.py [--keys 100000] [--nodes 100] [--svg virtual-nodes.svg]

The picture needs matplotlib (extra viz). The page that explains it all is docs/virtual-nodes.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table

from chash_partition import HashRing
from chash_partition.properties import balance, counts, shares

Rows = dict[str, list[list[int]]]  # by hash, for each number of virtual nodes: keys of each node
Needed = dict[str, list[list[int]]]  # by hash, for each number of nodes: virtual nodes for each target
HASHES = ("md5", "xxh64")
VNODES = range(50, 1001, 50)
TARGETS = (1.05, 1.10)
NODES = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 100)
DOUBLINGS = [2**i for i in range(3, 13)]  # virtual nodes, from 8 to 4,096


def ten_rows() -> tuple[int, int]:
    """Of ten rows on three nodes, how many move when a fourth joins: with modulo, and on a ring."""
    by_modulo = sum(row % 3 != row % 4 for row in range(10))
    hashes = np.arange(192, 232, 4)
    three = {203: "a", 209: "g", 228: "z"}
    before, after = (
        HashRing.from_tokens(tokens).owners_at(hashes) for tokens in (three, {**three, 216: "n"})
    )
    return by_modulo, int(np.count_nonzero(before != after))


def rows_per_node(keys: np.ndarray, vnodes: int, hash: str) -> tuple[list[int], list[int]]:
    """Keys of each node before and after w2 joins w0 and w1. None moves between w0 and w1."""
    ring = HashRing(["w0", "w1"], vnodes=vnodes, hash=hash)
    before, after = ring.owners(keys), ring.with_nodes(["w2"]).owners(keys)
    assert set(after[before != after]) == {"w2"}
    return list(counts(before).values()), list(counts(after).values())


def needed(nodes: int, hash: str) -> list[int]:
    """Virtual nodes with which the fullest of `nodes` has each of the targets times its share of the hash
    space, on average over clusters of other names: measured at every doubling, and between by power law."""
    clusters = [[f"w{trial}-{i}" for i in range(nodes)] for trial in range(8 + 160 // nodes)]

    def excess(vnodes: int) -> float:
        rings = (HashRing(names, vnodes=vnodes, hash=hash) for names in clusters)
        return fmean(balance(shares(ring), ring.nodes).max_over_mean for ring in rings) - 1

    measured = np.log([excess(vnodes) for vnodes in DOUBLINGS])
    wanted = np.log(np.array(TARGETS) - 1)
    return np.exp(np.interp(wanted, measured[::-1], np.log(DOUBLINGS)[::-1])).round().astype(int).tolist()


def draw(path: str, after: Rows, enough: Needed, nodes: Sequence[int]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "virtual-nodes", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    colors = ("tab:blue", "tab:red", "tab:green")
    for axis, hash in zip(axes[:2], HASHES, strict=True):
        share = np.array(after[hash]) / np.sum(after[hash][0])
        for name, color, part in zip(("w0", "w1", "w2"), colors, share.T, strict=True):
            axis.plot(VNODES, 100 * part, "o-", ms=3, lw=1, color=color, label=name)
        axis.axhline(100 / 3, color="gray", lw=0.8)
        axis.set(title=f"Keys after the third node joins, {hash}", xlabel="virtual nodes", ylabel="% of keys")
        axis.set_ylim(25, 42)
        axis.legend(frameon=False, ncols=3)
    for hash, style in zip(HASHES, ("o-", "s--"), strict=True):
        for target, color, numbers in zip(TARGETS, colors, zip(*enough[hash], strict=True), strict=False):
            label = f"{target - 1:.0%}, {hash}"
            axes[2].loglog(nodes, numbers, style, ms=3, lw=1, color=color, label=label)
    axes[2].set(title="Virtual nodes needed", xlabel="nodes", ylabel="virtual nodes per node")
    axes[2].set_xticks([2, 5, 10, 20, 50, 100], [2, 5, 10, 20, 50, 100])
    axes[2].set_xticks([], minor=True)
    axes[2].set_yticks([20, 50, 100, 200, 500, 1000, 2000], [20, 50, 100, 200, 500, "1,000", "2,000"])
    axes[2].set_yticks([], minor=True)
    axes[2].grid(lw=0.3)
    axes[2].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=100, help="the most to count virtual nodes for")
    parser.add_argument("--svg", default="virtual-nodes.svg", help="where to draw")
    args = parser.parse_args()
    console = Console(width=110)

    modulo, ring = ten_rows()
    console.print(
        f"10 rows on 3 nodes, a fourth joins: {modulo} rows move with modulo, {ring} on the ring.\n"
    )

    keys = np.arange(args.keys)
    table = Table("virtual nodes", title=f"Keys per node, {args.keys:,} keys, from 2 to 3 nodes")
    for hash in HASHES:
        for when in ("2 nodes", "3 nodes"):
            table.add_column(f"{hash}, {when}", justify="right")
    after: Rows = {hash: [] for hash in HASHES}
    for vnodes in VNODES:
        row = [rows_per_node(keys, vnodes, hash) for hash in HASHES]
        table.add_row(str(vnodes), *(str(numbers) for pair in row for numbers in pair))
        for hash, (_, numbers) in zip(HASHES, row, strict=True):
            after[hash].append(numbers)
    console.print(table)

    nodes = [n for n in NODES if n <= args.nodes]
    enough = {hash: [needed(n, hash) for n in nodes] for hash in HASHES}
    table = Table("nodes", title="Virtual nodes needed for the fullest node to be this near its share")
    for hash in HASHES:
        for target in TARGETS:
            table.add_column(f"{target - 1:.0%}, {hash}", justify="right")
    for n, *both in zip(nodes, *enough.values(), strict=True):
        table.add_row(str(n), *(f"{number:,}" for numbers in both for number in numbers))
    console.print(table)

    try:
        draw(args.svg, after, enough, nodes)
    except ImportError:
        console.print("No picture: it needs matplotlib (pip install 'chash-partition\\[viz]').")
    else:
        console.print(f"The picture is in {args.svg}.")


if __name__ == "__main__":
    main()
