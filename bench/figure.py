"""Lines on two logarithmic axes as an SVG, without a plotting library: benches run where only the package is."""

from __future__ import annotations

import math
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 420, 320, 62, 34, 86, 44
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")

Lines = dict[str, dict[float, float]]


def panels(drawn: dict[str, tuple[str, Lines]], across: str) -> str:
    """Side by side: title → (name of the upright axis, lines by name as {x: y}). Both axes are logarithmic."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(drawn)}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, (upright, lines)) in enumerate(drawn.items()):
        parts.append(f'<g transform="translate({number * WIDTH},0)">{_panel(title, across, upright, lines)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, across: str, upright: str, lines: Lines) -> str:
    points = [(x, y) for line in lines.values() for x, y in line.items() if y > 0]
    columns = sorted({x for x, _ in points})
    low, high = min(y for _, y in points), max(y for _, y in points)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        share_x = math.log(x / columns[0]) / (math.log(columns[-1] / columns[0]) or 1)
        share_y = (math.log10(y) - decades[0]) / max(1, decades[-1] - decades[0])
        return LEFT + share_x * (right - LEFT), bottom - share_y * (bottom - TOP)

    drawn = [
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="translate(14,{(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(upright)}</text>",
    ]
    for decade in decades:
        _, y = place(columns[0], 10.0**decade)
        drawn.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    for column in columns:
        x, _ = place(column, low)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>')
        drawn.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{column:g}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = [place(x, y) for x, y in sorted(line.items()) if y > 0]
        written = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        drawn.append(f'<polyline points="{written}" fill="none" stroke="{colour}" stroke-width="2"/>')
        # The legend stands to the right, lines in their order: ends of lines may lie on top of each other.
        height = TOP + 10 + 16 * number
        drawn.append(f'<line x1="{right + 8}" x2="{right + 24}" y1="{height - 4}" y2="{height - 4}" stroke="{colour}" '
                     f'stroke-width="2"/><text x="{right + 28}" y="{height}">{escape(name)}</text>')  # fmt: skip
    return "\n".join(drawn)
