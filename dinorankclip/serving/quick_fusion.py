"""The text student and the full, gated fusion for one caption, in NumPy: what `quick_text` needs for a fused model.

Of one caption there is no padding, so nothing is masked. Shapes: L ids of a caption, the last being end-of-text; its
L - 1 other tokens; T = L - 1 + 14 tokens of all scales; C width of the student; D embedding width.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from dinorankclip.serving.quick_layers import Weights, attention, gelu, layer_norm, linear, sigmoid, softmax

STUDENT_HEADS = {"vit-tiny": 3, "vit-mini": 3, "vit-micro": 2}
VARIANT = "full"
_BINS = (2, 4, 8)
_HEAD_WIDTH = 32  # of the refiner
_READER = "text_fusion.residual.reader"


def student(table_rows: np.ndarray, weights: Weights, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """The trunk's token embeddings [L, W] → class token [C] and the other tokens [L - 1, C]."""
    x = linear(layer_norm(table_rows, weights, "text_student.norm_table"), weights, "text_student.project")
    x = x + weights("text_student.positions")[: len(x)]
    for number in itertools.count():
        layer = f"text_student.layers.{number}."
        if layer + "qkv.weight" not in weights:
            break
        seen = linear(layer_norm(x, weights, layer + "norm1"), weights, layer + "qkv")
        x = x + linear(attention(seen, heads, causal=False), weights, layer + "proj")
        seen = gelu(linear(layer_norm(x, weights, layer + "norm2"), weights, layer + "fc1"))
        x = x + linear(seen, weights, layer + "fc2")
    x = layer_norm(x, weights, "text_student.norm")
    return x[-1], x[:-1]


def fuse(v: np.ndarray, summary: np.ndarray, tokens: np.ndarray, weights: Weights) -> np.ndarray:
    """Trunk embedding [D], class token [C] and tokens [L - 1, C] → v + α ⊙ u [D]."""
    summary = layer_norm(summary, weights, f"{_READER}.norm")
    tokens = layer_norm(tokens, weights, f"{_READER}.norm")
    scales = [tokens, *(_pooled(tokens, bins) for bins in _BINS)]
    scales = _spatial(_channel(scales, weights), weights)
    found = _refined(summary, np.concatenate(scales), weights)
    found = layer_norm(found, weights, "text_fusion.residual.norm")
    u = linear(found, weights, "text_fusion.residual.projection", bias=False)
    u = u * (np.linalg.norm(v) / np.linalg.norm(u))
    return v + sigmoid(linear(np.concatenate([v, u]), weights, "text_fusion.gate")) * u


def _pooled(tokens: np.ndarray, bins: int) -> np.ndarray:
    """Adaptive means: bin j covers the tokens from ⌊j·n/bins⌋ to ⌈(j+1)·n/bins⌉."""
    n = len(tokens)
    return np.stack([tokens[j * n // bins : -(-(j + 1) * n // bins)].mean(0) for j in range(bins)])


def _channel(scales: list[np.ndarray], weights: Weights) -> list[np.ndarray]:
    every = np.concatenate(scales)
    pooled = np.stack([every.mean(0), every.max(0)])
    hidden = np.maximum(linear(pooled, weights, f"{_READER}.attention.channel.fc1"), 0)
    weight = sigmoid(linear(hidden, weights, f"{_READER}.attention.channel.fc2").sum(0))
    return [scale * weight for scale in scales]


def _spatial(scales: list[np.ndarray], weights: Weights) -> list[np.ndarray]:
    """A convolution along each scale by itself, over the mean and the maximum of its channels."""
    name = f"{_READER}.attention.spatial.conv"
    kernel, bias = weights(f"{name}.weight")[0], weights(f"{name}.bias")
    reach = kernel.shape[-1] // 2
    weighted = []
    for scale in scales:
        both = np.pad(np.stack([scale.mean(-1), scale.max(-1)]), ((0, 0), (reach, reach)))
        seen = np.array([(both[:, at : at + kernel.shape[-1]] * kernel).sum() for at in range(len(scale))]) + bias
        weighted.append(scale * sigmoid(seen)[:, None])
    return weighted


def _refined(summary: np.ndarray, tokens: np.ndarray, weights: Weights) -> np.ndarray:
    """One transformer layer, of which only the class token's output is computed."""
    name, width = f"{_READER}.summary", len(summary)
    heads = next(h for h in range(max(1, width // _HEAD_WIDTH), 0, -1) if width % h == 0)
    every = np.concatenate([summary[None], tokens])
    query = linear(summary, weights, f"{name}.query").reshape(heads, 1, -1)
    key = linear(every, weights, f"{name}.key", bias=False).reshape(len(every), heads, -1).transpose(1, 2, 0)
    value = linear(every, weights, f"{name}.value", bias=False).reshape(len(every), heads, -1).transpose(1, 0, 2)
    found = softmax(query @ key / np.float32(math.sqrt(query.shape[-1]))) @ value
    x = summary + linear(found.reshape(-1), weights, f"{name}.proj")
    hidden = gelu(linear(layer_norm(x, weights, f"{name}.norm"), weights, f"{name}.fc1"))
    return x + linear(hidden, weights, f"{name}.fc2")
