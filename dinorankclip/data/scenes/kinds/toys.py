"""Toys and playthings."""

from __future__ import annotations

from ..kind import kind
from ..pen import Pen


@kind("ball", "toys", also=("beach ball",))
def ball(p: Pen) -> None:
    p.oval(0.5, 0.5, 0.45, 0.45)
    p.arc(0.5, 0.5, 0.2, 0.44, 90, 270, 0.035, "deep")
    p.arc(0.5, 0.5, 0.2, 0.44, -90, 90, 0.035, "deep")


@kind("balloon", "toys")
def balloon(p: Pen) -> None:
    p.line([(0.5, 0.66), (0.44, 0.76), (0.55, 0.86), (0.48, 0.98)], 0.025, "ink")
    p.poly([(0.5, 0.6), (0.57, 0.7), (0.43, 0.7)], "deep")
    p.blob([(0.5, 0.03), (0.72, 0.12), (0.76, 0.36), (0.5, 0.64), (0.24, 0.36), (0.28, 0.12)])
    p.oval(0.38, 0.22, 0.05, 0.08, "white", edge=False)


@kind("kite", "toys")
def kite(p: Pen) -> None:
    p.line([(0.5, 0.68), (0.4, 0.78), (0.54, 0.86), (0.42, 0.98)], 0.03, "ink")
    p.poly([(0.5, 0.02), (0.8, 0.3), (0.5, 0.7), (0.2, 0.3)])
    p.line([(0.5, 0.02), (0.5, 0.7)], 0.03, "deep")
    p.line([(0.2, 0.3), (0.8, 0.3)], 0.03, "deep")
    for x, y in ((0.44, 0.8), (0.48, 0.9)):
        p.poly([(x - 0.1, y - 0.05), (x + 0.1, y + 0.05), (x + 0.1, y - 0.05), (x - 0.1, y + 0.05)], "signal")


@kind("teddy bear", "toys", colours=("brown", "pink", "white", "blue", "yellow", "grey", "purple"))
def teddy_bear(p: Pen) -> None:
    for s in (-1, 1):
        p.oval(0.5 + s * 0.2, 0.12, 0.1, 0.1)
        p.oval(0.5 + s * 0.3, 0.6, 0.12, 0.09)
        p.oval(0.5 + s * 0.2, 0.88, 0.13, 0.1, "pale")
    p.oval(0.5, 0.68, 0.24, 0.26)
    p.oval(0.5, 0.27, 0.25, 0.22)
    p.oval(0.5, 0.34, 0.11, 0.09, "cream")
    p.oval(0.5, 0.31, 0.045, 0.035, "ink", edge=False)
    for x in (0.4, 0.6):
        p.oval(x, 0.23, 0.03, 0.035, "ink", edge=False)


@kind("robot", "toys")
def robot(p: Pen) -> None:
    p.line([(0.5, 0.16), (0.5, 0.04)], 0.035, "ink")
    p.oval(0.5, 0.04, 0.04, 0.04, "signal")
    p.box(0.3, 0.14, 0.7, 0.4)
    for x in (0.41, 0.59):
        p.oval(x, 0.24, 0.055, 0.055, "glow")
    p.line([(0.4, 0.34), (0.6, 0.34)], 0.035, "ink")
    for x in (0.1, 0.77):
        p.box(x, 0.46, x + 0.13, 0.76, "metal")
    for x in (0.3, 0.54):
        p.box(x, 0.78, x + 0.16, 0.97, "metal")
    p.box(0.24, 0.42, 0.76, 0.8)
    p.box(0.36, 0.5, 0.64, 0.64, "glass")


@kind("snowman", "toys", plural="snowmen", colours=("white", "blue", "pink", "yellow"), patterned=False)
def snowman(p: Pen) -> None:
    p.line([(0.36, 0.48), (0.08, 0.36)], 0.035, "dusk")
    p.line([(0.64, 0.48), (0.92, 0.36)], 0.035, "dusk")
    p.oval(0.5, 0.77, 0.26, 0.21)
    p.oval(0.5, 0.5, 0.2, 0.17)
    p.oval(0.5, 0.27, 0.15, 0.14)
    p.box(0.4, 0.0, 0.6, 0.14, "ink")
    p.box(0.32, 0.12, 0.68, 0.17, "ink")
    for x in (0.44, 0.56):
        p.oval(x, 0.24, 0.022, 0.026, "ink", edge=False)
    p.poly([(0.5, 0.27), (0.66, 0.31), (0.5, 0.33)], "signal")
    for y in (0.46, 0.55):
        p.oval(0.5, y, 0.025, 0.025, "ink", edge=False)


@kind("rocket", "toys", also=("toy rocket",))
def rocket(p: Pen) -> None:
    p.poly([(0.4, 0.82), (0.5, 1.0), (0.6, 0.82)], "glow")
    p.poly([(0.34, 0.56), (0.14, 0.86), (0.38, 0.8)], "deep")
    p.poly([(0.66, 0.56), (0.86, 0.86), (0.62, 0.8)], "deep")
    p.blob([(0.5, 0.0), (0.66, 0.26), (0.68, 0.6), (0.62, 0.84), (0.38, 0.84), (0.32, 0.6), (0.34, 0.26)])
    p.oval(0.5, 0.36, 0.09, 0.09, "glass")


@kind("gift box", "toys", plural="gift boxes", also=("present",), seat=0.22)
def gift_box(p: Pen) -> None:
    p.oval(0.36, 0.14, 0.13, 0.08, "white")
    p.oval(0.64, 0.14, 0.13, 0.08, "white")
    p.box(0.12, 0.36, 0.88, 0.95)
    p.box(0.06, 0.22, 0.94, 0.4)
    p.box(0.43, 0.22, 0.57, 0.95, "white", edge=False)


@kind("skateboard", "toys", seat=0.46)
def skateboard(p: Pen) -> None:
    for x in (0.24, 0.76):
        p.oval(x, 0.68, 0.1, 0.1, "white")
        p.oval(x, 0.68, 0.04, 0.04, "ink", edge=False)
    p.poly(
        [
            (0.0, 0.34), (0.14, 0.46), (0.86, 0.46), (1.0, 0.34),
            (0.98, 0.48), (0.88, 0.58), (0.12, 0.58), (0.02, 0.48),
        ],
    )
