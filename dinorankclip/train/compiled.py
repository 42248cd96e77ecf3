"""Compiles the plain towers of a trunk with torch.compile for training (`--budget.compile`).

A compiled tower runs open_clip's own blocks on captions padded to the context, since ours sort captions by length and
would be compiled again for every batch. Values agree up to rounding. Evaluation runs the towers as they are, and
weights keep their names.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.models.folder import AnyModel
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import Trunk
from dinorankclip.types import UserError, first_line


def compile_towers(model: AnyModel) -> None:
    """Let training steps call compiled towers; raise where a tower is not plain or nothing can be compiled here."""
    if not isinstance(model, JointModel):
        raise UserError("--budget.compile: --recipe aligned reads stored rows, no tower runs; leave it out")
    if model.own_tokens or model.fused_tokens:
        raise UserError(
            "--budget.compile compiles towers whose embedding alone is read, and here the trunk's own tokens are read, "
            "too (--distil.into trunk, --fusion.source trunk): leave it out"
        )
    trunk = model.trunk
    if not (trunk.has_class_token and trunk.has_causal_blocks):
        raise UserError("--budget.compile compiles CLIP's plain towers, and this trunk has others: leave it out")
    _demand_compiler(model.device)
    context = trunk.text_spec.context_length
    image, text = trunk.encode_image, trunk.encode_text
    trunk.encode_image = _in_training(trunk, torch.compile(image), image)  # type: ignore[method-assign,assignment]
    compiled = torch.compile(text)
    trunk.encode_text = _in_training(  # type: ignore[method-assign,assignment]
        trunk, lambda texts: compiled(F.pad(texts, (0, context - texts.shape[1]))), text
    )


def _in_training(
    trunk: Trunk, fast: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    return lambda items: fast(items) if trunk.training else plain(items)


def _demand_compiler(device: torch.device) -> None:
    """Compile a line, so that a missing compiler ends the run before the data is read."""
    try:
        torch.compile(lambda values: values.sin() + 1)(torch.ones(2, device=device))
    except Exception as error:  # torch has many kinds of errors for what may be missing
        raise UserError(
            f"--budget.compile: torch.compile fails here ({first_line(error)}). On a CPU it needs a C++ compiler and "
            "Python's headers, on a GPU Triton: install them, or leave it out"
        ) from error
