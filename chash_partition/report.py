"""What a plan says to people: as text, and as HTML."""

from __future__ import annotations

from collections import Counter
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING

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
    busiest_first = sorted(loads, key=lambda name: (-gives[name] - takes[name], name))
    show_amount = readable_bytes if sizes else "{:,}".format
    nodes = []
    for name in sorted(busiest_first[:MAX_ROWS]):
        old, new, share = loads[name]
        nodes.append(
            [
                show(name),
                gone.get(name, str(weights.get(name, "leaves"))),
                readable_bytes(round(share)) if sizes else f"{float(share):,.2f}",
                *map(show_amount, (old, old - gives[name], takes[name], new)),
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
    return plan.terms.sizes is not None and (plan.terms.each is None or plan.terms.each > 0)


def reason(plan: RebalancePlan) -> str:
    """Why no plan moves fewer, in numbers."""
    total, bound, each = plan.before.npartitions, plan.lower_bound, plan.terms.each
    if plan.rest:
        whole = count(len(plan.moves) + len(plan.rest), "partition")
        size = f" ({readable_bytes(plan.cost)})" if by_bytes(plan) else ""
        return f"This is a part of a plan; the whole plan moves {whole}{size}."
    if not plan.moves:
        return "Nothing has to move."
    if each is None and plan.before.placement != "ring":
        proof = (
            f"It is proved that no plan to such loads moves less than {readable_bytes(bound)}: the "
            "partitions that cannot stay, what others must go to make room for them, and what nodes lack."
        )
        at = "exactly that" if plan.cost == bound else f"{plan.gap:.1%} more"
        return f"Why no fewer bytes: {proof} This plan moves {at}."
    bound = len(plan.moves)
    if plan.before.placement == "ring":
        return (
            "Why no fewer: with placement 'ring' a partition belongs to the node of the first token at "
            "or after its point. On the ring of the new nodes that is another node for "
            f"{bound:,} of {total:,}."
        )
    terms = plan.terms
    if terms.tolerance or terms.pinned or terms.draining or terms.banned or terms.capacities:
        asked = [
            *([f"own its share to within {float(terms.tolerance):.3g}"] if terms.tolerance else []),
            *([] if terms.tolerance else ["own its share rounded down or up"]),
            *(["keep what is pinned"] if terms.pinned else []),
            *(["lose all else if it drains"] if terms.draining else []),
            *(["own nothing that is banned"] if terms.banned else []),
            *(["own no more than its capacity"] if terms.capacities else []),
        ]
        return (
            f"Why no fewer: each node must {', '.join(asked)}. It can keep no more than that allows of what "
            f"it owned. So at most {total - bound:,} of {total:,} can stay, and {bound:,} must move."
        )
    weights = plan.after.weights.values()
    unit = total / sum(weights)  # a Fraction, like the weights
    up = total - sum(int(unit * weight) for weight in weights)
    if up:
        quota = f"its share of the {total:,} partitions rounded down, and {up:,} of {len(weights):,} one more"
        first = ", and the one more goes first to nodes that owned more"
    else:
        quota, first = f"exactly its share of the {total:,} partitions", ""
    return (
        f"Why no fewer: each node must own {quota}. "
        f"It can keep no more than that of what it owned{first}. "
        f"So at most {total - bound:,} of {total:,} can stay, and {bound:,} must move."
    )


def balance(plan: RebalancePlan) -> str:
    """That no placement within the tolerance was found, if so."""
    terms = plan.terms
    if terms.each is not None or plan.before.placement == "ring" or plan.rest or not terms.sizes:
        return ""
    shares = {name: load.share for name, load in plan.loads.items() if load.share}
    t = terms.tolerance
    outside = [
        name
        for name, share in shares.items()
        if not (1 - t) * share <= plan.loads[name].after <= (1 + t) * share
    ]
    if not outside:
        return ""
    number = f"{count(len(outside), 'node')} of {len(shares):,} are outside"
    found = (
        f"{number}. The largest load, in shares, is as low as was found, and of such placements this "
        "one moves few bytes."
    )
    most = max(shares.values()) * (1 + t)
    pinned = set(terms.pinned)
    sizes = {p: size for p, size in enumerate(terms.sizes) if p not in pinned}
    giant = max(sizes, key=sizes.__getitem__, default=-1)
    if giant >= 0 and sizes[giant] > most:
        return (
            f"No placement is within the tolerance: partition {giant} alone has "
            f"{readable_bytes(sizes[giant])}, and no node may own more than "
            f"{readable_bytes(int(most))}. {found} Pin it, and the other nodes share the rest."
        )
    if terms.pinned or terms.capacities:
        return (
            f"{number} the tolerance: what is pinned, and capacities, set the shares of the others; or none "
            "was found within."
        )
    return f"No placement within the tolerance of {float(t):.3g} was found. {found}"


def between_old_nodes(plan: RebalancePlan) -> str:
    """That partitions move between nodes that were there before and stay, if so, and why."""
    takes = {n for n in plan.after.nodes if n not in plan.terms.draining and n not in plan.leaving}
    old = takes & set(plan.before.nodes)
    between = sum(move.source in old and move.target in old for move in plan.moves)
    if not between or plan.before.placement == "ring":
        return ""
    terms, before, after = plan.terms, plan.before.weights, plan.after.weights
    held = plan.before.counts()
    unit = plan.before.npartitions / sum(before.values())
    why = [
        *(["sizes are not equal"] if terms.each is None else []),
        *(["weights change"] if any(before[name] != after[name] for name in old) else []),
        *(["weights are not equal"] if len({after[name] for name in takes}) > 1 else []),
        *(
            ["the layout was not balanced"]
            if any(abs(held[n] - unit * before[n]) >= 1 for n in before)
            else []
        ),
        *(["some are banned"] if terms.banned else []),
        *(["some are pinned"] if terms.pinned else []),
        *(["capacities are limited"] if terms.capacities else []),
    ]
    reasons = ", ".join(why)
    return f"{count(between, 'partition')} move between nodes that stay: {reasons}."


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
