"""Draws cars, trucks, boats and other vehicles. All of them head to the right."""

from __future__ import annotations

from dinorankclip.data.scenes.drawing import Pen
from dinorankclip.data.scenes.subjects import kind


def wheels(p: Pen, y: float, r: float, *xs: float) -> None:
    for x in xs:
        p.oval(x, y, r, r, "rubber")
        p.oval(x, y, r * 0.45, r * 0.45, "metal", edge=False)


def car(p: Pen) -> None:
    p.poly([(0.17, 0.5), (0.29, 0.26), (0.66, 0.26), (0.82, 0.5)])
    p.poly([(0.25, 0.48), (0.33, 0.31), (0.46, 0.31), (0.46, 0.48)], "glass")
    p.poly([(0.51, 0.48), (0.51, 0.31), (0.63, 0.31), (0.74, 0.48)], "glass")
    p.poly([(0.02, 0.5), (0.06, 0.47), (0.9, 0.47), (0.98, 0.56), (0.98, 0.7), (0.02, 0.7)])
    p.oval(0.95, 0.57, 0.03, 0.035, "glow", edge=False)
    wheels(p, 0.7, 0.12, 0.23, 0.76)


@kind("sedan", "vehicles", family="cars", seat=0.26)
def sedan(p: Pen) -> None:
    car(p)
    p.line([(0.42, 0.56), (0.49, 0.56)], 0.025)


@kind("taxi", "vehicles", family="cars", also=("cab",), seat=0.26)
def taxi(p: Pen) -> None:
    p.box(0.38, 0.13, 0.58, 0.25, "glow")
    car(p)
    p.box(0.12, 0.52, 0.88, 0.62, "white", edge=False)
    for k in range(8):
        x, y = 0.12 + 0.095 * k, 0.52 + 0.05 * (k % 2)
        p.box(x, y, x + 0.095, y + 0.05, "ink", edge=False)


@kind("police car", "vehicles", family="cars", seat=0.26)
def police_car(p: Pen) -> None:
    p.box(0.34, 0.14, 0.48, 0.25, "signal")
    p.box(0.48, 0.14, 0.62, 0.25, "beam")
    car(p)
    p.box(0.36, 0.49, 0.63, 0.69, "white")
    p.oval(0.495, 0.59, 0.055, 0.06, "gold")


def truck_cab(p: Pen) -> None:
    p.poly([(0.68, 0.72), (0.68, 0.34), (0.86, 0.34), (0.97, 0.52), (0.97, 0.72)])
    p.poly([(0.74, 0.5), (0.74, 0.39), (0.83, 0.39), (0.9, 0.5)], "glass")
    wheels(p, 0.76, 0.1, 0.2, 0.45, 0.82)


@kind("delivery truck", "vehicles", family="trucks", also=("moving van",), seat=0.18)
def delivery_truck(p: Pen) -> None:
    p.box(0.02, 0.18, 0.66, 0.72)
    p.box(0.12, 0.32, 0.56, 0.54, "cream")
    truck_cab(p)


@kind("fire truck", "vehicles", family="trucks", also=("fire engine",), seat=0.4)
def fire_truck(p: Pen) -> None:
    p.box(0.02, 0.42, 0.68, 0.72)
    p.lines(0.035, "metal", [(0.03, 0.33), (0.66, 0.16)], [(0.03, 0.44), (0.66, 0.27)], edge=True)
    for k in range(5):
        x, y = 0.08 + 0.13 * k, 0.335 - 0.035 * k
        p.line([(x, y), (x, y + 0.11)], 0.03, "metal", edge=True)
    p.box(0.72, 0.25, 0.82, 0.34, "signal")
    p.box(0.1, 0.52, 0.56, 0.6, "white", edge=False)
    truck_cab(p)


@kind("dump truck", "vehicles", family="trucks", also=("tipper truck",))
def dump_truck(p: Pen) -> None:
    p.blob([(0.1, 0.34), (0.22, 0.2), (0.36, 0.14), (0.5, 0.22), (0.6, 0.34), (0.35, 0.45)], "dusk")
    p.poly([(0.0, 0.32), (0.7, 0.32), (0.6, 0.64), (0.14, 0.64)])
    p.box(0.1, 0.64, 0.7, 0.72, "metal")
    truck_cab(p)


@kind("bus", "vehicles", plural="buses", seat=0.2)
def bus(p: Pen) -> None:
    p.box(0.02, 0.2, 0.98, 0.76)
    for k in range(4):
        p.box(0.07 + 0.18 * k, 0.28, 0.21 + 0.18 * k, 0.47, "glass")
    p.box(0.81, 0.28, 0.93, 0.76, "glass")
    wheels(p, 0.77, 0.1, 0.22, 0.68)


def hull(p: Pen) -> None:
    p.poly([(0.04, 0.66), (0.97, 0.62), (0.8, 0.9), (0.2, 0.9)])


@kind("sailboat", "vehicles", family="boats", also=("sailing boat",))
def sailboat(p: Pen) -> None:
    p.line([(0.48, 0.66), (0.48, 0.04)], 0.035, "wood", edge=True)
    p.poly([(0.52, 0.06), (0.52, 0.58), (0.9, 0.58)], "white")
    p.poly([(0.44, 0.14), (0.44, 0.58), (0.14, 0.58)], "white")
    hull(p)


@kind("rowing boat", "vehicles", family="boats", also=("rowboat",))
def rowing_boat(p: Pen) -> None:
    p.line([(0.6, 0.72), (0.2, 0.38)], 0.04, "wood", edge=True)
    p.oval(0.17, 0.36, 0.1, 0.06, "wood")
    p.line([(0.7, 0.72), (0.95, 0.4)], 0.04, "wood", edge=True)
    hull(p)
    p.line([(0.12, 0.72), (0.88, 0.69)], 0.03, "white")


@kind("steamboat", "vehicles", family="boats", also=("steamship",))
def steamboat(p: Pen) -> None:
    p.ovals("white", (0.2, 0.12, 0.1, 0.1), (0.34, 0.14, 0.07, 0.07))
    p.box(0.38, 0.2, 0.52, 0.5, "ink")
    p.box(0.38, 0.28, 0.52, 0.36, "signal", edge=False)
    p.box(0.24, 0.46, 0.74, 0.65, "white")
    for k in range(3):
        p.oval(0.34 + 0.15 * k, 0.55, 0.04, 0.045, "glass")
    hull(p)


@kind("bicycle", "vehicles", also=("bike",), patterned=False)
def bicycle(p: Pen) -> None:
    for x in (0.22, 0.78):
        p.arc(x, 0.68, 0.18, 0.18, 0, 360, width=0.045, fill="rubber")
    p.line([(0.22, 0.68), (0.38, 0.38), (0.68, 0.38), (0.48, 0.68), (0.22, 0.68)], 0.05, "main", edge=True)
    p.lines(0.05, "main", [(0.48, 0.68), (0.35, 0.32)], [(0.78, 0.68), (0.66, 0.26), (0.78, 0.22)], edge=True)
    p.line([(0.27, 0.3), (0.43, 0.3)], 0.06, "ink")


@kind("airplane", "vehicles", also=("plane",))
def airplane(p: Pen) -> None:
    p.poly([(0.5, 0.48), (0.3, 0.16), (0.42, 0.16), (0.68, 0.48)], "deep")
    p.poly([(0.12, 0.46), (0.02, 0.22), (0.14, 0.22), (0.28, 0.46)], "deep")
    p.blob([(0.06, 0.46), (0.4, 0.42), (0.8, 0.42), (0.98, 0.52), (0.8, 0.61), (0.4, 0.62), (0.12, 0.56)])
    for k in range(4):
        p.oval(0.36 + 0.11 * k, 0.49, 0.03, 0.03, "glass", edge=False)
    p.poly([(0.84, 0.44), (0.91, 0.47), (0.84, 0.49)], "glass", edge=False)
    p.poly([(0.44, 0.55), (0.66, 0.55), (0.38, 0.86), (0.26, 0.86)], "deep")


@kind("helicopter", "vehicles")
def helicopter(p: Pen) -> None:
    p.line([(0.2, 0.18), (1.0, 0.18)], 0.04, "ink")
    p.line([(0.6, 0.18), (0.6, 0.32)], 0.05, "ink")
    p.poly([(0.45, 0.42), (0.05, 0.34), (0.05, 0.42), (0.45, 0.58)])
    p.line([(0.05, 0.22), (0.05, 0.52)], 0.04, "ink")
    p.oval(0.63, 0.5, 0.28, 0.2)
    p.slice(0.68, 0.5, 0.22, 0.15, -90, 20, "glass")
    p.lines(0.035, "ink", [(0.5, 0.68), (0.48, 0.8)], [(0.74, 0.68), (0.76, 0.8)])
    p.line([(0.36, 0.81), (0.92, 0.81)], 0.04, "ink")


@kind("train", "vehicles", also=("steam locomotive", "steam train"), seat=0.22)
def train(p: Pen) -> None:
    p.box(0.77, 0.2, 0.87, 0.44, "ink")
    p.oval(0.82, 0.12, 0.1, 0.07, "white")
    p.boxes("main", (0.34, 0.4, 0.93, 0.68), (0.06, 0.22, 0.4, 0.68))
    p.box(0.13, 0.3, 0.32, 0.46, "glass")
    p.poly([(0.93, 0.62), (1.0, 0.78), (0.86, 0.78)], "metal")
    p.box(0.04, 0.66, 0.92, 0.73, "deep")
    wheels(p, 0.76, 0.13, 0.2)
    wheels(p, 0.79, 0.1, 0.51, 0.76)


@kind("tractor", "vehicles")
def tractor(p: Pen) -> None:
    p.box(0.68, 0.2, 0.73, 0.45, "ink")
    p.poly([(0.14, 0.5), (0.2, 0.16), (0.52, 0.16), (0.56, 0.5)], "glass")
    p.boxes("main", (0.14, 0.12, 0.56, 0.2), (0.42, 0.42, 0.94, 0.66))
    wheels(p, 0.66, 0.24, 0.28)
    wheels(p, 0.76, 0.14, 0.82)
