"""Musical instruments. The plucked and bowed ones share neck and strings and differ in the body."""

from __future__ import annotations

from ..kind import kind
from ..pen import Pen


def neck(p: Pen) -> None:
    p.line([(0.5, 0.08), (0.5, 0.6)], 0.08, "dusk", edge=True)
    p.box(0.43, 0.0, 0.57, 0.14, "ink")


def waisted_body(p: Pen) -> None:
    p.blob(
        [
            (0.5, 0.42), (0.66, 0.46), (0.64, 0.6), (0.78, 0.76), (0.7, 0.94),
            (0.5, 0.98), (0.3, 0.94), (0.22, 0.76), (0.36, 0.6), (0.34, 0.46),
        ],
    )


def strings(p: Pen, low: float) -> None:
    p.line([(0.5, 0.12), (0.5, low)], 0.025, "white")
    p.line([(0.42, low), (0.58, low)], 0.035, "ink")


@kind("guitar", "instruments", family="plucked strings")
def guitar(p: Pen) -> None:
    waisted_body(p)
    neck(p)
    p.oval(0.5, 0.66, 0.1, 0.09, "ink")
    strings(p, 0.85)


@kind("violin", "instruments", family="plucked strings", also=("fiddle",))
def violin(p: Pen) -> None:
    waisted_body(p)
    neck(p)
    p.line([(0.37, 0.64), (0.39, 0.84)], 0.035, "ink")
    p.line([(0.63, 0.64), (0.61, 0.84)], 0.035, "ink")
    strings(p, 0.8)
    p.line([(0.92, 0.06), (0.78, 0.96)], 0.04, "wood", edge=True)


@kind("banjo", "instruments", family="plucked strings")
def banjo(p: Pen) -> None:
    p.oval(0.5, 0.72, 0.27, 0.26)
    p.oval(0.5, 0.72, 0.2, 0.19, "white")
    neck(p)
    strings(p, 0.82)


@kind("drum", "instruments", seat=0.3)
def drum(p: Pen) -> None:
    p.line([(0.14, 0.06), (0.5, 0.28)], 0.045, "wood", edge=True)
    p.line([(0.88, 0.06), (0.56, 0.28)], 0.045, "wood", edge=True)
    p.poly([(0.08, 0.36), (0.92, 0.36), (0.92, 0.84), (0.5, 0.94), (0.08, 0.84)])
    p.oval(0.5, 0.36, 0.42, 0.12, "white")


@kind("trumpet", "instruments", patterned=False)
def trumpet(p: Pen) -> None:
    p.arc(0.46, 0.58, 0.24, 0.13, 0, 360, 0.06, "main", edge=True)
    p.line([(0.04, 0.45), (0.8, 0.45)], 0.07, "main", edge=True)
    p.poly([(0.74, 0.42), (0.97, 0.22), (0.97, 0.68), (0.74, 0.48)])
    p.line([(0.03, 0.4), (0.03, 0.5)], 0.05, "main", edge=True)
    for x in (0.36, 0.46, 0.56):
        p.line([(x, 0.3), (x, 0.7)], 0.05, "metal", edge=True)


@kind("piano", "instruments", also=("upright piano",), seat=0.14)
def piano(p: Pen) -> None:
    p.box(0.1, 0.14, 0.9, 0.92)
    p.box(0.04, 0.5, 0.96, 0.64, "white")
    for k in range(7):
        p.box(0.1 + 0.125 * k, 0.5, 0.16 + 0.125 * k, 0.58, "ink", edge=False)
    p.box(0.3, 0.24, 0.7, 0.42, "cream")
    p.line([(0.12, 0.66), (0.12, 0.95)], 0.07, "deep")
    p.line([(0.88, 0.66), (0.88, 0.95)], 0.07, "deep")
