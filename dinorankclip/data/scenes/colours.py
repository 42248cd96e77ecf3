"""Named colours of things, tones made from them, and the colours of fixed parts (glass, rubber, …)."""

from __future__ import annotations

Rgb = tuple[int, int, int]

COLOURS: dict[str, Rgb] = {
    "red": (208, 38, 38),
    "orange": (243, 134, 26),
    "yellow": (248, 216, 48),
    "green": (58, 158, 66),
    "blue": (46, 92, 208),
    "purple": (132, 62, 178),
    "pink": (244, 142, 184),
    "brown": (132, 82, 44),
    "grey": (142, 144, 148),
    "black": (40, 40, 44),
    "white": (246, 246, 242),
}
ANY = tuple(COLOURS)
FUR = ("brown", "black", "white", "grey", "orange")
FEATHERS = ("red", "blue", "yellow", "brown", "green", "grey", "white", "black")
BLOSSOM = ("red", "pink", "yellow", "white", "purple", "orange", "blue")

MATERIALS: dict[str, Rgb] = {
    "ink": (30, 30, 34),
    "white": (250, 250, 246),
    "glass": (186, 222, 240),
    "metal": (168, 174, 182),
    "rubber": (48, 48, 54),
    "wood": (166, 112, 62),
    "leaf": (72, 146, 62),
    "gold": (228, 180, 58),
    "glow": (255, 238, 150),
    "signal": (222, 44, 44),
    "beam": (52, 106, 236),
    "cream": (244, 226, 188),
    "dusk": (92, 78, 70),
    "rose": (244, 160, 160),
}


def brightness(colour: Rgb) -> float:
    """Perceived, 0 to 255."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def mix(a: Rgb, b: Rgb, share: float) -> Rgb:
    """`share` of b, the rest of a."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b))
    return red, green, blue


def deep(colour: Rgb) -> Rgb:
    """A darker tone, told apart even from black (where it turns lighter instead)."""
    return mix(colour, (0, 0, 0), 0.32) if brightness(colour) > 60 else mix(colour, (255, 255, 255), 0.22)


def pale(colour: Rgb) -> Rgb:
    return mix(colour, (255, 255, 255), 0.5) if brightness(colour) < 225 else mix(colour, (120, 130, 150), 0.2)


def contrast(colour: Rgb) -> Rgb:
    """The second colour of a pattern: the same hue, far away in brightness."""
    if brightness(colour) > 135:
        return mix(colour, (20, 10, 20), 0.62)
    return mix(colour, (255, 255, 255), 0.72)


def outline(colour: Rgb) -> Rgb:
    """Dark around light parts; around very dark ones lighter, so that they show on a night sky."""
    return mix(colour, (16, 12, 16), 0.72) if brightness(colour) > 60 else mix(colour, (255, 255, 255), 0.35)
