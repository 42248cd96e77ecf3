"""A scene becomes a picture: drawn four times too large and reduced, so that edges are smooth."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image

from .backgrounds import BACKGROUNDS, GROUND
from .chance import Chance
from .colours import COLOURS, Rgb
from .kinds import KINDS
from .knobs import COLOUR_JITTER, TILT
from .pen import Paint, Pen
from .relations import carried
from .renditions import PAPER, RENDITIONS, Rendition
from .scene import Scene, Thing

OVERSIZE = 4
JPEG_QUALITY = 95


@dataclass(frozen=True)
class Look:
    """What a scene leaves open about a thing: the exact tint, which way it faces, how far it leans."""

    main: Rgb
    mirror: bool
    tilt: float


def render(scene: Scene, chance: Chance, size: int, rendition: str = "plain") -> Image.Image:
    """Draw a scene. What its description leaves open (tints, leaning, which way things face) is left to chance."""
    style = RENDITIONS[rendition]
    canvas = Image.new("RGB", (size * OVERSIZE, size * OVERSIZE), PAPER)
    upright = carried(scene)
    # Things draw their lots before the background does: every rendition shows them alike.
    looks = [_look(thing, chance, leaning=index not in upright) for index, thing in enumerate(scene.things)]
    _draw_background(canvas, scene.background, chance, style)
    for thing, look in zip(scene.things, looks):
        _draw_thing(canvas, thing, look, style)
    return style.finish(canvas.reduce(OVERSIZE), chance)


def jpeg(picture: Image.Image) -> bytes:
    """As stored: without colour subsampling, which would smear parts that are a pixel wide."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def _draw_background(canvas: Image.Image, name: str, chance: Chance, style: Rendition) -> None:
    light = chance.within(0.93, 1.04)
    if style.ground is None:
        return
    tones = {tone: style.ground(_lit(colour, light)) for tone, colour in GROUND.items()}
    side = canvas.width
    BACKGROUNDS[name].draw(Pen(canvas, Paint(tones), (side / 2, side / 2), side), chance)


def _lit(colour: Rgb, light: float) -> Rgb:
    red, green, blue = (min(255, round(v * light)) for v in colour)
    return red, green, blue


def _look(thing: Thing, chance: Chance, *, leaning: bool) -> Look:
    tilt = chance.within(-TILT, TILT)
    return Look(_tinted(COLOURS[thing.colour], chance), chance.happens(0.5), tilt if leaning else 0.0)


def _draw_thing(canvas: Image.Image, thing: Thing, look: Look, style: Rendition) -> None:
    kind, side = KINDS[thing.kind], canvas.width
    left, top, right, bottom = kind.bounds
    pen = Pen(
        canvas,
        style.paint(look.main, thing.pattern),
        (thing.x * side, thing.y * side),
        thing.side * side / max(right - left, bottom - top),
        origin=((left + right) / 2, (top + bottom) / 2),
        mirror=look.mirror,
        tilt=look.tilt,
    )
    kind.draw(pen)


def _tinted(colour: Rgb, chance: Chance) -> Rgb:
    """Close to the named colour: half the change is shared by the channels (light), half their own (hue)."""
    light = chance.within(-1, 1)
    red, green, blue = (
        min(255, max(0, round(v + COLOUR_JITTER * (light + chance.within(-1, 1)) / 2))) for v in colour
    )
    return red, green, blue
