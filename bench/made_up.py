"""Pairs of a trunk's shapes and a place in a schedule, for steps whose cost does not depend on what is in a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dinorankclip.types import Batch, Progress, View

if TYPE_CHECKING:
    from dinorankclip.models.joint import JointModel

LATE = Progress(900, 1000, 64)  # every order acts
TOKENS = 20  # of each caption
# Ids of CLIP's vocabulary, which is not loaded for two numbers: some benches measure memory.
START_OF_TEXT, END_OF_TEXT = 49406, 49407


def made_up_pairs(model: JointModel, count: int, seed: int = 0) -> Batch:
    draws = torch.Generator().manual_seed(seed)
    size = model.trunk.image_spec.size
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=draws)
    texts = torch.randint(1, START_OF_TEXT, (count, TOKENS), generator=draws)
    texts[:, -1] = END_OF_TEXT
    return Batch(images, texts, [""] * count, [View()] * count, [""] * count)
