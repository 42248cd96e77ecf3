"""Furniture. The seats share legs and a seat; back, arms and rockers tell them apart."""

from __future__ import annotations

from ..kind import kind
from ..pen import Pen


def seat_and_legs(p: Pen) -> None:
    p.box(0.25, 0.56, 0.33, 0.95, "wood")
    p.box(0.67, 0.56, 0.75, 0.95, "wood")
    p.box(0.22, 0.5, 0.78, 0.6)


def back(p: Pen) -> None:
    p.box(0.26, 0.06, 0.74, 0.5)


@kind("chair", "furniture", family="seats")
def chair(p: Pen) -> None:
    back(p)
    seat_and_legs(p)


@kind("stool", "furniture", family="seats", seat=0.5)
def stool(p: Pen) -> None:
    seat_and_legs(p)
    p.line([(0.3, 0.8), (0.7, 0.8)], 0.04, "wood", edge=True)


@kind("armchair", "furniture", family="seats")
def armchair(p: Pen) -> None:
    back(p)
    seat_and_legs(p)
    for x in (0.1, 0.76):
        p.box(x, 0.34, x + 0.14, 0.64)


@kind("rocking chair", "furniture", family="seats")
def rocking_chair(p: Pen) -> None:
    back(p)
    seat_and_legs(p)
    p.arc(0.5, 0.42, 0.56, 0.56, 30, 150, 0.06, "wood", edge=True)


@kind("table", "furniture", seat=0.36)
def table(p: Pen) -> None:
    for x in (0.1, 0.82):
        p.box(x, 0.46, x + 0.08, 0.88, "deep")
    p.box(0.02, 0.36, 0.98, 0.48)


@kind("desk", "furniture", seat=0.36, also=("writing desk",))
def desk(p: Pen) -> None:
    p.box(0.08, 0.46, 0.16, 0.88, "deep")
    p.box(0.58, 0.46, 0.94, 0.88)
    p.box(0.02, 0.36, 0.98, 0.47)
    for y in (0.52, 0.65, 0.78):
        p.line([(0.61, y + 0.09), (0.91, y + 0.09)], 0.02, "deep")
        p.oval(0.76, y + 0.03, 0.03, 0.025, "ink", edge=False)


@kind("sofa", "furniture", also=("couch/couches",), seat=0.3)
def sofa(p: Pen) -> None:
    p.box(0.14, 0.84, 0.2, 0.92, "wood")
    p.box(0.8, 0.84, 0.86, 0.92, "wood")
    p.box(0.12, 0.3, 0.88, 0.64)
    p.box(0.14, 0.58, 0.5, 0.74, "pale")
    p.box(0.5, 0.58, 0.86, 0.74, "pale")
    p.box(0.1, 0.72, 0.9, 0.86)
    for x in (0.02, 0.82):
        p.box(x, 0.48, x + 0.16, 0.86)


@kind("bed", "furniture", seat=0.5)
def bed(p: Pen) -> None:
    p.box(0.03, 0.26, 0.1, 0.86, "wood")
    p.box(0.91, 0.44, 0.97, 0.86, "wood")
    p.box(0.1, 0.58, 0.91, 0.74)
    p.blob([(0.12, 0.58), (0.14, 0.46), (0.34, 0.46), (0.36, 0.58)], "white")
    p.box(0.36, 0.5, 0.91, 0.66)


@kind("lamp", "furniture", also=("table lamp",))
def lamp(p: Pen) -> None:
    p.line([(0.5, 0.48), (0.5, 0.88)], 0.06, "metal", edge=True)
    p.oval(0.5, 0.9, 0.2, 0.055, "metal")
    p.poly([(0.36, 0.08), (0.64, 0.08), (0.82, 0.52), (0.18, 0.52)])


@kind("bookcase", "furniture", plural="bookcases", also=("bookshelf/bookshelves",), seat=0.05)
def bookcase(p: Pen) -> None:
    p.box(0.18, 0.05, 0.82, 0.96)
    for y in (0.11, 0.4, 0.69):
        p.box(0.24, y, 0.76, y + 0.22, "dusk")
        for k, fill in enumerate(("signal", "glow", "beam", "white", "leaf")):
            p.box(0.26 + 0.095 * k, y + 0.03 * (k % 3), 0.345 + 0.095 * k, y + 0.22, fill, edge=False)
