"""Clothes. Tops share a trunk and differ in sleeves and collar, hats share a head-piece and differ in the brim."""

from __future__ import annotations

from ..kind import kind
from ..pen import Pen


def trunk(p: Pen) -> None:
    p.poly([(0.3, 0.16), (0.7, 0.16), (0.72, 0.92), (0.28, 0.92)])


def neckline(p: Pen) -> None:
    p.slice(0.5, 0.16, 0.12, 0.11, 0, 180, "ink")


@kind("T-shirt", "clothes", family="tops")
def t_shirt(p: Pen) -> None:
    for s in (-1, 1):
        p.poly([(0.5 + s * 0.2, 0.16), (0.5 + s * 0.46, 0.34), (0.5 + s * 0.36, 0.48), (0.5 + s * 0.2, 0.38)])
    trunk(p)
    neckline(p)


@kind("sweater", "clothes", family="tops", also=("jumper",))
def sweater(p: Pen) -> None:
    for s in (-1, 1):
        p.poly(
            [
                (0.5 + s * 0.2, 0.16), (0.5 + s * 0.36, 0.3), (0.5 + s * 0.46, 0.8),
                (0.5 + s * 0.32, 0.84), (0.5 + s * 0.2, 0.42),
            ],
        )
    trunk(p)
    p.box(0.28, 0.84, 0.72, 0.94, "deep")
    p.box(0.39, 0.08, 0.61, 0.2, "deep")


@kind("tank top", "clothes", family="tops")
def tank_top(p: Pen) -> None:
    p.box(0.31, 0.06, 0.4, 0.24)
    p.box(0.6, 0.06, 0.69, 0.24)
    p.poly([(0.3, 0.24), (0.7, 0.24), (0.72, 0.92), (0.28, 0.92)])
    p.slice(0.5, 0.23, 0.11, 0.13, 0, 180, "ink")


@kind("jacket", "clothes", family="tops")
def jacket(p: Pen) -> None:
    for s in (-1, 1):
        p.poly(
            [
                (0.5 + s * 0.2, 0.16), (0.5 + s * 0.36, 0.3), (0.5 + s * 0.46, 0.8),
                (0.5 + s * 0.32, 0.84), (0.5 + s * 0.2, 0.42),
            ],
        )
    trunk(p)
    p.poly([(0.36, 0.14), (0.64, 0.14), (0.5, 0.44)], "white")
    p.line([(0.5, 0.44), (0.5, 0.9)], 0.035, "ink")
    for y in (0.56, 0.7):
        p.oval(0.57, y, 0.03, 0.03, "gold", edge=False)


@kind("top hat", "clothes", family="hats", also=("cylinder hat",))
def top_hat(p: Pen) -> None:
    p.box(0.29, 0.14, 0.71, 0.74)
    p.box(0.29, 0.6, 0.71, 0.71, "pale")
    p.box(0.1, 0.72, 0.9, 0.81)


@kind("cowboy hat", "clothes", family="hats")
def cowboy_hat(p: Pen) -> None:
    p.blob([(0.28, 0.72), (0.32, 0.32), (0.42, 0.26), (0.5, 0.34), (0.58, 0.26), (0.68, 0.32), (0.72, 0.72)])
    p.box(0.29, 0.6, 0.71, 0.69, "deep")
    p.blob([(0.0, 0.52), (0.2, 0.68), (0.5, 0.7), (0.8, 0.68), (1.0, 0.52), (0.88, 0.76), (0.5, 0.84), (0.12, 0.76)])


@kind("baseball cap", "clothes", family="hats", also=("cap",))
def baseball_cap(p: Pen) -> None:
    p.slice(0.42, 0.72, 0.34, 0.46, 180, 360)
    p.oval(0.42, 0.26, 0.05, 0.03, "deep")
    p.blob([(0.4, 0.68), (0.74, 0.66), (1.0, 0.76), (0.96, 0.82), (0.7, 0.78), (0.4, 0.76)], "deep")


@kind("party hat", "clothes", family="hats")
def party_hat(p: Pen) -> None:
    p.poly([(0.5, 0.12), (0.76, 0.88), (0.24, 0.88)])
    p.oval(0.5, 0.12, 0.1, 0.09, "glow")
    p.line([(0.25, 0.87), (0.75, 0.87)], 0.05, "white")


@kind("pair of trousers", "clothes", plural="pairs of trousers", also=("pair of pants/pairs of pants",))
def trousers(p: Pen) -> None:
    p.poly([(0.3, 0.06), (0.7, 0.06), (0.8, 0.96), (0.58, 0.96), (0.5, 0.36), (0.42, 0.96), (0.2, 0.96)])
    p.box(0.3, 0.05, 0.7, 0.14, "deep")


@kind("dress", "clothes", plural="dresses", also=("gown",))
def dress(p: Pen) -> None:
    p.line([(0.38, 0.2), (0.4, 0.04)], 0.05, "main", edge=True)
    p.line([(0.62, 0.2), (0.6, 0.04)], 0.05, "main", edge=True)
    p.poly([(0.34, 0.16), (0.66, 0.16), (0.6, 0.46), (0.86, 0.95), (0.14, 0.95), (0.4, 0.46)])
    p.box(0.38, 0.42, 0.62, 0.5, "deep")


@kind("boot", "clothes", also=("rubber boot",))
def boot(p: Pen) -> None:
    p.blob([(0.24, 0.06), (0.56, 0.06), (0.56, 0.5), (0.64, 0.6), (0.9, 0.68), (0.92, 0.86), (0.24, 0.86)])
    p.box(0.22, 0.84, 0.94, 0.94, "ink")
    p.box(0.22, 0.04, 0.58, 0.15, "deep")


@kind("sock", "clothes")
def sock(p: Pen) -> None:
    p.blob(
        [
            (0.32, 0.08), (0.64, 0.08), (0.64, 0.52), (0.82, 0.68),
            (0.84, 0.86), (0.66, 0.94), (0.42, 0.82), (0.32, 0.6),
        ],
    )
    p.box(0.3, 0.05, 0.66, 0.18, "white")
    p.blob([(0.68, 0.9), (0.72, 0.72), (0.84, 0.7), (0.86, 0.84), (0.78, 0.94)], "white")
