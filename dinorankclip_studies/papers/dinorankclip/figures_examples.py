"""Draws right and wrong answers of models: confusions and cases of the fine-grained probe, and retrieval.

Shapes: N images, K classes, T captions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw

from dinorankclip.evaluate.examples import picture_at
from dinorankclip.evaluate.probe import family_errors, family_of_class, linear_probe, probe_parts
from dinorankclip.evaluate.retrieval import ranks, right_items
from dinorankclip.evaluate.scores import EmbeddedSet
from dinorankclip.methods import LABEL
from dinorankclip.report.figures import BLACK, GREY, METHOD_COLOURS, RED, Drawn, Unavailable, new_figure, write_on_bar
from dinorankclip.report.pictures import FAINT, FRAME, INK, PLAIN, RIGHT, SIDE, WRONG, font, tile, write_lines
from dinorankclip_studies.material import StudyModels
from dinorankclip_studies.papers.dinorankclip.figures_orders import counts, summaries
from dinorankclip_studies.results import Results

CASES_SHOWN = 5  # images per outcome
SEED = 0

CONFUSIONS_CAPTION = (
    "Linear probe of the embedding on {name}: {classes} kinds in {families} families whose members differ in small "
    "parts. Each row is a kind, each column what it was taken for (share of its images; right answers left out); "
    "red boxes are families; seed 0. Right: the share of errors that stay inside the right family, over seeds "
    "({counts}) with 95 % t-intervals; the dashed line is what wrong answers drawn blindly would reach. Errors of "
    "{base}: {base_errors}, of {ours}: {our_errors}."
)
CASES_CAPTION = (
    "Fine-grained cases of {name}, drawn by a fixed seed: images that {ours} names rightly and {base} does not "
    "({won} in all), and the reverse ({lost} in all). Linear probe of the embedding, seed 0."
)


@dataclass(frozen=True)
class Probed:
    """Holds predictions of the fine-grained probe: family number of each class [K], `predicted` [N] by model title."""

    embedded: EmbeddedSet
    labels: np.ndarray
    families: np.ndarray
    predicted: dict[str, np.ndarray]


def probe_models(models: StudyModels, name: str, cells: Mapping[str, str]) -> Probed:
    """Probe the stored model of each cell."""
    sets = {title: models.embedded_set(cell, name) for cell, title in cells.items()}
    first = next(iter(sets.values()))
    names = first.benchmark.class_names
    if not first.benchmark.families:
        raise Unavailable(f"{name} has no families of classes")
    if "train" not in first.benchmark.splits:
        raise Unavailable(f"{name} has no training part to probe with")
    predicted = {}
    for title, embedded in sets.items():
        parts = *probe_parts(embedded, "embedding"), embedded.images(), embedded.labels()
        predicted[title] = linear_probe(*parts, len(names), label=f"{name}: {title}").predicted
    return Probed(first, first.labels(), family_of_class(names, first.benchmark.families), predicted)


def confusion_matrices(probed: Probed, results: Results, score: str, cells: Mapping[str, str]) -> Drawn:
    """Draw the confusion matrices of the probe, and bars of `score`, the share of errors inside the family, by cell."""
    base, *_, ours = probed.predicted
    order = np.argsort(probed.families, kind="stable")
    figure = new_figure(2.9)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.72))
    tables = {title: _confusions(probed, probed.predicted[title])[order][:, order] for title in (base, ours)}
    highest = max(float(table.max()) for table in tables.values())
    for axes, (title, table) in zip((left, middle), tables.items()):
        drawn = axes.imshow(table, cmap="Greys", norm=PowerNorm(0.5, 0, highest), interpolation="nearest")
        _families(axes, probed, named=axes is left)
        axes.set(title=title, xlabel="taken for")
    left.set_ylabel("family")
    figure.colorbar(drawn, ax=middle, shrink=0.62, pad=0.03)
    errors = {
        title: family_errors(predicted, probed.labels, probed.families) for title, predicted in probed.predicted.items()
    }
    _shares(right, results, score, cells, errors[base].chance)
    caption = CONFUSIONS_CAPTION.format(
        counts=counts(results, list(cells)), name=probed.embedded.name, classes=len(order),
        families=len(probed.embedded.benchmark.families), base=base, ours=ours,
        base_errors=_counted(errors[base].inside), our_errors=_counted(errors[ours].inside),
    )  # fmt: skip
    return Drawn("confusions", "Fine-grained confusions", caption, figure, vector=False)


def _counted(inside: np.ndarray) -> str:
    return f"{int(inside.sum())} inside the family, {int((~inside).sum())} outside"


def _confusions(probed: Probed, predicted: np.ndarray) -> np.ndarray:
    """Return [K, K]: the share of a class's images that are taken for another class; the diagonal is zero."""
    classes = len(probed.families)
    table = np.zeros((classes, classes))
    np.add.at(table, (probed.labels, predicted), 1.0)
    table /= np.maximum(1, table.sum(1, keepdims=True))
    np.fill_diagonal(table, 0.0)
    return table


def _families(axes: Axes, probed: Probed, named: bool) -> None:
    sizes = np.bincount(probed.families)
    ends = np.cumsum(sizes)
    for size, end in zip(sizes, ends):
        start = end - size - 0.5
        axes.add_patch(Rectangle((start, start), size, size, fill=False, edgecolor=RED, linewidth=0.9))
    axes.set_xticks([])
    names = list(probed.embedded.benchmark.families)
    there = len(names) if named else 0
    axes.set_yticks((ends - sizes / 2 - 0.5)[:there], names[:there], fontsize=6.6)
    axes.tick_params(length=0)


def _shares(axes: Axes, results: Results, score: str, cells: Mapping[str, str], chance: float) -> None:
    shares = summaries(results, list(cells), score)
    for at, (cell, share) in enumerate(zip(cells, shares)):
        if share is None:
            axes.text(at, 1, "not run", ha="center", va="bottom", color=GREY, fontsize=7.5)
            continue
        half = None if share.half is None else 100 * share.half
        colour = METHOD_COLOURS.get(cell, METHOD_COLOURS["rank"])
        axes.bar(at, 100 * share.mean, 0.6, color=colour, yerr=half, error_kw={"capsize": 3})
        write_on_bar(axes, at, 50 * share.mean, f"{100 * share.mean:.0f}", colour, fontsize=8.5)
    axes.axhline(100 * chance, color=BLACK, linewidth=1, linestyle="--")
    axes.set_xticks(range(len(cells)), cells.values(), fontsize=7.5)
    tops = [100 * (share.high or share.mean) for share in shares if share is not None]
    axes.set(ylim=(0, 1.2 * max(tops, default=100.0)), xlim=(-0.5, len(cells) - 0.4), box_aspect=1.35)
    axes.set_title("errors in family, %")


def fine_cases(probed: Probed) -> Drawn:
    """Draw images with the class that each model names."""
    base, *_, ours = probed.predicted
    right = {title: predicted == probed.labels for title, predicted in probed.predicted.items()}
    won, lost = np.flatnonzero(right[ours] & ~right[base]), np.flatnonzero(right[base] & ~right[ours])
    rng = np.random.default_rng(SEED)
    groups = {
        f"right with {ours}, wrong with {base}: {len(won)} images": rng.permutation(won)[:CASES_SHOWN],
        f"right with {base}, wrong with {ours}: {len(lost)} images": rng.permutation(lost)[:CASES_SHOWN],
    }
    caption = CASES_CAPTION.format(name=probed.embedded.name, base=base, ours=ours, won=len(won), lost=len(lost))
    return Drawn(
        "fine-cases", "Fine-grained cases", caption, _case_sheet(probed, groups), vector=False, shows_items=True
    )


def _case_sheet(probed: Probed, groups: Mapping[str, np.ndarray]) -> Image.Image:
    names = probed.embedded.benchmark.class_names
    cell, wide, margin = SIDE + 2 * FRAME, 172, 14
    lines = len(probed.predicted) + 1
    row = cell + 10 + 17 * lines + 10
    most = max(1, *(len(chosen) for chosen in groups.values()))
    sheet = Image.new("RGB", (2 * margin + most * wide, 2 * margin + len(groups) * (row + 30)), "white")
    pen = ImageDraw.Draw(sheet)
    top = margin
    for heading, chosen in groups.items():
        pen.text((margin, top), heading, fill=INK, font=font(15))
        for number, at in enumerate(chosen):
            left, below = margin + number * wide, top + 28
            sheet.paste(tile(picture_at(probed.embedded, int(at)), PLAIN), (left, below))
            below += cell + 6
            pen.text((left, below), f"{names[probed.labels[at]]}", fill=INK, font=font(13))
            for line, (title, predicted) in enumerate(probed.predicted.items(), start=1):
                colour = RIGHT if predicted[at] == probed.labels[at] else WRONG
                pen.text((left, below + 17 * line), f"{title}:", fill=FAINT, font=font(11))
                pen.text((left + 62, below + 17 * line), names[predicted[at]], fill=colour, font=font(12))
        top += row + 30
    return sheet


QUERIES_SHOWN = 4  # captions per outcome
NEAR = 10  # the paper counts captions whose image the baseline ranks among the first ten
_MARGIN, _GAP, _TEXT, _ROW_HEAD = 14, 10, 300, 34
_CELL = SIDE + 2 * FRAME

RETRIEVAL_CAPTION = (
    "Text → image on the {queries:,} test captions of {name}, seed 0. Against {base}, {ours} finds the right image "
    "first for {won} captions that {base} misses and misses {lost} that {base} finds; {both} are found by both, "
    "{neither} by neither. Of the {near} captions that {base} misses with the right image among its first {k}, "
    "{ours} finds {found} ({share:.0f} %); of the {near_back} that {ours} so misses, {base} finds {found_back} "
    "({share_back:.0f} %). The paper tells the first kind only, 42 of 50 ({label}: its pictures are "
    "stand-ins). Examples are drawn by a fixed seed, not chosen; green frames are right, red ones wrong, and the "
    "grey picture is the one that was meant."
)


@dataclass(frozen=True)
class Outcome:
    """Holds the rank, from 0, of each caption's best right image by two models; int64 [T] each."""

    base: np.ndarray
    ours: np.ndarray

    def queries(self, ours: bool, base: bool) -> np.ndarray:
        """Return the captions that each model answers rightly (True) or wrongly (False)."""
        return np.flatnonzero(((self.ours == 0) == ours) & ((self.base == 0) == base))

    def rescued(self, back: bool = False) -> tuple[int, int]:
        """Count the queries that the base misses narrowly (right image among the first ten), and those that ours then
        answers; `back`: the other way round."""
        missing, other = (self.ours, self.base) if back else (self.base, self.ours)
        narrow = (missing > 0) & (missing < NEAR)
        return int(narrow.sum()), int((narrow & (other == 0)).sum())


def won_and_lost(models: StudyModels, name: str, cells: Mapping[str, str]) -> Drawn:
    """Draw text → image retrieval of several models on queries that ours wins from the baseline or loses to it.
    `cells`: cell → title, from the baseline to ours; models between them are shown, too."""
    sets = {title: models.embedded_set(cell, name) for cell, title in cells.items()}
    captions = next(iter(sets.values())).captions()
    texts, right = right_items(captions)
    places = {
        title: ranks(embedded.texts(texts), embedded.images(), right.images).numpy() for title, embedded in sets.items()
    }
    base, *_, ours = sets
    outcome = Outcome(places[base], places[ours])
    image_of = np.repeat(np.arange(len(captions)), [len(group) for group in captions])
    rng = np.random.default_rng(SEED)
    won, lost = outcome.queries(ours=True, base=False), outcome.queries(ours=False, base=True)
    both, neither = (len(outcome.queries(right, right)) for right in (True, False))
    chosen = {
        f"{word} by {ours} against {base}: {len(queries)} captions": rng.permutation(queries)[:QUERIES_SHOWN].tolist()
        for word, queries in (("won", won), ("lost", lost))
    }
    picture = _retrieval_sheet(sets, texts, image_of, places, chosen)
    near, answered = outcome.rescued()
    near_back, answered_back = outcome.rescued(back=True)
    caption = RETRIEVAL_CAPTION.format(
        label=LABEL, queries=len(texts), name=name, base=base, ours=ours, won=len(won), lost=len(lost),
        both=both, neither=neither, k=NEAR, near=near, found=answered,
        share=100 * answered / max(1, near), near_back=near_back, found_back=answered_back,
        share_back=100 * answered_back / max(1, near_back),
    )  # fmt: skip
    return Drawn("retrieval", "Retrieval, won and lost", caption, picture, vector=False, shows_items=True)


def _retrieval_sheet(
    sets: Mapping[str, EmbeddedSet],
    texts: Sequence[str],
    image_of: np.ndarray,
    places: Mapping[str, np.ndarray],
    chosen: Mapping[str, Sequence[int]],
) -> Image.Image:
    """Draw a line for each query: its caption, the first image of each model, the image that was meant."""
    columns = [*sets, "meant"]
    row = _CELL + _GAP
    width = 2 * _MARGIN + _TEXT + len(columns) * (_CELL + _GAP)
    height = 2 * _MARGIN + sum(_ROW_HEAD + 20 + len(queries) * row for queries in chosen.values())
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    top = _MARGIN
    for heading, queries in chosen.items():
        pen.text((_MARGIN, top), heading, fill=INK, font=font(15))
        top += _ROW_HEAD - 8
        for column, title in enumerate(columns):
            left = _MARGIN + _TEXT + column * (_CELL + _GAP)
            pen.text((left + _CELL / 2, top), title, fill=FAINT, font=font(12), anchor="ma")
        top += 20
        for query in queries:
            write_lines(pen, (_MARGIN, top + 4), texts[query], 42, 5, size=13)
            left = _MARGIN + _TEXT
            for title, embedded in sets.items():
                first = int((embedded.images() @ embedded.texts(texts)[query]).argmax())
                colour = RIGHT if places[title][query] == 0 else WRONG
                sheet.paste(tile(picture_at(embedded, first), colour), (left, top))
                left += _CELL + _GAP
            meant = picture_at(next(iter(sets.values())), int(image_of[query]))
            sheet.paste(tile(meant, PLAIN), (left, top))
            top += row
        top += 8
    return sheet
