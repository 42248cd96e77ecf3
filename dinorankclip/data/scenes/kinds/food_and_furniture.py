"""Draws fruit, vegetables and furniture.

Apple, peach, tomato and pumpkin share a round body and differ in stem, crease, calyx and ribs. Seats share legs and a
seat and differ in back, arms and rockers.
"""

from __future__ import annotations

from dinorankclip.data.scenes.drawing import Pen, mirrored, on_side
from dinorankclip.data.scenes.subjects import kind

ROUND = ("red", "green", "yellow", "orange")
CHERRY = ("red", "pink", "yellow", "purple", "black")
MELON = ("red", "pink", "yellow", "orange")


def round_body(p: Pen) -> None:
    p.blob(mirrored((0.5, 0.26), (0.76, 0.22), (0.94, 0.46), (0.86, 0.78), (0.62, 0.95)))
    p.oval(0.28, 0.46, 0.06, 0.1, "pale", edge=False)


@kind("apple", "food", family="round fruit", colours=ROUND, patterned=False)
def apple(p: Pen) -> None:
    round_body(p)
    p.line([(0.5, 0.3), (0.54, 0.08)], 0.05, "dusk")
    p.blob([(0.56, 0.16), (0.7, 0.02), (0.86, 0.06), (0.74, 0.18)], "leaf")


@kind("peach", "food", family="round fruit", plural="peaches", colours=ROUND, patterned=False)
def peach(p: Pen) -> None:
    round_body(p)
    p.line([(0.5, 0.26), (0.58, 0.44), (0.58, 0.68), (0.52, 0.92)], 0.045, "deep")
    p.blob([(0.5, 0.26), (0.34, 0.06), (0.14, 0.06), (0.26, 0.22)], "leaf")


@kind("tomato", "food", family="round fruit", plural="tomatoes", colours=ROUND, patterned=False)
def tomato(p: Pen) -> None:
    round_body(p)
    p.poly(mirrored((0.5, 0.2), (0.6, 0.28), (0.82, 0.24), (0.64, 0.36), (0.7, 0.52), (0.5, 0.4)), "leaf")


@kind("pumpkin", "food", family="round fruit", colours=ROUND, patterned=False)
def pumpkin(p: Pen) -> None:
    p.poly([(0.44, 0.28), (0.42, 0.06), (0.56, 0.04), (0.56, 0.28)], "leaf")
    round_body(p)
    for s in (-1, 1):
        p.line(on_side(s, (0.05, 0.27), (0.28, 0.42), (0.28, 0.74), (0.08, 0.93)), 0.04, "deep")
    p.line([(0.5, 0.28), (0.5, 0.94)], 0.04, "deep")


@kind("pear", "food", colours=("green", "yellow", "red", "brown"), patterned=False)
def pear(p: Pen) -> None:
    p.line([(0.5, 0.16), (0.55, 0.02)], 0.045, "dusk")
    p.blob(mirrored((0.5, 0.12), (0.62, 0.2), (0.66, 0.44), (0.82, 0.68), (0.72, 0.92), (0.5, 0.96)))
    p.oval(0.34, 0.7, 0.05, 0.09, "pale", edge=False)


@kind("banana", "food", colours=("yellow", "green", "brown"), patterned=False)
def banana(p: Pen) -> None:
    inside = [(0.14, 0.2), (0.22, 0.22), (0.34, 0.5), (0.6, 0.64), (0.88, 0.58)]
    outside = [(0.95, 0.62), (0.86, 0.76), (0.56, 0.84), (0.26, 0.68), (0.1, 0.42)]
    p.blob(inside + outside)
    p.line([(0.17, 0.22), (0.15, 0.1)], 0.07, "dusk")
    p.line([(0.2, 0.4), (0.34, 0.62), (0.6, 0.74), (0.82, 0.69)], 0.025, "deep")


@kind("pair of cherries", "food", plural="pairs of cherries", colours=CHERRY, patterned=False)
def cherries(p: Pen) -> None:
    p.lines(0.045, "leaf", [(0.28, 0.66), (0.4, 0.34), (0.6, 0.1)], [(0.74, 0.72), (0.7, 0.36), (0.6, 0.1)])
    p.blob([(0.6, 0.12), (0.76, 0.02), (0.96, 0.1), (0.8, 0.22)], "leaf")
    for x, y in ((0.28, 0.74), (0.74, 0.78)):
        p.oval(x, y, 0.2, 0.19)
        p.oval(x - 0.07, y - 0.06, 0.04, 0.04, "white", edge=False)


@kind("strawberry", "food", plural="strawberries", colours=("red", "pink", "white", "orange"), patterned=False)
def strawberry(p: Pen) -> None:
    p.blob([(0.5, 0.24), (0.78, 0.22), (0.88, 0.44), (0.7, 0.78), (0.5, 0.96), (0.3, 0.78), (0.12, 0.44), (0.22, 0.22)])
    for x, y in ((0.3, 0.46), (0.5, 0.5), (0.7, 0.46), (0.4, 0.66), (0.6, 0.66), (0.5, 0.8)):
        p.oval(x, y, 0.026, 0.036, "glow", edge=False)
    p.poly(mirrored((0.5, 0.02), (0.58, 0.14), (0.86, 0.14), (0.68, 0.28), (0.5, 0.36)), "leaf")


@kind("pineapple", "food", colours=("yellow", "orange", "brown", "green"), patterned=False)
def pineapple(p: Pen) -> None:
    for tip in (0.2, 0.8, 0.34, 0.66, 0.5):
        p.poly([(0.4, 0.36), (tip, 0.0 if tip == 0.5 else 0.1), (0.6, 0.36)], "leaf")
    p.oval(0.5, 0.66, 0.26, 0.32)
    for k in range(4):
        p.line([(0.28, 0.5 + 0.12 * k), (0.5 + 0.06 * k, 0.36 + 0.1 * k)], 0.022, "deep")
        p.line([(0.72, 0.5 + 0.12 * k), (0.5 - 0.06 * k, 0.36 + 0.1 * k)], 0.022, "deep")


@kind("slice of watermelon", "food", plural="slices of watermelon", colours=MELON, patterned=False)
def watermelon(p: Pen) -> None:
    p.slice(0.5, 0.32, 0.48, 0.54, 0, 180, "leaf")
    p.slice(0.5, 0.32, 0.42, 0.46, 0, 180, "white")
    p.slice(0.5, 0.32, 0.38, 0.41, 0, 180)
    for x, y in ((0.3, 0.44), (0.5, 0.48), (0.7, 0.44), (0.4, 0.6), (0.6, 0.6)):
        p.oval(x, y, 0.025, 0.04, "ink", edge=False)


@kind("carrot", "food", colours=("orange", "yellow", "purple", "white"), patterned=False)
def carrot(p: Pen) -> None:
    p.lines(0.09, "leaf", [(0.5, 0.3), (0.3, 0.06)], [(0.5, 0.3), (0.5, 0.06)], [(0.5, 0.3), (0.7, 0.06)], edge=True)
    p.blob([(0.34, 0.3), (0.5, 0.24), (0.66, 0.3), (0.62, 0.6), (0.5, 0.98), (0.38, 0.6)])
    p.lines(0.022, "deep", [(0.38, 0.44), (0.5, 0.45)], [(0.62, 0.56), (0.52, 0.57)], [(0.43, 0.68), (0.51, 0.69)])


# --- furniture


def seat_and_legs(p: Pen) -> None:
    p.boxes("wood", (0.25, 0.56, 0.33, 0.95), (0.67, 0.56, 0.75, 0.95))
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
    p.arc(0.5, 0.42, 0.56, 0.56, 30, 150, width=0.06, fill="wood", edge=True)


@kind("table", "furniture", seat=0.36)
def table(p: Pen) -> None:
    for x in (0.1, 0.82):
        p.box(x, 0.46, x + 0.08, 0.88, "deep")
    p.box(0.02, 0.36, 0.98, 0.48)


@kind("desk", "furniture", seat=0.36, also=("writing desk",))
def desk(p: Pen) -> None:
    p.box(0.08, 0.46, 0.16, 0.88, "deep")
    p.boxes("main", (0.58, 0.46, 0.94, 0.88), (0.02, 0.36, 0.98, 0.47))
    for y in (0.52, 0.65, 0.78):
        p.line([(0.61, y + 0.09), (0.91, y + 0.09)], 0.02, "deep")
        p.oval(0.76, y + 0.03, 0.03, 0.025, "ink", edge=False)


@kind("sofa", "furniture", also=("couch/couches",), seat=0.3)
def sofa(p: Pen) -> None:
    p.boxes("wood", (0.14, 0.84, 0.2, 0.92), (0.8, 0.84, 0.86, 0.92))
    p.box(0.12, 0.3, 0.88, 0.64)
    p.boxes("pale", (0.14, 0.58, 0.5, 0.74), (0.5, 0.58, 0.86, 0.74))
    p.box(0.1, 0.72, 0.9, 0.86)
    for x in (0.02, 0.82):
        p.box(x, 0.48, x + 0.16, 0.86)


@kind("bed", "furniture", seat=0.5)
def bed(p: Pen) -> None:
    p.boxes("wood", (0.03, 0.26, 0.1, 0.86), (0.91, 0.44, 0.97, 0.86))
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
