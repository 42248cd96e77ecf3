"""Tensors in a safetensors file, with the rights that the user's other files have, and errors that name the cause."""

from __future__ import annotations

import stat
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dinorankclip.types import UserError


def write_weights(tensors: dict[str, Tensor], path: Path) -> None:
    path.touch()  # made as the user's umask says; safetensors puts a file in its place that only its owner may read
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(mode)


def read_weights(path: Path) -> dict[str, Tensor]:
    demand_readable(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read, it is cut short or no safetensors file: {error}") from error


def demand_readable(path: Path) -> None:
    """Readers of weights say that there is no such file, or a damaged one, where they are not allowed to read it."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
