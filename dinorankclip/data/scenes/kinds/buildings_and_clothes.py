"""Draws buildings and clothes.

House, church, barn and school share gabled walls and differ in roof and door. Tops share a trunk and differ in sleeves
and collar. Hats differ in the brim.
"""

from __future__ import annotations

from dinorankclip.data.scenes.drawing import Pen, on_side
from dinorankclip.data.scenes.subjects import kind


def gabled_walls(p: Pen) -> None:
    p.box(0.14, 0.52, 0.86, 0.95)
    p.poly([(0.06, 0.54), (0.5, 0.24), (0.94, 0.54)], "deep")


def door(p: Pen) -> None:
    p.box(0.41, 0.68, 0.59, 0.95, "wood")


def side_windows(p: Pen) -> None:
    p.boxes("glass", (0.2, 0.62, 0.34, 0.77), (0.66, 0.62, 0.8, 0.77))


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
    p.lines(0.04, "ink", [(0.5, 0.14), (0.5, -0.06)], [(0.43, 0.01), (0.57, 0.01)])
    p.box(0.38, 0.34, 0.62, 0.95)
    p.oval(0.5, 0.48, 0.06, 0.07, "glass")
    door(p)
    p.ovals("glass", (0.26, 0.7, 0.05, 0.09), (0.74, 0.7, 0.05, 0.09))


@kind("barn", "buildings", family="gabled houses")
def barn(p: Pen) -> None:
    gabled_walls(p)
    p.box(0.42, 0.36, 0.58, 0.49, "ink")
    p.box(0.3, 0.6, 0.7, 0.95, "white")
    p.lines(0.04, "deep", [(0.32, 0.62), (0.68, 0.93)], [(0.68, 0.62), (0.32, 0.93)])


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


# --- clothes


def trunk(p: Pen) -> None:
    p.poly([(0.3, 0.16), (0.7, 0.16), (0.72, 0.92), (0.28, 0.92)])


def long_sleeves(p: Pen) -> None:
    for s in (-1, 1):
        p.poly(on_side(s, (0.2, 0.16), (0.36, 0.3), (0.46, 0.8), (0.32, 0.84), (0.2, 0.42)))


@kind("T-shirt", "clothes", family="tops")
def t_shirt(p: Pen) -> None:
    for s in (-1, 1):
        p.poly(on_side(s, (0.2, 0.16), (0.46, 0.34), (0.36, 0.48), (0.2, 0.38)))
    trunk(p)
    p.slice(0.5, 0.16, 0.12, 0.11, 0, 180, "ink")


@kind("sweater", "clothes", family="tops", also=("jumper",))
def sweater(p: Pen) -> None:
    long_sleeves(p)
    trunk(p)
    p.boxes("deep", (0.28, 0.84, 0.72, 0.94), (0.39, 0.08, 0.61, 0.2))


@kind("tank top", "clothes", family="tops")
def tank_top(p: Pen) -> None:
    p.boxes("main", (0.31, 0.06, 0.4, 0.24), (0.6, 0.06, 0.69, 0.24))
    p.poly([(0.3, 0.24), (0.7, 0.24), (0.72, 0.92), (0.28, 0.92)])
    p.slice(0.5, 0.23, 0.11, 0.13, 0, 180, "ink")


@kind("jacket", "clothes", family="tops")
def jacket(p: Pen) -> None:
    long_sleeves(p)
    trunk(p)
    p.poly([(0.36, 0.14), (0.64, 0.14), (0.5, 0.44)], "white")
    p.line([(0.5, 0.44), (0.5, 0.9)], 0.035, "ink")
    p.ovals("gold", (0.57, 0.56, 0.03, 0.03), (0.57, 0.7, 0.03, 0.03), edge=False)


@kind("top hat", "clothes", family="hats", also=("cylinder hat",))
def top_hat(p: Pen) -> None:
    p.box(0.29, 0.14, 0.71, 0.74)
    p.box(0.29, 0.6, 0.71, 0.71, "pale")
    p.box(0.1, 0.72, 0.9, 0.81)


@kind("cowboy hat", "clothes", family="hats")
def cowboy_hat(p: Pen) -> None:
    p.blob([(0.28, 0.72), (0.32, 0.32), (0.42, 0.26), (0.5, 0.34), (0.58, 0.26), (0.68, 0.32), (0.72, 0.72)])
    p.box(0.29, 0.6, 0.71, 0.69, "deep")
    p.blob([(0.0, 0.52), (0.2, 0.68), (0.5, 0.7), (0.8, 0.68), (1.0, 0.52), (0.88, 0.76), (0.5, 0.84), (0.12, 0.76)])


@kind("baseball cap", "clothes", family="hats", also=("cap",))
def baseball_cap(p: Pen) -> None:
    p.slice(0.42, 0.72, 0.34, 0.46, 180, 360)
    p.oval(0.42, 0.26, 0.05, 0.03, "deep")
    p.blob([(0.4, 0.68), (0.74, 0.66), (1.0, 0.76), (0.96, 0.82), (0.7, 0.78), (0.4, 0.76)], "deep")


@kind("party hat", "clothes", family="hats")
def party_hat(p: Pen) -> None:
    p.poly([(0.5, 0.12), (0.76, 0.88), (0.24, 0.88)])
    p.oval(0.5, 0.12, 0.1, 0.09, "glow")
    p.line([(0.25, 0.87), (0.75, 0.87)], 0.05, "white")


@kind("pair of trousers", "clothes", plural="pairs of trousers", also=("pair of pants/pairs of pants",))
def trousers(p: Pen) -> None:
    p.poly([(0.3, 0.06), (0.7, 0.06), (0.8, 0.96), (0.58, 0.96), (0.5, 0.36), (0.42, 0.96), (0.2, 0.96)])
    p.box(0.3, 0.05, 0.7, 0.14, "deep")


@kind("dress", "clothes", plural="dresses", also=("gown",))
def dress(p: Pen) -> None:
    p.lines(0.05, "main", [(0.38, 0.2), (0.4, 0.04)], [(0.62, 0.2), (0.6, 0.04)], edge=True)
    p.poly([(0.34, 0.16), (0.66, 0.16), (0.6, 0.46), (0.86, 0.95), (0.14, 0.95), (0.4, 0.46)])
    p.box(0.38, 0.42, 0.62, 0.5, "deep")


@kind("boot", "clothes", also=("rubber boot",))
def boot(p: Pen) -> None:
    p.blob([(0.24, 0.06), (0.56, 0.06), (0.56, 0.5), (0.64, 0.6), (0.9, 0.68), (0.92, 0.86), (0.24, 0.86)])
    p.box(0.22, 0.84, 0.94, 0.94, "ink")
    p.box(0.22, 0.04, 0.58, 0.15, "deep")


@kind("sock", "clothes")
def sock(p: Pen) -> None:
    leg = [(0.32, 0.08), (0.64, 0.08), (0.64, 0.52), (0.82, 0.68)]
    foot = [(0.84, 0.86), (0.66, 0.94), (0.42, 0.82), (0.32, 0.6)]
    p.blob(leg + foot)
    p.box(0.3, 0.05, 0.66, 0.18, "white")
    p.blob([(0.68, 0.9), (0.72, 0.72), (0.84, 0.7), (0.86, 0.84), (0.78, 0.94)], "white")
