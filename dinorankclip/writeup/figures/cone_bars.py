"""How far apart images and texts lie along the paper's four nodes, and what each step changes."""

from __future__ import annotations

from dinorankclip.study.effects import paired
from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.study.results import Results
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.seed_lines import counts, measured
from dinorankclip.writeup.figures.style import BLACK, GREY, OF_METHOD, new_figure, write_on_bar

NODES = {"clip": "CLIP", "rankclip": "RankCLIP", "rank-3": "order 3,\nno teacher", "full": "full"}
_COLOURS = (OF_METHOD["clip"], OF_METHOD["rankclip"], OF_METHOD["rank"], OF_METHOD["full"])

CAPTION = (
    "Cone separation: the angle between the mean image and the mean text embedding, 95 % t-intervals over "
    "the seeds that all nodes have ({counts}). "
    "Between bars: the change from one node to the next, paired by seed. Right: the paper's, on other data; it prints "
    "the changes between them as projections. A smaller angle is no better model by itself."
)


def cone_bars(results: Results, score: str) -> Drawn:
    """`score` is a `SET/cone separation`."""
    results = results.on_common_seeds(NODES)
    found = measured(results, list(NODES), score)
    if sum(one is not None for one in found) < 2:
        raise Unavailable("the cone separation bars need finished runs of at least two of the four nodes")
    figure = new_figure(3.2)
    ours, paper = figure.subplots(1, 2)
    tops = []
    for at, (one, colour) in enumerate(zip(found, _COLOURS)):
        if one is None:
            ours.text(at, 0, "not run", ha="center", va="bottom", color=GREY, fontsize=8)
            tops.append(0.0)
            continue
        half = one.half or 0.0
        ours.bar(at, one.mean, 0.62, color=colour, yerr=half or None, error_kw={"capsize": 3, "elinewidth": 1.2})
        write_on_bar(ours, at, one.mean / 2, f"{one.mean:.1f}°", colour)
        tops.append(one.mean + half)
    highest = max(tops)
    nodes = list(NODES)
    for at in range(1, len(nodes)):
        before, after = (results.values(node, score) for node in nodes[at - 1 : at + 1])
        if before.keys() & after.keys():
            change = paired(before, after)
            text = f"{change.mean:+.1f}°" + (f"\n± {change.half:.1f}" if change.half is not None else "")
            ours.text(at - 0.5, highest * 1.04, text, ha="center", va="bottom", fontsize=7.6, color=BLACK)
    ours.set_ylim(0, highest * 1.26)
    ours.set_title(f"measured, {score.split('/')[0]}")
    told = [PAPER["fig:cone"][node]["cone separation"] for node in NODES]
    paper.bar(range(4), told, 0.62, color="white", edgecolor=_COLOURS, hatch="///", linewidth=1.2)
    for at, value in enumerate(told):
        paper.text(at, value + 0.4, f"{value:.1f}°", ha="center", va="bottom", fontsize=8.5)
    paper.set_ylim(0, max(told) * 1.26)
    paper.set_title(LABEL)
    for axes in (ours, paper):
        axes.set_xticks(range(4), NODES.values())
        axes.set_ylabel("cone separation, degrees")
    return Drawn("cone-separation", "Modality gap, four nodes", CAPTION.format(counts=counts(results, nodes)), figure)
