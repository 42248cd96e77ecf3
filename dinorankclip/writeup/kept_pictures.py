"""Pictures that outlive the models they were drawn from.

Numbers go from machine to machine in results.json, models do not. A committed picture says in its own file what it
shows and which runs it was drawn from; as long as the study's runs are those, it stays on the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from dinorankclip.writeup.figures.drawn import CAPTION, DRAWN_FROM
from dinorankclip.writeup.study_figures import Missing


@dataclass(frozen=True)
class KeptPicture:
    """Its file is where it was."""

    name: str
    title: str
    caption: str


def unless_kept(missing: Missing, folder: Path, drawn_from: str) -> Missing | KeptPicture:
    """The picture of this name in `folder`, if it was drawn from the same runs; else what lacks, as before."""
    try:
        with Image.open(folder / f"{missing.name}.png") as picture:
            words = dict(picture.info)
    except (OSError, UnidentifiedImageError):
        return missing
    if not words.get(DRAWN_FROM) or words[DRAWN_FROM] != drawn_from:
        return missing
    return KeptPicture(missing.name, missing.title, f"{words[CAPTION]} Drawn earlier, from models of the same runs.")
