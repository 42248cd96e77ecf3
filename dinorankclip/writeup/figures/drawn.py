"""A finished figure with the words that belong to it, and its files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from dinorankclip.writeup.figures.style import DPI

# Texts in a PNG file, under names that its standard has.
CAPTION, DRAWN_FROM = "Description", "Source"


class Unavailable(Exception):
    """A figure cannot be drawn yet; the text says what lacks, as a sentence for the report."""


@dataclass(frozen=True)
class Drawn:
    """`name` names the files; `caption` is plain text. Pictures of photographs or thousands of points are no SVG.

    `shows_items`: images or captions of the data can be seen in it, which not everybody may pass on.
    `drawn_from`: the runs whose models were opened, as the file itself says beside the caption.
    Both forms are drawn once, however many files and pages they go to.
    """

    name: str
    title: str
    caption: str
    picture: Figure | Image.Image
    vector: bool = True
    shows_items: bool = False
    drawn_from: str = ""

    @cached_property
    def png(self) -> bytes:
        data = io.BytesIO()
        words = {CAPTION: self.caption, DRAWN_FROM: self.drawn_from}
        if isinstance(self.picture, Image.Image):
            self.picture.save(data, "PNG", optimize=True, pnginfo=png_texts(words))
        else:
            self.picture.savefig(data, format="png", dpi=DPI, metadata=words | {"Software": None})
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


def png_texts(words: Mapping[str, str]) -> PngInfo:
    told = PngInfo()
    for name, text in words.items():
        told.add_text(name, text)
    return told
