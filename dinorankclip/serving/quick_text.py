"""One caption → its embedding, in NumPy.

A text query needs a few million multiplications; importing torch and open_clip to do them takes seconds. So `search`
reads captions with this, if it can: of models whose text tower is open_clip's plain one (causal, read at the
end-of-text token), alone or under the full fusion. It is a second implementation, and is not trusted as such:
`agrees` compares it with the model when that is loaded anyway, and only a model that passed is read like this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from dinorankclip.data.bpe import BytePairs
from dinorankclip.serving.quick_fusion import STUDENT_HEADS, VARIANT, fuse, student
from dinorankclip.serving.quick_layers import Weights, attention, gelu, layer_norm, linear, quick_gelu

PROBES = ("a photo", "two dogs running on the beach, one of them with a red ball", "Straßencafé №5, it's 20% off!")
TOLERANCE = 1e-4  # of any number of a unit-norm embedding
# What a plain tower's description consists of. Anything else asks for something that is not done here.
_TRUNK = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"}
_TEXT = {"context_length", "vocab_size", "width", "heads", "layers"}
_TOWER = "trunk.towers"


class NotPlain(Exception):
    """Captions of this model are not read in NumPy."""


class QuickText:
    """`QuickText(folder)(caption)` → fp32 [D], of length 1. `folder` holds model.json and model.safetensors."""

    def __init__(self, folder: Path) -> None:
        design = json.loads((folder / "model.json").read_text())
        self._trunk, self._text = design["trunk"], design["trunk"]["text_cfg"]
        student = design.get("students", {}).get("text")
        variant = design.get("fusion", {}).get("variant", "none")
        self._student = student if variant != "none" else None
        if self._trunk.keys() - _TRUNK or self._text.keys() != _TEXT:
            raise NotPlain("the text tower is no plain one")
        if self._student and (variant != VARIANT or not design["fusion"]["gate"] or student not in STUDENT_HEADS):
            raise NotPlain(f"fusion {variant} of {student}")
        self._weights = Weights(folder / "model.safetensors")
        self._bpe = BytePairs(self._text["context_length"])

    def __call__(self, caption: str) -> np.ndarray:
        ids = self._bpe(caption)
        embedded = self._weights.rows(f"{_TOWER}.token_embedding.weight", ids)
        found = self._tower(embedded)
        if self._student:
            found = fuse(found, *student(embedded, self._weights, STUDENT_HEADS[self._student]), self._weights)
        return found / np.linalg.norm(found)

    def _tower(self, embedded: np.ndarray) -> np.ndarray:
        """Token embeddings [L, W] → the trunk's embedding [D], read at the last token, end-of-text."""
        weights, heads = self._weights, self._text["heads"]
        activation = quick_gelu if self._trunk.get("quick_gelu") else gelu
        x = embedded + weights(f"{_TOWER}.positional_embedding")[: len(embedded)]
        for number in range(self._text["layers"]):
            layer = f"{_TOWER}.transformer.resblocks.{number}."
            seen = layer_norm(x, weights, layer + "ln_1")
            seen = seen @ weights(layer + "attn.in_proj_weight").T + weights(layer + "attn.in_proj_bias")
            x = x + linear(attention(seen, heads, causal=True), weights, layer + "attn.out_proj")
            seen = activation(linear(layer_norm(x, weights, layer + "ln_2"), weights, layer + "mlp.c_fc"))
            x = x + linear(seen, weights, layer + "mlp.c_proj")
        return layer_norm(x[-1], weights, f"{_TOWER}.ln_final") @ weights(f"{_TOWER}.text_projection")


def agrees(folder: Path, model: Any) -> bool:
    """Whether captions of the model in `folder`, loaded as `model`, may be read in NumPy."""
    theirs = model.encode_text(list(PROBES)).cpu().numpy()  # first: a broken model is refused here
    try:
        quick = QuickText(folder)
        ours = np.stack([quick(caption) for caption in PROBES])
    except (NotPlain, SafetensorError, OSError, ValueError, KeyError, TypeError):
        return False  # KeyError and the like: tensors of other names, types or shapes than a plain model has
    return bool(np.abs(ours - theirs).max() < TOLERANCE)
