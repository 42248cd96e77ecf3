"""The few layers a text tower is made of, for one sequence, in NumPy. Shapes: L tokens, W width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open

_EPSILON = 1e-5  # of torch's LayerNorm
_erf: Callable[[np.ndarray], np.ndarray] = np.frompyfunc(math.erf, 1, 1)


class Weights:
    """`weights(name)` → that tensor of a safetensors file, read when it is asked for; `in` says if it is there."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="numpy")
        self._names = frozenset(self._file.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __call__(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)

    def rows(self, name: str, places: Sequence[int]) -> np.ndarray:
        """Some rows of a large table, without reading the others."""
        table = self._file.get_slice(name)
        return np.concatenate([table[place : place + 1] for place in places])


def layer_norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(_EPSILON))
    return scaled * weights(f"{name}.weight") + weights(f"{name}.bias")


def linear(x: np.ndarray, weights: Weights, name: str, bias: bool = True) -> np.ndarray:
    product = x @ weights(f"{name}.weight").T
    return product + weights(f"{name}.bias") if bias else product


def gelu(x: np.ndarray) -> np.ndarray:
    return (0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)).astype(np.float32))).astype(np.float32)


def quick_gelu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(np.float32(1.702) * x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attention(projected: np.ndarray, heads: int, causal: bool) -> np.ndarray:
    """Queries, keys and values side by side [L, 3·W] → what each token gathers [L, W]."""
    length = len(projected)
    query, key, value = projected.reshape(length, 3, heads, -1).transpose(1, 2, 0, 3)
    scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(query.shape[-1]))
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, np.float32(-np.inf))
    return (softmax(scores) @ value).transpose(1, 0, 2).reshape(length, -1)
