"""Draws plants, tools and toys.

Flowers share stem and leaves, trees a trunk. Two families of tools share a handle each and differ in what is fixed to
its end.
"""

from __future__ import annotations

import math

from dinorankclip.data.scenes.drawing import BLOSSOM, Pen, mirrored, on_side
from dinorankclip.data.scenes.subjects import kind

CANOPY = ("green", "yellow", "orange", "pink", "white")


def stem(p: Pen) -> None:
    p.line([(0.5, 0.4), (0.5, 0.97)], 0.05, "leaf", edge=True)
    p.blob([(0.5, 0.84), (0.64, 0.66), (0.82, 0.64), (0.7, 0.8)], "leaf")
    p.blob([(0.5, 0.92), (0.36, 0.76), (0.18, 0.74), (0.3, 0.88)], "leaf")


@kind("daisy", "plants", family="flowers", plural="daisies", colours=BLOSSOM, patterned=False)
def daisy(p: Pen) -> None:
    stem(p)
    for k in range(8):
        a = math.radians(45 * k)
        p.oval(0.5 + 0.19 * math.cos(a), 0.29 + 0.19 * math.sin(a), 0.1, 0.1)
    p.oval(0.5, 0.29, 0.11, 0.11, "gold")


@kind("tulip", "plants", family="flowers", colours=BLOSSOM, patterned=False)
def tulip(p: Pen) -> None:
    stem(p)
    petals = [(0.26, 0.06), (0.38, 0.2), (0.5, 0.02), (0.62, 0.2), (0.74, 0.06)]
    cup = [(0.72, 0.36), (0.6, 0.5), (0.4, 0.5), (0.28, 0.36)]
    p.poly(petals + cup)


@kind("rose", "plants", family="flowers", colours=BLOSSOM, patterned=False)
def rose(p: Pen) -> None:
    stem(p)
    p.oval(0.5, 0.28, 0.26, 0.25)
    p.arc(0.5, 0.29, 0.17, 0.16, 100, 380, width=0.04, fill="deep")
    p.arc(0.5, 0.29, 0.08, 0.08, -60, 220, width=0.04, fill="deep")


@kind("foxglove", "plants", family="flowers", colours=BLOSSOM, patterned=False)
def foxglove(p: Pen) -> None:
    stem(p)
    p.line([(0.5, 0.42), (0.5, 0.06)], 0.05, "leaf", edge=True)
    for x, y in ((0.32, 0.14), (0.68, 0.14), (0.3, 0.4), (0.7, 0.4)):
        p.poly([(x, y - 0.1), (x + 0.12, y + 0.14), (x, y + 0.09), (x - 0.12, y + 0.14)])


def bark(p: Pen) -> None:
    p.poly([(0.44, 0.5), (0.56, 0.5), (0.6, 0.97), (0.4, 0.97)], "wood")


@kind("oak tree", "plants", family="trees", colours=CANOPY, patterned=False)
def oak_tree(p: Pen) -> None:
    bark(p)
    lobes = ((0.24, 0.44, 0.2), (0.76, 0.44, 0.2), (0.32, 0.22, 0.2), (0.68, 0.22, 0.2), (0.5, 0.36, 0.26))
    for x, y, r in lobes:
        p.oval(x, y, r, r)
    for x, y, r in lobes:  # once more, over the outlines inside the crown
        p.oval(x, y, r - 0.02, r - 0.02, edge=False)
    p.lines(0.04, "wood", [(0.5, 0.6), (0.5, 0.46), (0.6, 0.38)], [(0.5, 0.5), (0.4, 0.42)])


@kind("fir tree", "plants", family="trees", also=("pine tree",), colours=CANOPY, patterned=False)
def fir_tree(p: Pen) -> None:
    bark(p)
    for top, half in ((0.42, 0.38), (0.22, 0.3), (0.02, 0.22)):
        p.poly([(0.5, top), (0.5 + half, top + 0.38), (0.5 - half, top + 0.38)])


@kind("palm tree", "plants", family="trees", also=("palm",), colours=CANOPY, patterned=False)
def palm_tree(p: Pen) -> None:
    p.poly([(0.47, 0.28), (0.54, 0.28), (0.62, 0.97), (0.44, 0.97)], "wood")
    for s in (-1, 1):
        p.blob(on_side(s, (0, 0.26), (0.2, 0.08), (0.46, 0.2), (0.24, 0.2)))
        p.blob(on_side(s, (0, 0.26), (0.26, 0.24), (0.42, 0.52), (0.2, 0.38)))
    p.blob([(0.46, 0.28), (0.4, 0.1), (0.52, 0.0), (0.58, 0.12), (0.54, 0.28)])
    p.ovals("dusk", (0.46, 0.32, 0.05, 0.05), (0.56, 0.33, 0.05, 0.05), edge=False)


@kind("apple tree", "plants", family="trees", colours=CANOPY, patterned=False)
def apple_tree(p: Pen) -> None:
    oak_tree(p)
    for x, y in ((0.28, 0.2), (0.5, 0.14), (0.72, 0.26), (0.36, 0.44), (0.6, 0.46), (0.78, 0.44), (0.5, 0.3)):
        p.oval(x, y, 0.055, 0.055, "signal")


@kind("cactus", "plants", plural="cacti", colours=("green", "yellow", "blue", "purple"))
def cactus(p: Pen) -> None:
    p.line([(0.38, 0.58), (0.16, 0.58), (0.16, 0.36)], 0.13, "main", edge=True)
    p.line([(0.62, 0.5), (0.84, 0.5), (0.84, 0.24)], 0.13, "main", edge=True)
    p.blob([(0.38, 0.12), (0.5, 0.03), (0.62, 0.12), (0.62, 0.8), (0.38, 0.8)])
    p.poly([(0.26, 0.76), (0.74, 0.76), (0.68, 0.98), (0.32, 0.98)], "dusk")


@kind("mushroom", "plants", also=("toadstool",))
def mushroom(p: Pen) -> None:
    p.blob([(0.4, 0.5), (0.6, 0.5), (0.64, 0.9), (0.5, 0.95), (0.36, 0.9)], "cream")
    p.slice(0.5, 0.54, 0.46, 0.46, 180, 360)


# --- tools


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
    p.arc(0.5, 0.72, 0.18, 0.1, 180, 360, width=0.05, fill="metal", edge=True)
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
    p.lines(0.025, "dusk", [(0.26, 0.08), (0.26, 0.34)], [(0.74, 0.08), (0.74, 0.34)])


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
    p.arc(0.32, 0.8, 0.14, 0.15, 0, 360, width=0.075, fill="main", edge=True)
    p.arc(0.68, 0.8, 0.14, 0.15, 0, 360, width=0.075, fill="main", edge=True)
    p.oval(0.5, 0.6, 0.04, 0.04, "ink", edge=False)


@kind("wrench", "tools", plural="wrenches", also=("spanner",), patterned=False)
def wrench(p: Pen) -> None:
    p.line([(0.5, 0.3), (0.5, 0.76)], 0.15, "main", edge=True)
    p.oval(0.5, 0.82, 0.16, 0.15)
    p.oval(0.5, 0.83, 0.07, 0.07, "ink", edge=False)
    p.poly(mirrored((0.4, 0.36), (0.24, 0.24), (0.26, 0.04), (0.4, 0.02), (0.4, 0.18)))


# --- toys


@kind("ball", "toys", also=("beach ball",))
def ball(p: Pen) -> None:
    p.oval(0.5, 0.5, 0.45, 0.45)
    p.arc(0.5, 0.5, 0.2, 0.44, 90, 270, width=0.035, fill="deep")
    p.arc(0.5, 0.5, 0.2, 0.44, -90, 90, width=0.035, fill="deep")


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
    p.lines(0.03, "deep", [(0.5, 0.02), (0.5, 0.7)], [(0.2, 0.3), (0.8, 0.3)])
    for x, y in ((0.44, 0.8), (0.48, 0.9)):
        p.poly([(x - 0.1, y - 0.05), (x + 0.1, y + 0.05), (x + 0.1, y - 0.05), (x - 0.1, y + 0.05)], "signal")


@kind("teddy bear", "toys", colours=("brown", "pink", "white", "blue", "yellow", "grey", "purple"))
def teddy_bear(p: Pen) -> None:
    for s in (-1, 1):
        p.ovals("main", (0.5 + s * 0.2, 0.12, 0.1, 0.1), (0.5 + s * 0.3, 0.6, 0.12, 0.09))
        p.oval(0.5 + s * 0.2, 0.88, 0.13, 0.1, "pale")
    p.ovals("main", (0.5, 0.68, 0.24, 0.26), (0.5, 0.27, 0.25, 0.22))
    p.oval(0.5, 0.34, 0.11, 0.09, "cream")
    p.oval(0.5, 0.31, 0.045, 0.035, "ink", edge=False)
    p.ovals("ink", (0.4, 0.23, 0.03, 0.035), (0.6, 0.23, 0.03, 0.035), edge=False)


@kind("robot", "toys")
def robot(p: Pen) -> None:
    p.line([(0.5, 0.16), (0.5, 0.04)], 0.035, "ink")
    p.oval(0.5, 0.04, 0.04, 0.04, "signal")
    p.box(0.3, 0.14, 0.7, 0.4)
    p.ovals("glow", (0.41, 0.24, 0.055, 0.055), (0.59, 0.24, 0.055, 0.055))
    p.line([(0.4, 0.34), (0.6, 0.34)], 0.035, "ink")
    for x in (0.1, 0.77):
        p.box(x, 0.46, x + 0.13, 0.76, "metal")
    for x in (0.3, 0.54):
        p.box(x, 0.78, x + 0.16, 0.97, "metal")
    p.box(0.24, 0.42, 0.76, 0.8)
    p.box(0.36, 0.5, 0.64, 0.64, "glass")


@kind("snowman", "toys", plural="snowmen", colours=("white", "blue", "pink", "yellow"), patterned=False)
def snowman(p: Pen) -> None:
    p.lines(0.035, "dusk", [(0.36, 0.48), (0.08, 0.36)], [(0.64, 0.48), (0.92, 0.36)])
    p.ovals("main", (0.5, 0.77, 0.26, 0.21), (0.5, 0.5, 0.2, 0.17), (0.5, 0.27, 0.15, 0.14))
    p.boxes("ink", (0.4, 0.0, 0.6, 0.14), (0.32, 0.12, 0.68, 0.17))
    p.ovals("ink", (0.44, 0.24, 0.022, 0.026), (0.56, 0.24, 0.022, 0.026), edge=False)
    p.poly([(0.5, 0.27), (0.66, 0.31), (0.5, 0.33)], "signal")
    p.ovals("ink", (0.5, 0.46, 0.025, 0.025), (0.5, 0.55, 0.025, 0.025), edge=False)


@kind("rocket", "toys", also=("toy rocket",))
def rocket(p: Pen) -> None:
    p.poly([(0.4, 0.82), (0.5, 1.0), (0.6, 0.82)], "glow")
    p.poly([(0.34, 0.56), (0.14, 0.86), (0.38, 0.8)], "deep")
    p.poly([(0.66, 0.56), (0.86, 0.86), (0.62, 0.8)], "deep")
    p.blob([(0.5, 0.0), (0.66, 0.26), (0.68, 0.6), (0.62, 0.84), (0.38, 0.84), (0.32, 0.6), (0.34, 0.26)])
    p.oval(0.5, 0.36, 0.09, 0.09, "glass")


@kind("gift box", "toys", plural="gift boxes", also=("present",), seat=0.22)
def gift_box(p: Pen) -> None:
    p.ovals("white", (0.36, 0.14, 0.13, 0.08), (0.64, 0.14, 0.13, 0.08))
    p.boxes("main", (0.12, 0.36, 0.88, 0.95), (0.06, 0.22, 0.94, 0.4))
    p.box(0.43, 0.22, 0.57, 0.95, "white", edge=False)


@kind("skateboard", "toys", seat=0.46)
def skateboard(p: Pen) -> None:
    for x in (0.24, 0.76):
        p.oval(x, 0.68, 0.1, 0.1, "white")
        p.oval(x, 0.68, 0.04, 0.04, "ink", edge=False)
    top = [(0.0, 0.34), (0.14, 0.46), (0.86, 0.46), (1.0, 0.34)]
    bottom = [(0.98, 0.48), (0.88, 0.58), (0.12, 0.58), (0.02, 0.48)]
    p.poly(top + bottom)
