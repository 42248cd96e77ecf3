"""Whether a model gives numbers at all: one check, and one sentence, for everything that uses its rows.

A training that diverged may leave weights that are finite, and so large that what they give is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dinorankclip.joint.trial_pairs import trial_pairs
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.joint.loaded import LoadedModel

TRIALS = 2


class BrokenModel(UserError):
    """The model gives rows that are infinite or not numbers."""


def refuse_non_finite(rows: Tensor, kind: str) -> None:
    """Comparisons with NaN are all false: without this a broken model would get some score."""
    # A row whose length overflows is as broken: normalised it would be zeros.
    if not bool(torch.isfinite(rows.norm(dim=-1)).all()):
        raise BrokenModel(
            f"the model gives non-finite {kind} rows: its weights are broken (training may have diverged)"
        )


def try_out(model: LoadedModel) -> None:
    """Refuse a broken model before anything is made for it."""
    pictures, captions = trial_pairs(TRIALS)
    model.encode_image(torch.stack([model.preprocess(picture) for picture in pictures]))
    model.encode_text(captions)
