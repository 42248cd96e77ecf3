"""Plants. Flowers share stem and leaves, trees a trunk."""

from __future__ import annotations

import math

from ..colours import BLOSSOM
from ..kind import kind
from ..pen import Pen

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
    p.poly(
        [
            (0.26, 0.06), (0.38, 0.2), (0.5, 0.02), (0.62, 0.2), (0.74, 0.06),
            (0.72, 0.36), (0.6, 0.5), (0.4, 0.5), (0.28, 0.36),
        ],
    )


@kind("rose", "plants", family="flowers", colours=BLOSSOM, patterned=False)
def rose(p: Pen) -> None:
    stem(p)
    p.oval(0.5, 0.28, 0.26, 0.25)
    p.arc(0.5, 0.29, 0.17, 0.16, 100, 380, 0.04, "deep")
    p.arc(0.5, 0.29, 0.08, 0.08, -60, 220, 0.04, "deep")


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
    p.line([(0.5, 0.6), (0.5, 0.46), (0.6, 0.38)], 0.04, "wood")
    p.line([(0.5, 0.5), (0.4, 0.42)], 0.04, "wood")


@kind("fir tree", "plants", family="trees", also=("pine tree",), colours=CANOPY, patterned=False)
def fir_tree(p: Pen) -> None:
    bark(p)
    for top, half in ((0.42, 0.38), (0.22, 0.3), (0.02, 0.22)):
        p.poly([(0.5, top), (0.5 + half, top + 0.38), (0.5 - half, top + 0.38)])


@kind("palm tree", "plants", family="trees", also=("palm",), colours=CANOPY, patterned=False)
def palm_tree(p: Pen) -> None:
    p.poly([(0.47, 0.28), (0.54, 0.28), (0.62, 0.97), (0.44, 0.97)], "wood")
    for s in (-1, 1):
        p.blob([(0.5, 0.26), (0.5 + s * 0.2, 0.08), (0.5 + s * 0.46, 0.2), (0.5 + s * 0.24, 0.2)])
        p.blob([(0.5, 0.26), (0.5 + s * 0.26, 0.24), (0.5 + s * 0.42, 0.52), (0.5 + s * 0.2, 0.38)])
    p.blob([(0.46, 0.28), (0.4, 0.1), (0.52, 0.0), (0.58, 0.12), (0.54, 0.28)])
    p.oval(0.46, 0.32, 0.05, 0.05, "dusk", edge=False)
    p.oval(0.56, 0.33, 0.05, 0.05, "dusk", edge=False)


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
