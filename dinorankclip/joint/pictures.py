"""Any picture a user may hold → the pixels a model looks at: the same view that evaluation shows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.data.images import decode, from_pillow
from dinorankclip.data.views import render_whole
from dinorankclip.types import UserError

Picture = str | os.PathLike | bytes | Image.Image | np.ndarray


def show(picture: Picture, size: int) -> Tensor:
    """A path, encoded bytes, a Pillow image or uint8 pixels [H, W, 3] → uint8 [3, size, size]: its centre."""
    try:
        pixels = _pixels(picture)
    except Damage as damage:
        name = f"{os.fspath(picture)}: " if isinstance(picture, str | os.PathLike) else ""
        raise UserError(f"{name}{CAUSES[damage.cause]} ({damage.detail or damage.cause})") from damage
    return render_whole(pixels, size)


def _pixels(picture: Picture) -> np.ndarray:
    if isinstance(picture, Image.Image):
        return from_pillow(picture)
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise UserError(f"pixels must be uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
        return picture
    if isinstance(picture, bytes):
        return decode(picture)
    if not isinstance(picture, str | os.PathLike):
        raise UserError(f"a picture is a path, bytes, a Pillow image or uint8 pixels, not {type(picture).__name__}")
    try:
        data = Path(picture).read_bytes()
    except OSError as error:
        raise UserError(f"{os.fspath(picture)} cannot be read: {error.strerror}") from error
    return decode(data)
