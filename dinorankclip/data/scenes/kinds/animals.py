"""Draws animals and birds.

Pets share one sitting body and differ in ears, nose and tail. Small birds share one body and differ in crest and beak.
"""

from __future__ import annotations

from dinorankclip.data.scenes.drawing import BLOSSOM, FEATHERS, FUR, Pen, on_side
from dinorankclip.data.scenes.subjects import kind


def pet_body(p: Pen) -> None:
    p.blob([(0.36, 0.5), (0.3, 0.72), (0.28, 0.96), (0.5, 0.97), (0.72, 0.96), (0.7, 0.72), (0.64, 0.5)])
    p.ovals("pale", (0.41, 0.94, 0.09, 0.045), (0.59, 0.94, 0.09, 0.045))


def pet_face(p: Pen) -> None:
    p.oval(0.5, 0.36, 0.24, 0.2)
    for x in (0.4, 0.6):
        p.oval(x, 0.34, 0.045, 0.055, "white", edge=False)
        p.oval(x, 0.345, 0.028, 0.04, "ink", edge=False)
    p.poly([(0.455, 0.41), (0.545, 0.41), (0.5, 0.46)], "rose", edge=False)


@kind("cat", "animals", family="pets", also=("kitty/kitties",), colours=FUR)
def cat(p: Pen) -> None:
    p.line([(0.68, 0.88), (0.86, 0.84), (0.9, 0.66), (0.82, 0.52)], 0.07, "main", edge=True)
    pet_body(p)
    for s in (-1, 1):
        p.poly(on_side(s, (0.24, 0.34), (0.22, 0.04), (0.06, 0.2)))
    pet_face(p)
    for s in (-1, 1):
        p.lines(0.018, "ink", on_side(s, (0.1, 0.45), (0.3, 0.42)), on_side(s, (0.1, 0.48), (0.29, 0.5)))


@kind("dog", "animals", family="pets", also=("puppy/puppies",), colours=FUR)
def dog(p: Pen) -> None:
    p.line([(0.68, 0.86), (0.84, 0.74)], 0.09, "main", edge=True)
    pet_body(p)
    pet_face(p)
    for s in (-1, 1):
        p.blob(on_side(s, (0.16, 0.18), (0.3, 0.24), (0.33, 0.5), (0.23, 0.5)), "deep")
    p.oval(0.5, 0.46, 0.11, 0.08, "pale")
    p.oval(0.5, 0.425, 0.06, 0.04, "ink", edge=False)
    p.box(0.46, 0.52, 0.54, 0.58, "rose", edge=False)


@kind("rabbit", "animals", family="pets", also=("bunny/bunnies",), colours=FUR)
def rabbit(p: Pen) -> None:
    p.oval(0.74, 0.86, 0.09, 0.09, "white")
    pet_body(p)
    for s in (-1, 1):
        p.oval(0.5 + s * 0.12, 0.11, 0.075, 0.2)
        p.oval(0.5 + s * 0.12, 0.11, 0.03, 0.14, "rose", edge=False)
    pet_face(p)
    p.box(0.46, 0.46, 0.54, 0.53, "white")


@kind("mouse", "animals", family="pets", plural="mice", colours=FUR)
def mouse(p: Pen) -> None:
    p.line([(0.68, 0.92), (0.85, 0.9), (0.93, 0.76), (0.86, 0.66)], 0.03, "rose", edge=True)
    pet_body(p)
    for s in (-1, 1):
        p.oval(0.5 + s * 0.21, 0.2, 0.15, 0.15)
        p.oval(0.5 + s * 0.21, 0.2, 0.09, 0.09, "rose", edge=False)
    pet_face(p)


@kind("elephant", "animals", colours=("grey", "pink", "brown", "blue", "white"))
def elephant(p: Pen) -> None:
    for x in (0.14, 0.32, 0.48, 0.62):
        p.box(x, 0.62, x + 0.12, 0.94)
    p.line([(0.06, 0.5), (0.02, 0.72)], 0.03, "main", edge=True)
    p.oval(0.38, 0.5, 0.34, 0.25)
    p.line([(0.86, 0.42), (0.93, 0.62), (0.92, 0.82), (0.98, 0.88)], 0.1, "main", edge=True)
    p.oval(0.75, 0.38, 0.19, 0.19)
    p.oval(0.6, 0.38, 0.13, 0.2, "deep")
    p.oval(0.82, 0.33, 0.025, 0.03, "ink", edge=False)
    p.line([(0.82, 0.53), (0.93, 0.57)], 0.05, "white", edge=True)


@kind("giraffe", "animals", colours=("yellow", "orange", "brown", "white"))
def giraffe(p: Pen) -> None:
    for x in (0.24, 0.34, 0.5, 0.6):
        p.box(x, 0.6, x + 0.06, 0.98)
    p.blob([(0.22, 0.52), (0.4, 0.48), (0.56, 0.46), (0.68, 0.56), (0.62, 0.68), (0.4, 0.7), (0.24, 0.66)])
    p.poly([(0.52, 0.54), (0.68, 0.16), (0.78, 0.2), (0.68, 0.6)])
    p.lines(0.03, "deep", [(0.7, 0.1), (0.68, 0.02)], [(0.76, 0.1), (0.77, 0.02)])
    p.blob([(0.66, 0.1), (0.76, 0.08), (0.92, 0.18), (0.92, 0.26), (0.78, 0.25), (0.67, 0.2)])
    p.oval(0.77, 0.15, 0.022, 0.022, "ink", edge=False)
    p.line([(0.22, 0.56), (0.17, 0.74)], 0.025, "deep")


@kind("turtle", "animals", also=("tortoise",), colours=("green", "brown", "orange", "blue", "purple"), seat=0.32)
def turtle(p: Pen) -> None:
    p.ovals("cream", (0.25, 0.76, 0.09, 0.07), (0.62, 0.76, 0.09, 0.07), (0.88, 0.56, 0.11, 0.1))
    p.oval(0.91, 0.53, 0.022, 0.026, "ink", edge=False)
    p.slice(0.43, 0.72, 0.4, 0.42, 180, 360)
    p.line([(0.03, 0.72), (0.83, 0.72)], 0.06, "deep")


@kind("fish", "animals", plural="fish")
def fish(p: Pen) -> None:
    p.poly([(0.26, 0.5), (0.02, 0.26), (0.08, 0.5), (0.02, 0.74)])
    p.poly([(0.4, 0.32), (0.56, 0.16), (0.66, 0.32)], "deep")
    p.oval(0.57, 0.5, 0.39, 0.23)
    p.arc(0.66, 0.5, 0.08, 0.17, -80, 80, width=0.025, fill="deep")
    p.oval(0.83, 0.44, 0.05, 0.05, "white")
    p.oval(0.84, 0.44, 0.025, 0.025, "ink", edge=False)


@kind("butterfly", "animals", plural="butterflies", colours=BLOSSOM)
def butterfly(p: Pen) -> None:
    for s in (-1, 1):
        p.line(on_side(s, (0, 0.24), (0.13, 0.06)), 0.025, "ink")
        p.blob(on_side(s, (0, 0.42), (0.2, 0.16), (0.44, 0.14), (0.42, 0.42), (0.2, 0.55)))
        p.blob(on_side(s, (0, 0.5), (0.3, 0.54), (0.34, 0.74), (0.18, 0.86), (0, 0.64)), "deep")
    p.oval(0.5, 0.5, 0.05, 0.28, "ink")


@kind("snail", "animals", colours=("brown", "orange", "yellow", "pink", "purple", "blue", "green", "red"))
def snail(p: Pen) -> None:
    p.lines(0.035, "cream", [(0.84, 0.5), (0.8, 0.3)], [(0.88, 0.5), (0.95, 0.32)], edge=True)
    back = [(0.04, 0.86), (0.3, 0.72), (0.66, 0.74), (0.76, 0.52)]
    front = [(0.9, 0.46), (0.97, 0.58), (0.88, 0.84), (0.5, 0.88)]
    p.blob(back + front, "cream")
    p.oval(0.42, 0.52, 0.29, 0.28)
    p.arc(0.42, 0.53, 0.18, 0.17, -60, 230, width=0.04, fill="deep")
    p.arc(0.42, 0.54, 0.08, 0.08, 0, 300, width=0.04, fill="deep")


@kind("pig", "animals", colours=("pink", "brown", "black", "white", "grey"))
def pig(p: Pen) -> None:
    p.arc(0.07, 0.5, 0.05, 0.06, 40, 330, width=0.03, fill="deep")
    for x in (0.2, 0.32, 0.54, 0.66):
        p.box(x, 0.66, x + 0.09, 0.9)
    p.oval(0.45, 0.54, 0.35, 0.23)
    p.poly([(0.66, 0.36), (0.68, 0.18), (0.8, 0.3)], "deep")
    p.oval(0.77, 0.48, 0.18, 0.18)
    p.oval(0.9, 0.52, 0.075, 0.09, "pale")
    p.ovals("ink", (0.89, 0.5, 0.014, 0.025), (0.93, 0.5, 0.014, 0.025), (0.77, 0.42, 0.026, 0.03), edge=False)


# --- birds


def small_bird(p: Pen) -> None:
    p.lines(0.03, "dusk", [(0.42, 0.74), (0.4, 0.94)], [(0.52, 0.74), (0.54, 0.94)])
    p.poly([(0.28, 0.56), (0.0, 0.74), (0.08, 0.82), (0.36, 0.7)], "deep")
    p.blob([(0.2, 0.6), (0.36, 0.42), (0.58, 0.38), (0.72, 0.52), (0.66, 0.72), (0.46, 0.8), (0.28, 0.74)])
    p.oval(0.65, 0.36, 0.17, 0.16)
    p.blob([(0.22, 0.6), (0.4, 0.52), (0.56, 0.56), (0.46, 0.7), (0.28, 0.7)], "deep")
    p.oval(0.7, 0.33, 0.04, 0.045, "white", edge=False)
    p.oval(0.71, 0.33, 0.025, 0.03, "ink", edge=False)


def short_beak(p: Pen) -> None:
    p.poly([(0.8, 0.3), (0.94, 0.38), (0.8, 0.44)], "gold")


def crest(p: Pen) -> None:
    p.poly([(0.5, 0.32), (0.42, 0.04), (0.58, 0.14), (0.64, 0.06), (0.74, 0.24)])


@kind("sparrow", "birds", family="small birds", colours=FEATHERS)
def sparrow(p: Pen) -> None:
    short_beak(p)
    small_bird(p)


@kind("cardinal", "birds", family="small birds", colours=FEATHERS)
def cardinal(p: Pen) -> None:
    crest(p)
    short_beak(p)
    small_bird(p)


@kind("hummingbird", "birds", family="small birds", colours=FEATHERS)
def hummingbird(p: Pen) -> None:
    p.poly([(0.78, 0.33), (1.16, 0.42), (0.78, 0.41)], "ink")
    small_bird(p)


@kind("woodpecker", "birds", family="small birds", colours=FEATHERS)
def woodpecker(p: Pen) -> None:
    crest(p)
    p.poly([(0.78, 0.3), (1.1, 0.38), (0.78, 0.44)], "ink")
    small_bird(p)


@kind("duck", "birds", colours=FEATHERS)
def duck(p: Pen) -> None:
    p.blob([(0.02, 0.5), (0.2, 0.62), (0.46, 0.56), (0.7, 0.56), (0.78, 0.72), (0.6, 0.9), (0.26, 0.88), (0.1, 0.72)])
    p.poly([(0.56, 0.66), (0.6, 0.34), (0.8, 0.34), (0.77, 0.7)], "main", edge=False)
    p.oval(0.69, 0.28, 0.16, 0.15)
    p.poly([(0.82, 0.24), (1.0, 0.29), (1.0, 0.36), (0.82, 0.36)], "gold")
    p.oval(0.74, 0.24, 0.025, 0.03, "ink", edge=False)
    p.blob([(0.2, 0.68), (0.42, 0.62), (0.58, 0.7), (0.42, 0.8)], "deep")


@kind("owl", "birds", colours=FEATHERS)
def owl(p: Pen) -> None:
    p.poly([(0.26, 0.3), (0.22, 0.04), (0.46, 0.2)])
    p.poly([(0.74, 0.3), (0.78, 0.04), (0.54, 0.2)])
    p.blob([(0.5, 0.14), (0.74, 0.22), (0.8, 0.56), (0.7, 0.88), (0.5, 0.93), (0.3, 0.88), (0.2, 0.56), (0.26, 0.22)])
    p.oval(0.5, 0.72, 0.17, 0.17, "pale", edge=False)
    for x in (0.37, 0.63):
        p.oval(x, 0.36, 0.14, 0.14, "white")
        p.oval(x, 0.36, 0.06, 0.06, "ink", edge=False)
    p.poly([(0.44, 0.44), (0.56, 0.44), (0.5, 0.58)], "gold")
    p.lines(0.05, "gold", [(0.4, 0.94), (0.46, 0.94)], [(0.54, 0.94), (0.6, 0.94)])


@kind("penguin", "birds", colours=("black", "blue", "grey", "purple", "brown"))
def penguin(p: Pen) -> None:
    p.ovals("gold", (0.38, 0.95, 0.11, 0.04), (0.62, 0.95, 0.11, 0.04))
    p.blob([(0.26, 0.4), (0.08, 0.62), (0.12, 0.72), (0.3, 0.6)])
    p.blob([(0.74, 0.4), (0.92, 0.62), (0.88, 0.72), (0.7, 0.6)])
    p.blob([(0.5, 0.03), (0.69, 0.14), (0.76, 0.5), (0.7, 0.86), (0.5, 0.94), (0.3, 0.86), (0.24, 0.5), (0.31, 0.14)])
    p.oval(0.5, 0.64, 0.18, 0.26, "white", edge=False)
    for x in (0.42, 0.58):
        p.oval(x, 0.18, 0.05, 0.055, "white", edge=False)
        p.oval(x, 0.18, 0.026, 0.03, "ink", edge=False)
    p.poly([(0.43, 0.25), (0.57, 0.25), (0.5, 0.35)], "gold")
