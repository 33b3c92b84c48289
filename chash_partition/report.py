"""What a plan says to people: as text, and as HTML."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from html import escape
from math import ceil, floor
from textwrap import fill
from typing import TYPE_CHECKING

from chash_partition.goal import GAIN
from chash_partition.layout import count
from chash_partition.waves import busiest, most_at_a_node

if TYPE_CHECKING:
    from chash_partition.planner import RebalancePlan

__all__ = ["as_html", "as_text", "readable_bytes"]

MAX_ROWS = 16
BANDWIDTH = 100 * 2**20  # bytes a second: a node on a network of 1 Gbit


def as_text(plan: RebalancePlan) -> str:
    """The plan for `print`."""
    parts = [headline(plan), *(text_table(*table) for table in tables(plan)), *map(wrapped, remarks(plan))]
    return "\n\n".join(part for part in parts if part)


def as_html(plan: RebalancePlan) -> str:
    """The plan for a notebook."""
    parts = [
        paragraph(headline(plan)),
        *(html_table(*table) for table in tables(plan)),
        *map(paragraph, remarks(plan)),
    ]
    return "\n".join(parts)


def headline(plan: RebalancePlan) -> str:
    size = f" ({readable_bytes(plan.nbytes)})" if plan.nbytes else ""
    what = "of its share, in bytes" if by_bytes(plan) else "of its share"
    return (
        f"{len(plan.moves):,} of {count(plan.before.npartitions, 'partition')} move{size}; "
        f"{len(plan.before.nodes):,} -> {count(len(plan.after.nodes), 'node')}; "
        f"version {plan.before.version} -> {plan.after.version}.\n"
        f"Imbalance (the most that a node owns {what}): "
        f"{plan.imbalance_before:.3g} -> {plan.imbalance_after:.3g}."
    )


def tables(plan: RebalancePlan) -> list[tuple[list[str], list[list[str]], str]]:
    """Header, rows and a last line: of where moves go, and of what they make of each node."""
    sizes = plan.terms.sizes if by_bytes(plan) else None
    flows: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    gives: Counter[str] = Counter()
    takes: Counter[str] = Counter()
    for move in plan.moves:
        amount = sizes[move.partition] if sizes else 1
        flows[move.source, move.target] += 1
        nbytes[move.source, move.target] += move.nbytes
        gives[move.source] += amount
        takes[move.target] += amount
    weights, loads = plan.after.weights, plan.loads
    gone = {**dict.fromkeys(plan.leaving, "leaves"), **dict.fromkeys(plan.terms.draining, "drains")}
    joins = {name: "joins " for name in weights if name not in plan.before.weights}
    busiest_first = sorted(loads, key=lambda name: (-gives[name] - takes[name], name))
    show_amount = readable_bytes if sizes else "{:,}".format
    nodes = []
    for name in sorted(busiest_first[:MAX_ROWS]):
        old, new, share = loads[name]
        nodes.append(
            [
                show(name),
                gone.get(name) or joins.get(name, "") + decimal(weights[name])
                if name in weights
                else "leaves",
                readable_bytes(round(share)) if sizes else f"{float(share):,.2f}",
                *map(show_amount, (old, old - gives[name], takes[name], new)),
            ]
        )
    old, new = (
        sum(held) for held in zip(*((load.before, load.after) for load in loads.values()), strict=True)
    )
    share = sum((load.share for load in loads.values()), Fraction(0))
    come = sum(takes.values())
    nodes.append(
        [
            "total",
            "",
            readable_bytes(round(share)) if sizes else f"{float(share):,.2f}",
            *map(show_amount, (old, old - come, come, new)),
        ]
    )
    moves = [
        [
            show(source),
            show(target),
            f"{n:,}",
            *([readable_bytes(nbytes[source, target])] if plan.nbytes else []),
        ]
        for (source, target), n in sorted(flows.items(), key=by_count)[:MAX_ROWS]
    ]
    header = ["from", "to", "partitions", *(["bytes"] if plan.nbytes else [])]
    found = [
        (header, moves, more(len(flows), "pair")),
        (["node", "weight", "share", "owned", "stay", "come", "owns"], nodes, more(len(loads), "node")),
    ]
    return found if moves else found[1:]


def remarks(plan: RebalancePlan) -> list[str]:
    """Why no plan moves fewer, what was not possible, what had to be, how long it takes."""
    said = [balance(plan), between_old_nodes(plan), reason(plan), duration(plan)]
    return [text for text in said if text]


def by_bytes(plan: RebalancePlan) -> bool:
    """Whether bytes count and not partitions."""
    return plan.terms.counted is not None


def reason(plan: RebalancePlan) -> str:
    """Why no plan moves fewer, in numbers."""
    total, terms = plan.before.npartitions, plan.terms
    moving, later = len(plan.moves) + len(plan.rest), ""
    part = ""
    if plan.rest:
        size = f" ({readable_bytes(plan.cost)})" if by_bytes(plan) else ""
        part = f"This is a part of a plan; the whole plan moves {count(moving, 'partition')}{size}. "
        later = f", {len(plan.rest):,} of them later"
    if not moving:
        return "Nothing has to move."
    if terms.each is None and plan.before.placement != "ring":
        if plan.rest:
            goal = "that leaves nodes within the same limits"
        elif not nodes_outside(plan):
            goal = f"that brings every node within {float(terms.tolerance):.3g} of its share"
        elif limited(plan):
            goal = "that leaves nodes within these limits"
        else:
            goal = "with so low a largest load"
        which = "The whole" if plan.rest else "This"
        at = "exactly that" if plan.cost == plan.lower_bound else f"{plan.gap:.1%} more"
        return (
            f"{part}Why no fewer bytes: it is proved that no plan {goal} moves less than "
            f"{readable_bytes(plan.lower_bound)}: the partitions that cannot stay, what others must go to "
            f"make room for them, and what nodes lack. {which} plan moves {at}."
        )
    if plan.before.placement == "ring":
        return (
            f"{part}Why no fewer: with placement 'ring' a partition belongs to the node of the first token "
            "at or after its point. On the ring of the new nodes that is another node for "
            f"{moving:,} of {total:,}."
        )
    so = f"So at most {total - moving:,} of {total:,} can stay, and {moving:,} must move{later}."
    if terms.tolerance or terms.pinned or terms.draining or terms.banned or terms.capacities:
        near = f"to within {float(terms.tolerance):.3g} or " if terms.tolerance else ""
        limits = " and ".join(limited(plan)) if plan.rest or nodes_outside(plan) else ""
        asked = [
            f"own its share {near}rounded down or up{f', as far as {limits} allow,' if limits else ''}",
            *(["keep what is pinned"] if terms.pinned else []),
            *(["lose all else if it drains"] if terms.draining else []),
            *(["own nothing that is banned"] if terms.banned else []),
            *(["own no more than its capacity"] if terms.capacities else []),
        ]
        return (
            f"{part}Why no fewer: each node must {' and '.join(asked)}. It can keep no more than that allows "
            f"of what it owned. {so}"
        )
    weights = plan.active.values()
    unit = total / sum(weights)  # a Fraction, like the weights
    up = total - sum(int(unit * weight) for weight in weights)
    if up:
        quota = f"its share of the {total:,} partitions rounded down, and {up:,} of {len(weights):,} one more"
        first = ", and the one more goes first to nodes that owned more"
    else:
        quota, first = f"exactly its share of the {total:,} partitions", ""
    return (
        f"{part}Why no fewer: each node must own {quota}. "
        f"It can keep no more than that of what it owned{first}. {so}"
    )


def limited(plan: RebalancePlan) -> list[str]:
    """What can keep nodes from their shares."""
    terms = plan.terms
    asked = (("pins", terms.pinned), ("bans", terms.banned), ("capacities", terms.capacities))
    return [what for what, some in asked if some]


def nodes_outside(plan: RebalancePlan) -> list[str]:
    """Nodes that are not within the tolerance after the plan; those that drain or leave have no share."""
    t, each = plan.terms.tolerance, plan.terms.each
    unit = None if each is None else each or 1
    if unit and not t and not limited(plan):
        return []  # quotas, of which one may be a whole share and one

    def inside(share: Fraction, held: int) -> bool:
        if (1 - t) * share <= held <= (1 + t) * share:
            return True
        return unit is not None and floor(share / unit) <= held // unit <= ceil(share / unit)

    return [
        name
        for name, load in plan.loads.items()
        if name in plan.active and not inside(load.share, load.after)
    ]


def balance(plan: RebalancePlan) -> str:
    """That nodes are not within the tolerance, if so, and why."""
    terms = plan.terms
    if plan.before.placement == "ring" or plan.rest:
        return ""
    outside = nodes_outside(plan)
    if not outside:
        return ""
    shares = {name: plan.loads[name].share for name in plan.active}
    number = (
        f"{len(outside):,} of {count(len(shares), 'node')} {'is' if len(outside) == 1 else 'are'} outside"
    )
    limits = " and ".join(limited(plan))
    why = f"{number} the tolerance: {limits} keep nodes from their shares, and the others share the rest."
    if terms.each is not None:
        return why
    found = (
        f"{number}. The largest load, in shares, is as low as was found, to within {1 / GAIN:.1%}, and of "
        "such placements this one moves few bytes."
    )
    most = max(shares.values()) * (1 + terms.tolerance)
    pinned = set(terms.pinned)
    sizes = {p: size for p, size in enumerate(terms.sizes or ()) if p not in pinned}
    giant = max(sizes, key=sizes.__getitem__, default=-1)
    if giant >= 0 and sizes[giant] > most:
        return (
            f"No placement is within the tolerance: partition {giant} alone has "
            f"{readable_bytes(sizes[giant])}, and no node may own more than "
            f"{readable_bytes(int(most))}. {found} Pin it, and the other nodes share the rest."
        )
    if limits:
        return f"{why[:-1]}; or none was found within."
    return f"No placement within the tolerance of {float(terms.tolerance):.3g} was found. {found}"


def between_old_nodes(plan: RebalancePlan) -> str:
    """That partitions move between nodes that were there before and stay, if so, and why."""
    takes = set(plan.active)
    old = takes & set(plan.before.nodes)
    between = [move for move in plan.moves if move.source in old and move.target in old]
    if not between or plan.before.placement == "ring":
        return ""
    terms, before, after = plan.terms, plan.before.weights, plan.after.weights
    held = plan.before.counts()
    barred = {p for _, banned in terms.banned for p in banned}
    empty = {move.target for move in between if not held[move.target]}
    unit = plan.before.npartitions / sum(w for name, w in before.items() if name not in empty)
    why = [
        *(["sizes are not equal"] if terms.each is None else []),
        *(["weights change"] if any(before[name] != after[name] for name in old) else []),
        *(["weights are not equal"] if len({after[name] for name in takes}) > 1 else []),
        *(
            ["the layout was not balanced"]
            if any(abs(held[n] - unit * before[n]) >= 1 for n in before if n not in empty)
            else []
        ),
        *(["some of them owned nothing"] if empty else []),
        *(["some are banned"] if any(move.partition in barred for move in plan.moves) else []),
        *(["some are pinned"] if terms.pinned else []),
        *(["capacities are limited"] if any(name in old for name, _ in terms.capacities) else []),
    ]
    reasons = ", ".join(why)
    move = "moves" if len(between) == 1 else "move"
    return f"{count(len(between), 'partition')} {move} between nodes that stay: {reasons}."


def duration(plan: RebalancePlan) -> str:
    """In how many waves, and how long at least."""
    if not plan.moves:
        return ""
    waves = most_at_a_node(plan.moves)
    if plan.terms.capacities:
        text = f"At least {count(waves, 'wave')} if a node sends and receives one partition at a time"
    else:
        text = f"{count(waves, 'wave')} if a node sends and receives one partition at a time"
    if plan.nbytes:
        most = busiest(plan.moves)
        text += (
            f"; the busiest node sends or receives {readable_bytes(most)}, at {readable_bytes(BANDWIDTH)}/s "
            f"in {most / BANDWIDTH:,.3g} s"
        )
    return text + "."


def wrapped(text: str) -> str:
    return fill(text, 100)


def by_count(flow: tuple[tuple[str, str], int]) -> tuple[int, tuple[str, str]]:
    """Sort key: most partitions first, then by names."""
    return -flow[1], flow[0]


def decimal(weight: Fraction) -> str:
    """A weight in a table: exactly, if that is short."""
    exact = str(weight)
    return exact if len(exact) <= 12 else f"{float(weight):.6g}"


def show(name: str) -> str:
    """A node's name in a table, where an empty one or a line break would not be seen for what it is."""
    return name if name.strip() and name.isprintable() else repr(name)


def more(n: int, noun: str) -> str:
    return f"... and {count(n - MAX_ROWS, f'more {noun}')}" if n > MAX_ROWS else ""


def text_table(header: list[str], rows: list[list[str]], last: str) -> str:
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    justify = [str.ljust if title in ("from", "to", "node") else str.rjust for title in header]
    texts = [
        [just(cell, width) for just, cell, width in zip(justify, line, widths, strict=True)] for line in lines
    ]
    return "\n".join(["  ".join(cells) for cells in texts] + ([last] if last else []))


def html_table(header: list[str], rows: list[list[str]], last: str) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{paragraph(last)}"


def paragraph(text: str) -> str:
    return f"<p>{escape(text).replace(chr(10), '<br>')}</p>" if text else ""


def readable_bytes(n: int) -> str:
    power = min(max(n.bit_length() - 1, 0) // 10, 5)
    return f"{n / 1024**power:,.{min(power, 1)}f} {['B', 'kiB', 'MiB', 'GiB', 'TiB', 'PiB'][power]}"
