"""Which model is this? A hash of how it is built and of its weights.

The same weights under the same configuration have the same identity in every process, folder and format version,
whatever file they lie in: caches of embeddings are kept under it, and an exported folder proves itself by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
