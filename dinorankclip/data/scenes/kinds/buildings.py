"""Buildings. House, church, barn and school share gabled walls; what sits on the roof and the door tell them apart."""

from __future__ import annotations

from ..kind import kind
from ..pen import Pen


def gabled_walls(p: Pen) -> None:
    p.box(0.14, 0.52, 0.86, 0.95)
    p.poly([(0.06, 0.54), (0.5, 0.24), (0.94, 0.54)], "deep")


def door(p: Pen) -> None:
    p.box(0.41, 0.68, 0.59, 0.95, "wood")


def side_windows(p: Pen) -> None:
    p.box(0.2, 0.62, 0.34, 0.77, "glass")
    p.box(0.66, 0.62, 0.8, 0.77, "glass")


@kind("house", "buildings", family="gabled houses", also=("cottage",))
def house(p: Pen) -> None:
    p.box(0.68, 0.18, 0.8, 0.44, "dusk")
    gabled_walls(p)
    door(p)
    side_windows(p)


@kind("church", "buildings", family="gabled houses", plural="churches", also=("chapel",))
def church(p: Pen) -> None:
    gabled_walls(p)
    p.poly([(0.36, 0.34), (0.5, 0.12), (0.64, 0.34)], "dusk")
    p.line([(0.5, 0.14), (0.5, -0.06)], 0.04, "ink")
    p.line([(0.43, 0.01), (0.57, 0.01)], 0.04, "ink")
    p.box(0.38, 0.34, 0.62, 0.95)
    p.oval(0.5, 0.48, 0.06, 0.07, "glass")
    door(p)
    p.oval(0.26, 0.7, 0.05, 0.09, "glass")
    p.oval(0.74, 0.7, 0.05, 0.09, "glass")


@kind("barn", "buildings", family="gabled houses")
def barn(p: Pen) -> None:
    gabled_walls(p)
    p.box(0.42, 0.36, 0.58, 0.49, "ink")
    p.box(0.3, 0.6, 0.7, 0.95, "white")
    p.line([(0.32, 0.62), (0.68, 0.93)], 0.04, "deep")
    p.line([(0.68, 0.62), (0.32, 0.93)], 0.04, "deep")


@kind("school", "buildings", family="gabled houses", also=("schoolhouse",))
def school(p: Pen) -> None:
    p.line([(0.5, 0.3), (0.5, 0.0)], 0.03, "ink")
    p.poly([(0.5, 0.0), (0.74, 0.06), (0.5, 0.13)], "signal")
    gabled_walls(p)
    p.oval(0.5, 0.42, 0.085, 0.085, "white")
    p.line([(0.5, 0.37), (0.5, 0.42), (0.54, 0.42)], 0.02, "ink")
    door(p)
    side_windows(p)


@kind("lighthouse", "buildings")
def lighthouse(p: Pen) -> None:
    p.poly([(0.36, 0.2), (0.5, 0.04), (0.64, 0.2)], "signal")
    p.box(0.39, 0.2, 0.61, 0.34, "glow")
    p.line([(0.33, 0.35), (0.67, 0.35)], 0.04, "ink")
    p.poly([(0.38, 0.37), (0.62, 0.37), (0.72, 0.96), (0.28, 0.96)])
    p.box(0.44, 0.8, 0.56, 0.96, "wood")
    p.box(0.46, 0.5, 0.54, 0.6, "ink", edge=False)


@kind("castle", "buildings")
def castle(p: Pen) -> None:
    p.box(0.24, 0.44, 0.76, 0.95)
    for k in range(3):
        p.box(0.3 + 0.15 * k, 0.36, 0.4 + 0.15 * k, 0.46)
    for x in (0.06, 0.7):
        p.box(x, 0.3, x + 0.24, 0.95)
        p.poly([(x - 0.03, 0.31), (x + 0.12, 0.06), (x + 0.27, 0.31)], "deep")
        p.box(x + 0.09, 0.42, x + 0.15, 0.56, "ink", edge=False)
    p.slice(0.5, 0.78, 0.12, 0.14, 180, 360, "dusk")
    p.box(0.38, 0.78, 0.62, 0.95, "dusk", edge=False)


@kind("tent", "buildings")
def tent(p: Pen) -> None:
    p.poly([(0.44, 0.14), (0.72, 0.14), (1.0, 0.86), (0.76, 0.86)], "deep")
    p.poly([(0.44, 0.14), (0.76, 0.86), (0.04, 0.86)])
    p.poly([(0.44, 0.36), (0.54, 0.86), (0.3, 0.86)], "ink")


@kind("skyscraper", "buildings", also=("office tower",), seat=0.08)
def skyscraper(p: Pen) -> None:
    p.box(0.26, 0.08, 0.74, 0.97)
    for row in range(6):
        for column in range(3):
            x, y = 0.32 + 0.13 * column, 0.14 + 0.125 * row
            p.box(x, y, x + 0.09, y + 0.075, "glow", edge=False)
    p.box(0.44, 0.88, 0.56, 0.97, "ink", edge=False)


@kind("windmill", "buildings")
def windmill(p: Pen) -> None:
    p.poly([(0.38, 0.4), (0.62, 0.4), (0.72, 0.97), (0.28, 0.97)])
    p.slice(0.5, 0.42, 0.15, 0.15, 180, 360, "deep")
    p.box(0.44, 0.82, 0.56, 0.97, "wood")
    for dx, dy in ((1, -0.75), (0.75, 1), (-1, 0.75), (-0.75, -1)):
        x, y = 0.5 + 0.36 * dx, 0.38 + 0.36 * dy
        p.poly([(0.5, 0.38), (x, y), (x - 0.13 * dy, y + 0.13 * dx)], "white")
    p.oval(0.5, 0.38, 0.04, 0.04, "ink", edge=False)
