"""Tools. Two families share a handle each and differ in what is fixed to its end."""

from __future__ import annotations

from ..kind import kind
from ..pen import Pen


def long_handle(p: Pen) -> None:
    p.line([(0.5, 0.04), (0.5, 0.72)], 0.07, "main", edge=True)


@kind("shovel", "tools", family="long tools", also=("spade",), patterned=False)
def shovel(p: Pen) -> None:
    long_handle(p)
    p.line([(0.38, 0.04), (0.62, 0.04)], 0.07, "main", edge=True)
    p.blob([(0.34, 0.62), (0.66, 0.62), (0.67, 0.8), (0.5, 1.0), (0.33, 0.8)], "metal")


@kind("rake", "tools", family="long tools", patterned=False)
def rake(p: Pen) -> None:
    long_handle(p)
    for k in range(5):
        x = 0.26 + 0.12 * k
        p.line([(x, 0.76), (x, 0.95)], 0.04, "metal", edge=True)
    p.line([(0.24, 0.75), (0.76, 0.75)], 0.06, "metal", edge=True)


@kind("broom", "tools", family="long tools", patterned=False)
def broom(p: Pen) -> None:
    long_handle(p)
    p.poly([(0.42, 0.66), (0.58, 0.66), (0.74, 0.98), (0.26, 0.98)], "gold")
    p.box(0.4, 0.62, 0.6, 0.7, "signal")
    for k in range(3):
        p.line([(0.47 + 0.03 * k, 0.74), (0.38 + 0.12 * k, 0.96)], 0.02, "dusk")


@kind("pitchfork", "tools", family="long tools", patterned=False)
def pitchfork(p: Pen) -> None:
    long_handle(p)
    p.arc(0.5, 0.72, 0.18, 0.1, 180, 360, 0.05, "metal", edge=True)
    for x in (0.32, 0.5, 0.68):
        p.line([(x, 0.7), (x, 0.98)], 0.05, "metal", edge=True)


def short_handle(p: Pen) -> None:
    p.line([(0.5, 0.26), (0.5, 0.92)], 0.11, "main", edge=True)


@kind("hammer", "tools", family="hand tools", patterned=False)
def hammer(p: Pen) -> None:
    short_handle(p)
    p.poly([(0.2, 0.12), (0.62, 0.12), (0.86, 0.26), (0.84, 0.34), (0.6, 0.26), (0.2, 0.3)], "metal")
    p.box(0.14, 0.09, 0.26, 0.33, "metal")


@kind("axe", "tools", family="hand tools", also=("hatchet",), patterned=False)
def axe(p: Pen) -> None:
    short_handle(p)
    p.line([(0.5, 0.1), (0.5, 0.3)], 0.11, "main", edge=True)
    p.blob([(0.54, 0.14), (0.72, 0.1), (0.9, 0.02), (0.96, 0.24), (0.9, 0.46), (0.72, 0.34), (0.54, 0.32)], "metal")


@kind("mallet", "tools", family="hand tools", patterned=False)
def mallet(p: Pen) -> None:
    short_handle(p)
    p.box(0.16, 0.06, 0.84, 0.36, "wood")
    p.line([(0.26, 0.08), (0.26, 0.34)], 0.025, "dusk")
    p.line([(0.74, 0.08), (0.74, 0.34)], 0.025, "dusk")


@kind("paintbrush", "tools", family="hand tools", plural="paintbrushes", also=("brush/brushes",), patterned=False)
def paintbrush(p: Pen) -> None:
    short_handle(p)
    p.box(0.3, 0.32, 0.7, 0.46, "metal")
    p.poly([(0.32, 0.32), (0.3, 0.12), (0.38, 0.04), (0.5, 0.08), (0.62, 0.02), (0.7, 0.12), (0.68, 0.32)], "cream")


@kind("saw", "tools", also=("handsaw",), patterned=False)
def saw(p: Pen) -> None:
    teeth = [(0.94 - 0.058 * k, 0.66 + 0.06 * (k % 2)) for k in range(11)]
    p.poly([(0.34, 0.36), (0.98, 0.5), (0.98, 0.64), *teeth, (0.34, 0.7)], "metal")
    p.blob([(0.04, 0.4), (0.2, 0.28), (0.38, 0.32), (0.4, 0.7), (0.24, 0.8), (0.06, 0.72)])
    p.oval(0.21, 0.54, 0.08, 0.13, "ink", edge=False)


@kind("pair of scissors", "tools", plural="pairs of scissors", patterned=False)
def scissors(p: Pen) -> None:
    p.poly([(0.46, 0.62), (0.7, 0.04), (0.72, 0.24), (0.56, 0.64)], "metal")
    p.poly([(0.54, 0.62), (0.3, 0.04), (0.28, 0.24), (0.44, 0.64)], "metal")
    p.arc(0.32, 0.8, 0.14, 0.15, 0, 360, 0.075, "main", edge=True)
    p.arc(0.68, 0.8, 0.14, 0.15, 0, 360, 0.075, "main", edge=True)
    p.oval(0.5, 0.6, 0.04, 0.04, "ink", edge=False)


@kind("wrench", "tools", plural="wrenches", also=("spanner",), patterned=False)
def wrench(p: Pen) -> None:
    p.line([(0.5, 0.3), (0.5, 0.76)], 0.15, "main", edge=True)
    p.oval(0.5, 0.82, 0.16, 0.15)
    p.oval(0.5, 0.83, 0.07, 0.07, "ink", edge=False)
    p.poly(
        [
            (0.4, 0.36), (0.24, 0.24), (0.26, 0.04), (0.4, 0.02), (0.4, 0.18),
            (0.6, 0.18), (0.6, 0.02), (0.74, 0.04), (0.76, 0.24), (0.6, 0.36),
        ],
    )
