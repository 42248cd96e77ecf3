"""Text → image retrieval of several models on the same queries: what one wins of another, what it loses, with examples.

Shapes: T captions, N images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from dinorankclip.paper import LABEL
from dinorankclip.scoring.pictures import picture_at
from dinorankclip.scoring.retrieval import ranks
from dinorankclip.scoring.right_items import right_items
from dinorankclip.scoring.seen import SeenSet
from dinorankclip.writeup.figures.drawn import Drawn
from dinorankclip.writeup.kept_models import KeptModels
from dinorankclip.writeup.tiles import FAINT, FRAME, INK, PLAIN, RIGHT, SIDE, WRONG, font, tile, write_lines

EXAMPLES = 4  # of each outcome
NEAR = 10  # the paper asks about captions whose image the baseline has among its first ten
SEED = 0
_MARGIN, _GAP, _TEXT, _ROW_HEAD = 14, 10, 300, 34
_CELL = SIDE + 2 * FRAME

CAPTION = (
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
    """Places of each caption's best right image, from 0, by two models. int64 [T] each."""

    base: np.ndarray
    ours: np.ndarray

    @property
    def won(self) -> np.ndarray:
        return np.flatnonzero((self.ours == 0) & (self.base > 0))

    @property
    def lost(self) -> np.ndarray:
        return np.flatnonzero((self.ours > 0) & (self.base == 0))

    @property
    def both(self) -> int:
        return int(((self.ours == 0) & (self.base == 0)).sum())

    @property
    def neither(self) -> int:
        return int(((self.ours > 0) & (self.base > 0)).sum())

    def rescued(self, back: bool = False) -> tuple[int, int]:
        """Queries that the base misses narrowly (right one among the first ten), and how many of them ours answers;
        `back`: the other way round."""
        one, other = (self.ours, self.base) if back else (self.base, self.ours)
        narrow = (one > 0) & (one < NEAR)
        return int(narrow.sum()), int((narrow & (other == 0)).sum())


def won_and_lost(models: KeptModels, name: str, cells: Mapping[str, str]) -> Drawn:
    """`cells`: cell → title, from the baseline to ours; those between are shown beside them."""
    seen = {title: models.seen(cell, name) for cell, title in cells.items()}
    captions = next(iter(seen.values())).captions()
    texts, right = right_items(captions)
    places = {title: ranks(one.texts(texts), one.images(), right.images).numpy() for title, one in seen.items()}
    base, *_, ours = seen
    outcome = Outcome(places[base], places[ours])
    image_of = np.repeat(np.arange(len(captions)), [len(group) for group in captions])
    rng = np.random.default_rng(SEED)
    chosen = {
        f"won by {ours} against {base}: {len(outcome.won)} captions": _some(outcome.won, rng),
        f"lost by {ours} against {base}: {len(outcome.lost)} captions": _some(outcome.lost, rng),
    }
    picture = _sheet(seen, texts, image_of, places, chosen)
    near, found = outcome.rescued()
    near_back, found_back = outcome.rescued(back=True)
    told = CAPTION.format(
        label=LABEL, queries=len(texts), name=name, base=base, ours=ours, won=len(outcome.won), lost=len(outcome.lost),
        both=outcome.both, neither=outcome.neither, k=NEAR, near=near, found=found, share=100 * found / max(1, near),
        near_back=near_back, found_back=found_back, share_back=100 * found_back / max(1, near_back),
    )  # fmt: skip
    return Drawn("retrieval", "Retrieval, won and lost", told, picture, vector=False, shows_items=True)


def _some(queries: np.ndarray, rng: np.random.Generator) -> list[int]:
    return rng.permutation(queries)[:EXAMPLES].tolist()


def _sheet(
    seen: Mapping[str, SeenSet],
    texts: Sequence[str],
    image_of: np.ndarray,
    places: Mapping[str, np.ndarray],
    chosen: Mapping[str, Sequence[int]],
) -> Image.Image:
    """A line a query: its caption, the first image of each model, the image that was meant."""
    columns = [*seen, "meant"]
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
            for title, one in seen.items():
                first = int((one.images() @ one.texts(texts)[query]).argmax())
                colour = RIGHT if places[title][query] == 0 else WRONG
                sheet.paste(tile(picture_at(one, first), colour), (left, top))
                left += _CELL + _GAP
            meant = picture_at(next(iter(seen.values())), int(image_of[query]))
            sheet.paste(tile(meant, PLAIN), (left, top))
            top += row
        top += 8
    return sheet
