"""Tensors in a safetensors file, with the rights that the user's other files have, and errors that name the cause."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


# -------- undrawn
# Build a model whose weights are about to be loaded without drawing random ones first.
#
# Drawing the weights of a ViT-B/32 takes seconds, reading them a fraction of one. Inside `Undrawn()` draws give zeros,
# and other tensors hold what memory held: only for a model into which every weight is then loaded.

# erfinv_ turns uniform draws into truncated normals.
_FILLS = {Tensor.normal_, Tensor.uniform_, Tensor.erfinv_}


class Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _FILLS:
            return args[0].zero_()  # not left as it is: torch draws a truncated normal again until all values fit
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if function is torch.randn:
            function = torch.empty
        return function(*args, **kwargs)


# -------- identity
# Which model is this? A hash of how it is built and of its weights.
#
# The same weights under the same configuration have the same identity in every process, folder and format version,
# whatever file they lie in: caches of embeddings are kept under it, and an exported folder proves itself by it.

_DIGITS = 32  # 128 bits


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hex hash of named tensors: names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        # numpy's stubs know buffers from Python 3.12 on only.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()[:_DIGITS]


def identity(config: Mapping[str, Any], weights: str) -> str:
    """Hex hash of a model's configuration and the hash of its weights."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{text} {weights}".encode()).hexdigest()[:_DIGITS]
