"""Draws a scene as a picture, plain or in another rendition. A picture is drawn four times too large and reduced.

A rendition chooses colours and outlines, and may rework the picture:

plain        flat colours with dark outlines, on a background
sketch       pencil on paper: no colours, no background
night        hardly any light, blue and low in contrast
mosaic       small square tiles with joints between them
watercolour  pale washes without dark outlines, running into each other on rough paper
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from dinorankclip.data.scenes.composition import carried
from dinorankclip.data.scenes.drawing import COLOURS, MATERIALS, Paint, Pen, Rgb, brightness, deep, mix, outline, tones
from dinorankclip.data.scenes.kinds import KINDS
from dinorankclip.data.scenes.scene import Chance, Scene, Thing
from dinorankclip.data.scenes.subjects import BACKGROUNDS, GROUND

PAPER: Rgb = (246, 243, 234)
GRAPHITE: Rgb = (72, 70, 74)
TILE_SHARE = 0.045  # side of a mosaic tile as a share of the picture
OVERSIZE = 4  # reduced again, so that edges are smooth
JPEG_QUALITY = 95
COLOUR_JITTER = 14  # a named colour is drawn up to this far (of 255) from its standard value
TILT = 6.0  # most degrees that a thing leans to either side


@dataclass(frozen=True)
class Rendition:
    """`part` maps name and usual colour of a part to its colour, `edge` to its outline. No `ground` means paper."""

    part: Callable[[str, Rgb], Rgb] = lambda name, colour: colour
    edge: Callable[[Rgb], Rgb] = outline
    ground: Callable[[Rgb], Rgb] | None = lambda colour: colour
    finish: Callable[[Image.Image, Chance], Image.Image] = lambda picture, chance: picture
    edge_scale: float = 1.0

    def paint(self, main: Rgb, pattern: str) -> Paint:
        """Return the colours for a thing of this colour and pattern."""
        fills, edges = _materials(self)
        own_fills = {name: self.part(name, colour) for name, colour in tones(main).items()}
        own_edges = {name: self.edge(colour) for name, colour in tones(main).items()}
        return Paint(fills | own_fills, pattern, edges | own_edges, self.edge_scale)


def _pencil(name: str, colour: Rgb) -> Rgb:
    if name == "second":
        return mix(PAPER, GRAPHITE, 0.5)
    if name == "deep" or (name not in ("main", "pale") and brightness(colour) < 110):
        return mix(PAPER, GRAPHITE, 0.35 if name == "deep" else 0.9)
    return PAPER


def _darken(picture: Image.Image, chance: Chance) -> Image.Image:
    level = chance.within(0.8, 1.1)
    table = [round(base + v * share * level) for base, share in ((6, 0.24), (10, 0.28), (26, 0.38)) for v in range(256)]
    return picture.point(table)


@lru_cache(maxsize=8)
def _joints(side: int, tile: int) -> Image.Image:
    """Return a white picture with grey lines where tiles meet, to be multiplied in."""
    mask = Image.new("RGB", (side, side), (255, 255, 255))
    draw = ImageDraw.Draw(mask)
    for at in range(0, side, tile):
        draw.line([(at, 0), (at, side)], fill=(196, 192, 188))
        draw.line([(0, at), (side, at)], fill=(196, 192, 188))
    return mask


def _lay_tiles(picture: Image.Image, chance: Chance) -> Image.Image:
    side = picture.width
    tile = max(2, round(TILE_SHARE * side))
    coarse = picture.reduce(tile)  # a partial tile at the rim counts as a tile
    tiled = coarse.resize((coarse.width * tile, coarse.height * tile), Image.Resampling.NEAREST)
    return ImageChops.multiply(tiled.crop((0, 0, side, side)), _joints(side, tile))


def _bleed(picture: Image.Image, chance: Chance) -> Image.Image:
    grain = Image.fromarray((215 + 40 * chance.random((24, 24))).astype("uint8"))
    grain = grain.resize(picture.size, Image.Resampling.BICUBIC)
    soft = picture.filter(ImageFilter.GaussianBlur(picture.width / 128))
    return ImageChops.multiply(soft, Image.merge("RGB", (grain, grain, grain)))


RENDITIONS: dict[str, Rendition] = {
    "plain": Rendition(),
    "sketch": Rendition(_pencil, lambda c: GRAPHITE, None, edge_scale=1.25),
    "night": Rendition(finish=_darken),
    "mosaic": Rendition(finish=_lay_tiles, edge_scale=1.4),
    "watercolour": Rendition(
        lambda name, c: mix(c, PAPER, 0.3), lambda c: mix(deep(c), PAPER, 0.2), lambda c: mix(c, PAPER, 0.65), _bleed
    ),
}


@lru_cache(maxsize=8)
def _materials(r: Rendition) -> tuple[dict[str, Rgb], dict[str, Rgb]]:
    """Return tones and outlines of fixed parts, which do not depend on the thing."""
    return {n: r.part(n, c) for n, c in MATERIALS.items()}, {n: r.edge(c) for n, c in MATERIALS.items()}


def render(scene: Scene, chance: Chance, size: int, rendition: str = "plain") -> Image.Image:
    """Draw a scene. Details that the scene does not state (tint, direction, tilt) are random."""
    style = RENDITIONS[rendition]
    canvas = Image.new("RGB", (size * OVERSIZE, size * OVERSIZE), PAPER)
    upright = carried(scene)
    # Details are drawn before the background, so that every rendition shows the same.
    looks = [_appearance(thing, chance, leaning=index not in upright) for index, thing in enumerate(scene.things)]
    _draw_background(canvas, scene.background, chance, style)
    for thing, look in zip(scene.things, looks):
        _draw_thing(canvas, thing, look, style)
    return style.finish(canvas.reduce(OVERSIZE), chance)


def jpeg(picture: Image.Image) -> bytes:
    """Encode without colour subsampling, which would smear parts that are a pixel wide."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def _draw_background(canvas: Image.Image, name: str, chance: Chance, style: Rendition) -> None:
    light = chance.within(0.93, 1.04)
    if style.ground is None:
        return
    lit = {tone: _clipped(v * light for v in colour) for tone, colour in GROUND.items()}
    paint = Paint({tone: style.ground(colour) for tone, colour in lit.items()})
    side = canvas.width
    BACKGROUNDS[name].draw(Pen(canvas, paint, (side / 2, side / 2), side), chance)


def _appearance(thing: Thing, chance: Chance, *, leaning: bool) -> tuple[Rgb, bool, float]:
    """Return tint, direction and tilt."""
    tilt = chance.within(-TILT, TILT)
    return _tinted(COLOURS[thing.colour], chance), chance.happens(0.5), tilt if leaning else 0.0


def _draw_thing(canvas: Image.Image, thing: Thing, look: tuple[Rgb, bool, float], style: Rendition) -> None:
    (main, mirror, tilt), kind, side = look, KINDS[thing.kind], canvas.width
    left, top, right, bottom = kind.bounds
    centre, scale = (thing.x * side, thing.y * side), thing.side * side / max(right - left, bottom - top)
    origin = ((left + right) / 2, (top + bottom) / 2)
    paint = style.paint(main, thing.pattern)
    kind.draw(Pen(canvas, paint, centre, scale, origin=origin, mirror=mirror, tilt=tilt))


def _tinted(colour: Rgb, chance: Chance) -> Rgb:
    """Return a colour close to `colour`: half the change is common to the channels (light), half not (hue)."""
    light = chance.within(-1, 1)
    return _clipped(v + COLOUR_JITTER * (light + chance.within(-1, 1)) / 2 for v in colour)


def _clipped(channels: Iterable[float]) -> Rgb:
    red, green, blue = (min(255, max(0, round(v))) for v in channels)
    return red, green, blue
