"""Embeds one caption in NumPy, so that `search` answers a query in words without importing torch.

A query needs a few million multiplications; importing torch and open_clip to do them takes seconds. NumPy serves models
whose text tower is open_clip's plain tower (causal, pooled at the end-of-text token), alone or under the full gated
fusion. This is a second implementation of those layers, so it is checked: `agrees` compares it with the model whenever
the model is loaded anyway, and only a model that passed is served by NumPy. One caption needs neither padding nor mask.

Shapes: L ids of a caption, the last of which is end-of-text; W width of the trunk; C width of the student; D embedding
width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from dinorankclip.checked_files import read_object
from dinorankclip.data.tokens import BytePairs
from dinorankclip.json_shape import FLAG, NONE, TEXT, either, entries, fault, whole
from dinorankclip.types import UserError

STUDENT_HEADS = {"vit-tiny": 3, "vit-mini": 3, "vit-micro": 2}
PROBES = ("a photo", "two dogs running on the beach, one of them with a red ball", "Straßencafé №5, it's 20% off!")
TOLERANCE = 1e-4  # largest error of any number of a unit-norm embedding
# All settings of a plain tower. Any other setting asks for a layer that is not implemented here.
_TRUNK = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"}
_TEXT = {"context_length", "vocab_size", "width", "heads", "layers"}
_DESIGN = {
    "trunk": entries(
        {
            "text_cfg": entries(
                {"context_length": whole(1, 1 << 14), "heads": whole(1, 1 << 14), "layers": whole(1, 512)},
                required=("context_length", "heads", "layers"),
            ),
            "quick_gelu": FLAG,
        },
        required=("text_cfg",),
    ),
    "students": entries({"text": either(TEXT, NONE)}),
    "fusion": entries({"variant": TEXT, "gate": FLAG, "start": TEXT, "source": TEXT, "branches": TEXT}),
}
_TOWER = "trunk.towers"
_READER = "text_fusion.residual.reader"
_BINS = (2, 4, 8)  # bins of the token pyramid
_HEAD_WIDTH = 32  # head width of the refiner
_EPSILON = np.float32(1e-5)  # epsilon of torch's LayerNorm
_erf: Callable[[np.ndarray], np.ndarray] = np.frompyfunc(math.erf, 1, 1)


class Weights:
    """Reads a safetensors file: `weights(name)` reads a tensor on demand; `name in weights` tells if it exists."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="numpy")
        self._names = frozenset(self._file.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __call__(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)

    def rows(self, name: str, places: Sequence[int]) -> np.ndarray:
        """Read some rows of a large table, without reading the others."""
        table = self._file.get_slice(name)
        return np.concatenate([table[place : place + 1] for place in places])


def layer_norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + _EPSILON)
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
    """Map queries, keys and values side by side [L, 3·W] to the output of each token [L, W]."""
    length = len(projected)
    query, key, value = projected.reshape(length, 3, heads, -1).transpose(1, 2, 0, 3)
    scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(query.shape[-1]))
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, np.float32(-np.inf))
    return (softmax(scores) @ value).transpose(1, 0, 2).reshape(length, -1)


def student(table_rows: np.ndarray, weights: Weights, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Map the trunk's token embeddings [L, W] to class token [C] and the other tokens [L - 1, C]."""
    x = linear(layer_norm(table_rows, weights, "text_student.norm_table"), weights, "text_student.project")
    x = x + weights("text_student.positions")[: len(x)]
    for number in itertools.count():
        layer = f"text_student.layers.{number}."
        if layer + "qkv.weight" not in weights:
            break
        projected = linear(layer_norm(x, weights, layer + "norm1"), weights, layer + "qkv")
        x = x + linear(attention(projected, heads, causal=False), weights, layer + "proj")
        hidden = gelu(linear(layer_norm(x, weights, layer + "norm2"), weights, layer + "fc1"))
        x = x + linear(hidden, weights, layer + "fc2")
    x = layer_norm(x, weights, "text_student.norm")
    return x[-1], x[:-1]


def fuse(v: np.ndarray, summary: np.ndarray, tokens: np.ndarray, weights: Weights, rescale: bool = True) -> np.ndarray:
    """Fuse trunk embedding [D], class token [C] and tokens [L - 1, C] into v + α ⊙ u [D]; `rescale` u to ‖v‖."""
    summary = layer_norm(summary, weights, f"{_READER}.norm")
    tokens = layer_norm(tokens, weights, f"{_READER}.norm")
    scales = [tokens, *(_pooled(tokens, bins) for bins in _BINS)]
    scales = _spatial(_channel(scales, weights), weights)
    refined = layer_norm(_refined(summary, np.concatenate(scales), weights), weights, "text_fusion.residual.norm")
    u = linear(refined, weights, "text_fusion.residual.projection", bias=False)
    if rescale:
        u = u * (np.linalg.norm(v) / np.linalg.norm(u))
    return v + sigmoid(linear(np.concatenate([v, u]), weights, "text_fusion.gate")) * u


def _pooled(tokens: np.ndarray, bins: int) -> np.ndarray:
    """Average tokens adaptively: bin j covers the tokens from ⌊j·n/bins⌋ to ⌈(j+1)·n/bins⌉."""
    n = len(tokens)
    return np.stack([tokens[j * n // bins : -(-(j + 1) * n // bins)].mean(0) for j in range(bins)])


def _channel(scales: list[np.ndarray], weights: Weights) -> list[np.ndarray]:
    every = np.concatenate(scales)
    pooled = np.stack([every.mean(0), every.max(0)])
    hidden = np.maximum(linear(pooled, weights, f"{_READER}.attention.channel.fc1"), 0)
    weight = sigmoid(linear(hidden, weights, f"{_READER}.attention.channel.fc2").sum(0))
    return [scale * weight for scale in scales]


def _spatial(scales: list[np.ndarray], weights: Weights) -> list[np.ndarray]:
    """Convolve along each scale by itself, over the mean and the maximum of its channels."""
    name = f"{_READER}.attention.spatial.conv"
    kernel, bias = weights(f"{name}.weight")[0], weights(f"{name}.bias")
    reach = kernel.shape[-1] // 2
    weighted = []
    for scale in scales:
        both = np.pad(np.stack([scale.mean(-1), scale.max(-1)]), ((0, 0), (reach, reach)))
        sums = np.array([(both[:, at : at + kernel.shape[-1]] * kernel).sum() for at in range(len(scale))]) + bias
        weighted.append(scale * sigmoid(sums)[:, None])
    return weighted


def _refined(summary: np.ndarray, tokens: np.ndarray, weights: Weights) -> np.ndarray:
    """Run one transformer layer, of which only the class token's output is computed."""
    name, width = f"{_READER}.summary", len(summary)
    heads = next(h for h in range(max(1, width // _HEAD_WIDTH), 0, -1) if width % h == 0)
    every = np.concatenate([summary[None], tokens])
    query = linear(summary, weights, f"{name}.query").reshape(heads, 1, -1)
    key = linear(every, weights, f"{name}.key", bias=False).reshape(len(every), heads, -1).transpose(1, 2, 0)
    value = linear(every, weights, f"{name}.value", bias=False).reshape(len(every), heads, -1).transpose(1, 0, 2)
    gathered = softmax(query @ key / np.float32(math.sqrt(query.shape[-1]))) @ value
    x = summary + linear(gathered.reshape(-1), weights, f"{name}.proj")
    hidden = gelu(linear(layer_norm(x, weights, f"{name}.norm"), weights, f"{name}.fc1"))
    return x + linear(hidden, weights, f"{name}.fc2")


class NotPlain(Exception):
    """Raised for a model whose captions NumPy cannot embed."""


# KeyError, ValueError, TypeError: tensors of other names, shapes or types than a plain model has.
UNFIT = (NotPlain, UserError, SafetensorError, OSError, ValueError, KeyError, TypeError)


class QuickText:
    """Embeds captions, `QuickText(folder)(caption)` → unit fp32 [D]; needs model.json and model.safetensors."""

    def __init__(self, folder: Path) -> None:
        design = read_object(folder / "model.json")
        if faults := [text for name, shape in _DESIGN.items() if (text := fault(design.get(name, {}), shape))]:
            raise NotPlain(faults[0])
        self._trunk, self._text = design["trunk"], design["trunk"]["text_cfg"]
        student = design.get("students", {}).get("text")
        variant = design.get("fusion", {}).get("variant", "none")
        self._student = student if variant != "none" else None
        fusion = design.get("fusion", {})
        if fusion.get("source") == "trunk" and "text" in fusion.get("branches", "image+text"):
            raise NotPlain("the fusion reads the trunk's own tokens")
        self._rescale = design.get("fusion", {}).get("start", "closed") == "closed"
        if self._trunk.keys() - _TRUNK or self._text.keys() != _TEXT:
            raise NotPlain("the text tower is not a plain tower")
        if self._student and (variant != "full" or not fusion.get("gate") or student not in STUDENT_HEADS):
            raise NotPlain(f"fusion {variant} of {student}")
        self._weights = Weights(folder / "model.safetensors")
        self._bpe = BytePairs(self._text["context_length"])

    def __call__(self, caption: str) -> np.ndarray:
        ids = self._bpe(caption)
        embedded = self._weights.rows(f"{_TOWER}.token_embedding.weight", ids)
        row = self._tower(embedded)
        if self._student:
            read = student(embedded, self._weights, STUDENT_HEADS[self._student])
            row = fuse(row, *read, self._weights, self._rescale)
        return row / np.linalg.norm(row)

    def _tower(self, embedded: np.ndarray) -> np.ndarray:
        """Map token embeddings [L, W] to the trunk's embedding [D], read at the last token, end-of-text."""
        weights, heads = self._weights, self._text["heads"]
        activation = quick_gelu if self._trunk.get("quick_gelu") else gelu
        x = embedded + weights(f"{_TOWER}.positional_embedding")[: len(embedded)]
        for number in range(self._text["layers"]):
            layer = f"{_TOWER}.transformer.resblocks.{number}."
            projected = layer_norm(x, weights, layer + "ln_1") @ weights(layer + "attn.in_proj_weight").T
            projected = projected + weights(layer + "attn.in_proj_bias")
            x = x + linear(attention(projected, heads, causal=True), weights, layer + "attn.out_proj")
            hidden = activation(linear(layer_norm(x, weights, layer + "ln_2"), weights, layer + "mlp.c_fc"))
            x = x + linear(hidden, weights, layer + "mlp.c_proj")
        return layer_norm(x[-1], weights, f"{_TOWER}.ln_final") @ weights(f"{_TOWER}.text_projection")


def agrees(folder: Path, model: Any) -> bool:
    """Return whether NumPy may embed captions for the model in `folder`, which is loaded as `model`."""
    theirs = model.encode_text(list(PROBES)).cpu().numpy()  # first: a broken model raises an error here
    try:
        quick = QuickText(folder)
        ours = np.stack([quick(caption) for caption in PROBES])
    except UNFIT:
        return False
    return bool(np.abs(ours - theirs).max() < TOLERANCE)
