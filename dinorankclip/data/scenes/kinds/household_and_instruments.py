"""Draws household things and musical instruments.

Pots, cups and cutlery share a body by family and differ in spout, handle, lid or tip. Plucked and bowed instruments
share neck and strings and differ in the body.
"""

from __future__ import annotations

from dinorankclip.data.scenes.drawing import Pen, mirrored, on_side
from dinorankclip.data.scenes.subjects import kind


def pot_body(p: Pen) -> None:
    p.blob([(0.3, 0.38), (0.62, 0.38), (0.76, 0.62), (0.68, 0.88), (0.46, 0.92), (0.24, 0.88), (0.16, 0.62)])


@kind("teapot", "household", family="pouring pots")
def teapot(p: Pen) -> None:
    p.arc(0.18, 0.62, 0.15, 0.17, 90, 290, width=0.06, fill="main", edge=True)
    p.blob([(0.68, 0.74), (0.82, 0.6), (0.86, 0.42), (0.97, 0.38), (0.94, 0.52), (0.88, 0.72), (0.7, 0.86)])
    pot_body(p)
    p.slice(0.46, 0.4, 0.18, 0.11, 180, 360, "deep")
    p.oval(0.46, 0.26, 0.05, 0.05, "deep")


@kind("kettle", "household", family="pouring pots")
def kettle(p: Pen) -> None:
    p.arc(0.46, 0.38, 0.28, 0.28, 180, 360, width=0.06, fill="ink")
    p.poly([(0.66, 0.66), (0.9, 0.34), (0.98, 0.4), (0.74, 0.8)])
    pot_body(p)
    p.slice(0.46, 0.4, 0.18, 0.08, 180, 360, "deep")
    p.oval(0.46, 0.3, 0.04, 0.035, "ink", edge=False)


@kind("watering can", "household", family="pouring pots")
def watering_can(p: Pen) -> None:
    p.arc(0.2, 0.52, 0.19, 0.22, 90, 330, width=0.06, fill="main", edge=True)
    p.line([(0.64, 0.78), (0.92, 0.36)], 0.07, "main", edge=True)
    p.poly([(0.8, 0.3), (0.98, 0.46), (1.04, 0.38), (0.86, 0.22)], "metal")
    pot_body(p)
    p.oval(0.46, 0.4, 0.18, 0.05, "ink")


def cup_body(p: Pen) -> None:
    p.poly([(0.2, 0.24), (0.7, 0.24), (0.66, 0.92), (0.24, 0.92)])


def rim(p: Pen) -> None:
    p.oval(0.45, 0.25, 0.25, 0.06, "deep")


@kind("mug", "household", family="cups", also=("coffee mug",))
def mug(p: Pen) -> None:
    p.arc(0.7, 0.56, 0.2, 0.2, -90, 90, width=0.07, fill="main", edge=True)
    cup_body(p)
    rim(p)


@kind("tumbler", "household", family="cups")
def tumbler(p: Pen) -> None:
    cup_body(p)
    rim(p)


@kind("beer stein", "household", family="cups")
def beer_stein(p: Pen) -> None:
    p.arc(0.7, 0.56, 0.2, 0.2, -90, 90, width=0.07, fill="main", edge=True)
    cup_body(p)
    p.slice(0.45, 0.26, 0.27, 0.16, 180, 360, "metal")
    p.oval(0.45, 0.08, 0.05, 0.05, "metal")


@kind("sippy cup", "household", family="cups")
def sippy_cup(p: Pen) -> None:
    cup_body(p)
    p.box(0.18, 0.2, 0.72, 0.32, "glow")
    p.poly([(0.5, 0.2), (0.54, 0.06), (0.66, 0.06), (0.66, 0.2)], "glow")


def cutlery_handle(p: Pen) -> None:
    p.line([(0.5, 0.48), (0.5, 0.94)], 0.09, "main", edge=True)


@kind("fork", "household", family="cutlery", patterned=False)
def fork(p: Pen) -> None:
    cutlery_handle(p)
    for x in (0.36, 0.5, 0.64):
        p.line([(x, 0.06), (x, 0.32)], 0.05, "metal", edge=True)
    p.blob([(0.33, 0.28), (0.67, 0.28), (0.62, 0.42), (0.5, 0.5), (0.38, 0.42)], "metal")


@kind("spoon", "household", family="cutlery", patterned=False)
def spoon(p: Pen) -> None:
    cutlery_handle(p)
    p.oval(0.5, 0.26, 0.17, 0.23, "metal")
    p.oval(0.5, 0.25, 0.09, 0.14, "white", edge=False)


@kind("knife", "household", family="cutlery", plural="knives", patterned=False)
def knife(p: Pen) -> None:
    cutlery_handle(p)
    p.poly([(0.42, 0.5), (0.42, 0.02), (0.56, 0.12), (0.62, 0.32), (0.58, 0.5)], "metal")


@kind("bottle", "household")
def bottle(p: Pen) -> None:
    p.box(0.42, 0.03, 0.58, 0.12, "wood")
    right = [(0.43, 0.1), (0.57, 0.1), (0.58, 0.3), (0.7, 0.46), (0.7, 0.9)]
    left = [(0.5, 0.95), (0.3, 0.9), (0.3, 0.46), (0.42, 0.3)]
    p.blob(right + left)
    p.box(0.33, 0.56, 0.67, 0.76, "white")


@kind("wine glass", "household", plural="wine glasses", patterned=False)
def wine_glass(p: Pen) -> None:
    p.line([(0.5, 0.5), (0.5, 0.9)], 0.05, "glass", edge=True)
    p.oval(0.5, 0.92, 0.2, 0.05, "glass")
    p.blob([(0.28, 0.06), (0.72, 0.06), (0.74, 0.34), (0.5, 0.56), (0.26, 0.34)], "glass")
    p.slice(0.5, 0.28, 0.23, 0.25, 0, 180)


@kind("bowl", "household", seat=0.42)
def bowl(p: Pen) -> None:
    p.box(0.36, 0.78, 0.64, 0.88, "deep")
    p.slice(0.5, 0.42, 0.47, 0.42, 0, 180)
    p.oval(0.5, 0.42, 0.47, 0.08, "deep")


@kind("frying pan", "household", also=("skillet",), patterned=False)
def frying_pan(p: Pen) -> None:
    p.line([(0.6, 0.42), (0.97, 0.2)], 0.08, "wood", edge=True)
    p.oval(0.36, 0.56, 0.34, 0.33)
    p.oval(0.36, 0.56, 0.25, 0.24, "deep")


@kind("basket", "household")
def basket(p: Pen) -> None:
    p.arc(0.5, 0.5, 0.34, 0.42, 180, 360, width=0.06, fill="main", edge=True)
    p.poly([(0.06, 0.5), (0.94, 0.5), (0.8, 0.94), (0.2, 0.94)])
    p.line([(0.05, 0.52), (0.95, 0.52)], 0.08, "deep")
    for k in range(3):
        p.line([(0.13 + 0.03 * k, 0.62 + 0.11 * k), (0.87 - 0.03 * k, 0.62 + 0.11 * k)], 0.02, "deep")


@kind("key", "household", patterned=False)
def key(p: Pen) -> None:
    p.line([(0.36, 0.5), (0.94, 0.5)], 0.08, "main", edge=True)
    p.lines(0.07, "main", [(0.78, 0.52), (0.78, 0.68)], [(0.92, 0.52), (0.92, 0.72)], edge=True)
    p.arc(0.2, 0.5, 0.15, 0.16, 0, 360, width=0.09, fill="main", edge=True)


@kind("umbrella", "household")
def umbrella(p: Pen) -> None:
    p.line([(0.5, 0.1), (0.5, 0.84)], 0.045, "dusk")
    p.arc(0.42, 0.84, 0.08, 0.1, 0, 180, width=0.05, fill="dusk")
    p.slice(0.5, 0.52, 0.47, 0.46, 180, 360)
    p.lines(0.025, "deep", [(0.5, 0.08), (0.34, 0.52)], [(0.5, 0.08), (0.66, 0.52)])


@kind("clock", "household", also=("alarm clock",))
def clock(p: Pen) -> None:
    for s in (-1, 1):
        p.oval(0.5 + s * 0.22, 0.16, 0.13, 0.11, "metal")
        p.line(on_side(s, (0.24, 0.84), (0.32, 0.95)), 0.07, "metal", edge=True)
    p.oval(0.5, 0.54, 0.37, 0.37)
    p.oval(0.5, 0.54, 0.28, 0.28, "white")
    p.line([(0.5, 0.34), (0.5, 0.54), (0.64, 0.6)], 0.05, "ink")


# --- instruments


def neck(p: Pen) -> None:
    p.line([(0.5, 0.08), (0.5, 0.6)], 0.08, "dusk", edge=True)
    p.box(0.43, 0.0, 0.57, 0.14, "ink")


def waisted_body(p: Pen) -> None:
    p.blob(mirrored((0.5, 0.42), (0.66, 0.46), (0.64, 0.6), (0.78, 0.76), (0.7, 0.94), (0.5, 0.98)))


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
    p.lines(0.035, "ink", [(0.37, 0.64), (0.39, 0.84)], [(0.63, 0.64), (0.61, 0.84)])
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
    p.lines(0.045, "wood", [(0.14, 0.06), (0.5, 0.28)], [(0.88, 0.06), (0.56, 0.28)], edge=True)
    p.poly([(0.08, 0.36), (0.92, 0.36), (0.92, 0.84), (0.5, 0.94), (0.08, 0.84)])
    p.oval(0.5, 0.36, 0.42, 0.12, "white")


@kind("trumpet", "instruments", patterned=False)
def trumpet(p: Pen) -> None:
    p.arc(0.46, 0.58, 0.24, 0.13, 0, 360, width=0.06, fill="main", edge=True)
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
    p.lines(0.07, "deep", [(0.12, 0.66), (0.12, 0.95)], [(0.88, 0.66), (0.88, 0.95)])
