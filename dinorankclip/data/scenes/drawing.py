"""Defines colours, outlines and the pen that draws the parts of a thing in its unit square.

Every shape becomes a polygon or a thick line, so one affine map (place, side, mirror, tilt) places all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageChops, ImageDraw

Rgb = tuple[int, int, int]


def palette(text: str) -> dict[str, Rgb]:
    """Read colours given as "name #rrggbb name #rrggbb …"."""
    words = text.replace("#", "").split()
    colours = map(bytes.fromhex, words[1::2])
    return {name: (red, green, blue) for name, (red, green, blue) in zip(words[::2], colours)}


COLOURS = palette("""
    red #d02626      orange #f3861a   yellow #f8d830   green #3a9e42    blue #2e5cd0     purple #843eb2
    pink #f48eb8     brown #84522c    grey #8e9094     black #28282c    white #f6f6f2
""")
ANY = tuple(COLOURS)
FUR = ("brown", "black", "white", "grey", "orange")
FEATHERS = ("red", "blue", "yellow", "brown", "green", "grey", "white", "black")
BLOSSOM = ("red", "pink", "yellow", "white", "purple", "orange", "blue")

MATERIALS = palette("""
    ink #1e1e22      white #fafaf6    glass #badef0    metal #a8aeb6    rubber #303036   wood #a6703e
    leaf #48923e     gold #e4b43a     glow #ffee96     signal #de2c2c   beam #346aec     cream #f4e2bc
    dusk #5c4e46     rose #f4a0a0
""")


def brightness(colour: Rgb) -> float:
    """Return the perceived brightness, 0 to 255."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def mix(a: Rgb, b: Rgb, share: float) -> Rgb:
    """Mix `share` of b with the rest of a."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b))
    return red, green, blue


def deep(colour: Rgb) -> Rgb:
    """Return a darker tone, or a lighter tone of colours near black."""
    return mix(colour, (0, 0, 0), 0.32) if brightness(colour) > 60 else mix(colour, (255, 255, 255), 0.22)


def pale(colour: Rgb) -> Rgb:
    return mix(colour, (255, 255, 255), 0.5) if brightness(colour) < 225 else mix(colour, (120, 130, 150), 0.2)


def contrast(colour: Rgb) -> Rgb:
    """Return the second colour of a pattern: the same hue, far away in brightness."""
    if brightness(colour) > 135:
        return mix(colour, (20, 10, 20), 0.62)
    return mix(colour, (255, 255, 255), 0.72)


def tones(main: Rgb) -> dict[str, Rgb]:
    """Return the colours of a thing by tone; "second" is the colour of its pattern."""
    return {"main": main, "deep": deep(main), "pale": pale(main), "second": contrast(main)}


def outline(colour: Rgb) -> Rgb:
    """Return a dark outline for light parts, and a lighter outline for dark parts, which must show on a night sky."""
    return mix(colour, (16, 12, 16), 0.72) if brightness(colour) > 60 else mix(colour, (255, 255, 255), 0.35)


# --- shapes

Point = tuple[float, float]

EDGE = 0.022  # outline width as a share of a thing's side …
LEAST_EDGE = 0.012  # … and at least this share of the canvas: three quarters of a pixel of a 64-pixel picture
LEAST_LINE = 0.010
PERIODS = {"striped": 0.17, "spotted": 0.24, "checkered": 0.24}  # period of a pattern, as a share of a thing's side …
LEAST_PERIOD = 0.05  # … and at least this share of the canvas; a finer pattern would vanish in the reduction


@lru_cache(maxsize=256)
def circle_points(start: float, end: float) -> tuple[Point, ...]:
    """Return points along the unit circle, degrees clockwise from three o'clock (y points down)."""
    steps = max(4, int(abs(end - start) / 18))
    angles = (math.radians(start + (end - start) * k / steps) for k in range(steps + 1))
    return tuple((math.cos(a), math.sin(a)) for a in angles)


def oval_points(cx: float, cy: float, rx: float, ry: float, start: float = 0, end: float = 360) -> list[Point]:
    """Return points along an ellipse."""
    return [(cx + rx * cos, cy + ry * sin) for cos, sin in circle_points(start, end)]


@lru_cache(maxsize=1024)
def smooth_points(points: tuple[Point, ...], steps: int = 5) -> tuple[Point, ...]:
    """Return a closed Catmull–Rom curve through the points."""
    n = len(points)
    curve = []
    for i in range(n):
        p0, p1, p2, p3 = (points[(i + k - 1) % n] for k in range(4))
        for s in range(steps):
            t = s / steps
            weights = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)
            x, y = (sum(w * p[axis] for w, p in zip(weights, (p0, p1, p2, p3))) / 2 for axis in (0, 1))
            curve.append((x, y))
    return tuple(curve)


def on_side(side: int, *points: Point) -> list[Point]:
    """Return points given as (distance from the middle, y), on the left (-1) or right (1)."""
    return [(0.5 + side * distance, y) for distance, y in points]


def mirrored(*half: Point) -> list[Point]:
    """Return a symmetric outline: the points of one side, then their mirror images in reverse order."""
    return [*half, *((round(1 - x, 4), y) for x, y in reversed(half) if x != 0.5)]


@lru_cache(maxsize=256)
def pattern_mask(pattern: str, period: int, side: int) -> Image.Image:
    """Return a mask of the second colour of a pattern, over a whole canvas."""
    mask = Image.new("1", (side, side))
    draw = ImageDraw.Draw(mask)
    half = period // 2
    if pattern == "striped":  # leaning, so that no edge of a box is parallel to the stripes
        rise = side // 2
        for y in range(0, side + rise, period):
            draw.polygon([(0, y), (side, y - rise), (side, y - rise + half), (0, y + half)], fill=1)
        return mask
    for row, y in enumerate(range(-period, side, half)):
        for x in range(-period + (row % 2) * half, side, period):
            if pattern == "spotted":
                draw.ellipse((x, y, x + 0.5 * period, y + 0.5 * period), fill=1)
            else:
                draw.rectangle((x, y, x + half - 1, y + half - 1), fill=1)
    return mask


@dataclass(frozen=True)
class Paint:
    """Holds the colours of a pen by tone or material. `edges` is None for a pen without outlines."""

    tones: dict[str, Rgb]
    pattern: str = "plain"
    edges: dict[str, Rgb] | None = None
    edge_scale: float = 1.0


class Pen:
    """Draws one thing. All shapes take unit-square coordinates, x to the right and y down.

    `fill` is a tone ("main", "deep", "pale") or a material. `ovals`, `boxes` and `lines` draw several shapes alike.
    """

    def __init__(
        self,
        canvas: Image.Image,
        paint: Paint,
        centre: Point,
        scale: float,
        *,
        origin: Point = (0.5, 0.5),
        mirror: bool = False,
        tilt: float = 0.0,
    ) -> None:
        """Map the unit-square point `origin` to the canvas pixel `centre`; a unit is `scale` pixels."""
        self.canvas, self.paint, self.scale = canvas, paint, scale
        self._draw = ImageDraw.Draw(canvas)
        cos, sin = scale * math.cos(math.radians(tilt)), scale * math.sin(math.radians(tilt))
        sign = -1.0 if mirror else 1.0
        self._map = (sign * cos, -sin, sign * sin, cos)
        self._shift = (
            centre[0] - self._map[0] * origin[0] - self._map[1] * origin[1],
            centre[1] - self._map[2] * origin[0] - self._map[3] * origin[1],
        )
        self._edge_width = round(max(LEAST_EDGE * canvas.width, EDGE * scale) * paint.edge_scale)

    def poly(self, points: Sequence[Point], fill: str = "main", *, edge: bool = True) -> None:
        """Draw a filled polygon, with the pattern of the thing if `fill` is "main"."""
        outline = self._place(points)
        self._draw.polygon(outline, fill=self.paint.tones[fill])
        if fill == "main" and self.paint.pattern != "plain":
            self._lay_pattern(outline)
        if edge and self.paint.edges is not None:
            self._draw.line([*outline, outline[0]], fill=self.paint.edges[fill], width=self._edge_width)

    def blob(self, points: Sequence[Point], fill: str = "main", *, edge: bool = True) -> None:
        """Draw a smooth closed shape through the points."""
        self.poly(smooth_points(tuple(points)), fill, edge=edge)

    def oval(self, cx: float, cy: float, rx: float, ry: float, fill: str = "main", *, edge: bool = True) -> None:
        self.poly(oval_points(cx, cy, rx, ry), fill, edge=edge)

    def ovals(self, fill: str, *ovals: tuple[float, float, float, float], edge: bool = True) -> None:
        for oval in ovals:
            self.oval(*oval, fill, edge=edge)

    def slice(self, cx: float, cy: float, rx: float, ry: float, start: float, end: float, fill: str = "main") -> None:
        """Draw the part of an oval between two angles (degrees clockwise from three o'clock), cut straight."""
        self.poly(oval_points(cx, cy, rx, ry, start, end), fill)

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: str = "main", *, edge: bool = True) -> None:
        self.poly(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), fill, edge=edge)

    def boxes(self, fill: str, *boxes: tuple[float, float, float, float], edge: bool = True) -> None:
        for box in boxes:
            self.box(*box, fill, edge=edge)

    def line(self, points: Sequence[Point], width: float, fill: str = "ink", *, edge: bool = False) -> None:
        """Draw a thick line with round corners, outlined like a filled part if `edge`."""
        pixels = max(LEAST_LINE * self.canvas.width, width * self.scale)
        path = self._place(points)
        if edge and self.paint.edges is not None:
            self._stroke(path, pixels + 2 * self._edge_width, self.paint.edges[fill])
        self._stroke(path, pixels, self.paint.tones[fill])

    def lines(self, width: float, fill: str, *paths: Sequence[Point], edge: bool = False) -> None:
        for points in paths:
            self.line(points, width, fill, edge=edge)

    def arc(self, *oval: float, width: float, fill: str = "ink", edge: bool = False) -> None:
        """Draw a thick line along an oval, given as for `slice`."""
        self.line(oval_points(*oval), width, fill, edge=edge)

    def _place(self, points: Sequence[Point]) -> list[Point]:
        (a, b, c, d), (e, f) = self._map, self._shift
        return [(a * x + b * y + e, c * x + d * y + f) for x, y in points]

    def _stroke(self, path: list[Point], pixels: float, colour: Rgb) -> None:
        self._draw.line(path, fill=colour, width=round(pixels), joint="curve")
        radius = pixels / 2 - 0.5
        if radius > 1.5:  # round ends, which are invisible on thinner lines
            for x, y in (path[0], path[-1]):
                self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def _lay_pattern(self, outline: list[Point]) -> None:
        side = self.canvas.width
        # In steps of 4 pixels, so that few masks serve all sizes.
        period = 4 * round(max(LEAST_PERIOD * side, PERIODS[self.paint.pattern] * self.scale) / 4)
        xs, ys = [x for x, _ in outline], [y for _, y in outline]
        left, top = max(0, int(min(xs))), max(0, int(min(ys)))
        right, bottom = min(side, int(max(xs)) + 1), min(side, int(max(ys)) + 1)
        if right <= left or bottom <= top:
            return
        inside = Image.new("1", (right - left, bottom - top))
        ImageDraw.Draw(inside).polygon([(x - left, y - top) for x, y in outline], fill=1)
        tile = pattern_mask(self.paint.pattern, period, side).crop((left, top, right, bottom))
        self.canvas.paste(self.paint.tones["second"], (left, top, right, bottom), ImageChops.logical_and(inside, tile))


class Ruler(Pen):
    """Measures how far a drawing reaches in the unit square, without drawing."""

    def __init__(self) -> None:
        self.left = self.top = math.inf
        self.right = self.bottom = -math.inf

    def poly(self, points: Sequence[Point], fill: str = "main", *, edge: bool = True) -> None:
        self._note(points, 0.0)

    def line(self, points: Sequence[Point], width: float, fill: str = "ink", *, edge: bool = False) -> None:
        self._note(points, width / 2)

    def _note(self, points: Sequence[Point], margin: float) -> None:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self.left, self.right = min(self.left, min(xs) - margin), max(self.right, max(xs) + margin)
        self.top, self.bottom = min(self.top, min(ys) - margin), max(self.bottom, max(ys) + margin)
