"""Reads and writes tensors in safetensors files, and hashes tensors, for model folders, checkpoints and exports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dinorankclip.checked_files import open_regular
from dinorankclip.types import UserError

_DIGITS = 32  # hexadecimal digits of a hash: 128 bits
_DRAWS = {Tensor.normal_, Tensor.uniform_, Tensor.erfinv_}  # erfinv_ turns uniform draws into truncated normals


def write_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file with the permissions of the user's other files: safetensors alone would write it for its owner."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # a full or broken disk
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise
    path.chmod(mode)


def read_weights(path: Path) -> dict[str, Tensor]:
    demand_readable(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read, it is cut short or no safetensors file: {error}") from error


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of all tensors of a safetensors file without reading the tensors."""
    demand_readable(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read, it is cut short or no safetensors file: {error}") from error


def demand_readable(path: Path) -> None:
    """Refuse what is no regular file, and a file without read permission, which readers of weights would call missing
    or damaged."""
    try:
        os.close(open_regular(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error


class skip_init(TorchFunctionMode):
    """Builds modules without random initial weights inside a `with` block.

    Drawing the weights of a ViT-B/32 takes seconds, reading them a fraction of one. Tensors are zero or hold what
    memory held: use this only for a model into which every weight is then loaded.
    """

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _DRAWS:
            return args[0].zero_()  # torch would draw a truncated normal again until all values fit
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if function is torch.randn:
            function = torch.empty
        return function(*args, **kwargs)


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return a hex hash of named tensors: names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        # numpy's stubs know buffers from Python 3.12 on only.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()[:_DIGITS]


def identity(config: Mapping[str, Any], weights: str) -> str:
    """Return a hex hash of a model's configuration and of the hash of its weights.

    The hash is the same in every process, folder and format version. Embeddings are cached under it.
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{text} {weights}".encode()).hexdigest()[:_DIGITS]
