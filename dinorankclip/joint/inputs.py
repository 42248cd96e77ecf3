"""What a user hands to a loaded model, checked before it gives a wrong answer quietly.

Shapes: B images or captions, S image side, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import ImageSpec, UserError

_SLACK = 4.0  # augmentations and trial inputs go beyond black and white; pixels that were not normalised go far beyond


def check_images(images: Tensor, spec: ImageSpec) -> None:
    """uint8 or normalised floats [B, 3, S, S], or an error that says what to do."""
    wanted = f"uint8 images [B, 3, {spec.size}, {spec.size}]"
    advice = "torch.stack([model.preprocess(path) for path in paths]) makes them"
    if not isinstance(images, Tensor):
        raise UserError(f"expected {wanted} as a tensor, not {type(images).__name__}; {advice}")
    if images.ndim != 4 or images.shape[1:] != (3, spec.size, spec.size):
        raise UserError(f"expected {wanted}, not {list(images.shape)}; {advice}")
    if images.dtype == torch.uint8 or not len(images):
        return
    if not images.is_floating_point():
        raise UserError(f"expected {wanted} or normalised floats, not {images.dtype}; {advice}")
    brightest = max(max(mean, 1 - mean) / std for mean, std in zip(spec.mean, spec.std))
    if not float(images.abs().amax()) <= _SLACK * brightest:
        raise UserError(
            f"float images must be normalised, (p/255 - mean)/std, which stays below {brightest:.1f}; these reach "
            f"{float(images.abs().amax()):.1f}. Pass uint8 pixels, the model normalises them itself"
        )


def check_ids(ids: Tensor, tokenizer: Tokenizer) -> None:
    """int64 [B, L] from the model's tokenizer: L up to the context length, each row with its end-of-text."""
    context = tokenizer.spec.context_length
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2 or not 1 <= ids.shape[1] <= context:
        raise UserError(
            f"expected captions, or their ids as integers [B, L] with L up to {context}, not {ids.dtype} "
            f"{list(ids.shape)}; model.tokenizer(captions) makes them"
        )
    if not len(ids):
        return
    if int(ids.min()) < 0 or int(ids.max()) >= tokenizer.vocabulary:
        raise UserError(f"ids must lie between 0 and {tokenizer.vocabulary - 1}; model.tokenizer(captions) makes them")
    without = (ids != tokenizer.end_of_text).all(1).nonzero()
    if len(without):
        raise UserError(
            f"row {int(without[0])} of the ids has no end-of-text token ({tokenizer.end_of_text}), at which the "
            "caption is read off; model.tokenizer(captions) sets it"
        )


def check_captions(captions: Sequence[str]) -> None:
    if isinstance(captions, str):
        raise UserError("expected a list of captions, not one string: put it in a list")
    for caption in captions:
        if not isinstance(caption, str):
            raise UserError(f"captions must be strings, not {type(caption).__name__}")
