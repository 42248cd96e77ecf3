"""Birds. The small ones share one body: a crest or none, and one of three beaks, tell them apart."""

from __future__ import annotations

from ..colours import FEATHERS
from ..kind import kind
from ..pen import Pen


def small_bird(p: Pen) -> None:
    p.line([(0.42, 0.74), (0.4, 0.94)], 0.03, "dusk")
    p.line([(0.52, 0.74), (0.54, 0.94)], 0.03, "dusk")
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
    p.line([(0.4, 0.94), (0.46, 0.94)], 0.05, "gold")
    p.line([(0.54, 0.94), (0.6, 0.94)], 0.05, "gold")


@kind("penguin", "birds", colours=("black", "blue", "grey", "purple", "brown"))
def penguin(p: Pen) -> None:
    p.oval(0.38, 0.95, 0.11, 0.04, "gold")
    p.oval(0.62, 0.95, 0.11, 0.04, "gold")
    p.blob([(0.26, 0.4), (0.08, 0.62), (0.12, 0.72), (0.3, 0.6)])
    p.blob([(0.74, 0.4), (0.92, 0.62), (0.88, 0.72), (0.7, 0.6)])
    p.blob([(0.5, 0.03), (0.69, 0.14), (0.76, 0.5), (0.7, 0.86), (0.5, 0.94), (0.3, 0.86), (0.24, 0.5), (0.31, 0.14)])
    p.oval(0.5, 0.64, 0.18, 0.26, "white", edge=False)
    for x in (0.42, 0.58):
        p.oval(x, 0.18, 0.05, 0.055, "white", edge=False)
        p.oval(x, 0.18, 0.026, 0.03, "ink", edge=False)
    p.poly([(0.43, 0.25), (0.57, 0.25), (0.5, 0.35)], "gold")
