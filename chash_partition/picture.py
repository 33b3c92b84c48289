"""A plan as a picture: nodes as bars before and after, moves as bands between them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chash_partition.report import readable_bytes, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from chash_partition.planner import RebalancePlan

__all__ = ["draw"]

BAR = 0.12  # of the width


def draw(plan: RebalancePlan, ax: Axes | None = None) -> Axes:
    """The plan on Axes; see `RebalancePlan.plot`."""
    try:
        from matplotlib import colormaps
        from matplotlib import pyplot as plt
        from matplotlib.patches import PathPatch, Rectangle
        from matplotlib.path import Path
    except ImportError as error:
        raise ImportError("plan.plot() needs matplotlib: pip install 'chash-partition[viz]'") from error
    sizes = plan.terms.sizes if plan.terms.sizes and any(plan.terms.sizes) else None
    loads = plan.loads
    total = sum(load.before for load in loads.values())
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 1.5 + 0.4 * min(len(loads), 40)), layout="constrained")
    gap = 0.4 * total / len(loads)
    height = sum(max(load.before, load.after) + gap for load in loads.values())
    palette = colormaps["tab20"]
    colour = {name: palette(i % 20) for i, name in enumerate(loads)}
    # Where each node's bar begins, on the left and on the right, from the top.
    top = [{}, {}]  # type: list[dict[str, float]]
    for side in (0, 1):
        y = height
        for name, load in loads.items():
            held = (load.before, load.after)
            top[side][name] = y
            # The bars of a node are at the same height on both sides.
            ax.add_patch(
                Rectangle(
                    (side * (1 - BAR), y - held[side]),
                    BAR,
                    held[side],
                    facecolor=colour[name],
                    edgecolor="white",
                )
            )
            y -= max(held) + gap
            shown = readable_bytes(held[side]) if sizes else f"{held[side]:,}"
            ax.text(
                -0.02 if side == 0 else 1.02, top[side][name], f"{show(name)}  {shown}",
                ha="right" if side == 0 else "left", va="top", fontsize=8, parse_math=False,
            )  # fmt: skip
    flows: Counter[tuple[str, str]] = Counter()
    stay = {name: load.before for name, load in loads.items()}
    for move in plan.moves:
        amount = sizes[move.partition] if sizes else 1
        flows[move.source, move.target] += amount
        stay[move.source] -= amount

    def band(source: str, target: str, amount: int, alpha: float) -> None:
        left, right = top[0][source], top[1][target]
        top[0][source] -= amount
        top[1][target] -= amount
        a, b, m = BAR, 1 - BAR, 0.5
        corners = [
            (a, left), (m, left), (m, right), (b, right),
            (b, right - amount), (m, right - amount), (m, left - amount), (a, left - amount), (a, left),
        ]  # fmt: skip
        curve = [Path.CURVE4] * 3
        codes = [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY]
        ax.add_patch(PathPatch(Path(corners, codes), facecolor=colour[source], alpha=alpha, linewidth=0))

    for name, amount in stay.items():
        if amount:
            band(name, name, amount, 0.15)
    for (source, target), amount in sorted(flows.items()):
        band(source, target, amount, 0.7)
    size = f" ({readable_bytes(plan.nbytes)})" if plan.nbytes else ""
    ax.set_title(
        f"{len(plan.moves):,} of {plan.before.npartitions:,} partitions move{size}; "
        f"imbalance {plan.imbalance_before:.3g} -> {plan.imbalance_after:.3g}",
        fontsize=10,
    )
    ax.set_xlim(-0.3, 1.3)
    ax.autoscale_view(scalex=False)
    ax.set_axis_off()
    return ax
