"""A finished figure with the words that belong to it, and its files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from dinorankclip.writeup.figures.style import DPI


class Unavailable(Exception):
    """A figure cannot be drawn yet; the text says what lacks, as a sentence for the report."""


@dataclass(frozen=True)
class Drawn:
    """`name` names the files; `caption` is plain text. Pictures of photographs or thousands of points are no SVG.

    `shows_items`: images or captions of the data can be seen in it, which not everybody may pass on.
    Both forms are drawn once, however many files and pages they go to.
    """

    name: str
    title: str
    caption: str
    picture: Figure | Image.Image
    vector: bool = True
    shows_items: bool = False

    @cached_property
    def png(self) -> bytes:
        data = io.BytesIO()
        if isinstance(self.picture, Image.Image):
            self.picture.save(data, "PNG", optimize=True)
        else:
            self.picture.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
        return data.getvalue()

    @cached_property
    def svg(self) -> bytes | None:
        """None where a drawing of lines would be larger than a picture of pixels."""
        if not self.vector or isinstance(self.picture, Image.Image):
            return None
        data = io.BytesIO()
        self.picture.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
        return data.getvalue()

    def save(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for ending, data in (("png", self.png), ("svg", self.svg)):
            if data is not None:
                path = folder / f"{self.name}.{ending}"
                path.write_bytes(data)
                written.append(path)
        return written
