"""Features of the right shapes that no teacher computed: a dry run times a step before any cache is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dinorankclip.config import DistilSettings
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.dino.cached import half_as_fine
from dinorankclip.dino.words import bpe_word_ids
from dinorankclip.losses.distillation import needed
from dinorankclip.types import Source, View

SIZE, REDUCED, WORDS = 224, 256, 12


@dataclass(frozen=True)
class Shape:
    """What a teacher gives: a token of `width` numbers for each patch of so many pixels."""

    name: str
    patch: int
    width: int


LITE0 = Shape("efficientnet-lite0", 32, 1280)
DINOV3 = Shape("DINOv3 ViT-L", 16, 1024)
TEXT_WIDTHS = {"minilm": 384}
DINOTXT_WIDTH = 1280


def shape_of(settings: DistilSettings) -> Shape:
    """Known without opening the teacher; DINOv3's for all but the small one that is the default."""
    return LITE0 if settings.teacher.partition(":")[0] == LITE0.name else DINOV3


class StandIn:
    """A `types.Companions` with a `TeacherCache`'s attributes; every item looks the same."""

    identity = "stand-in"

    def __init__(self, settings: DistilSettings, tokenizer: Tokenizer | None) -> None:
        shape = shape_of(settings)
        grid = (settings.teacher_size or SIZE) // shape.patch
        side = settings.compare_grid or half_as_fine(grid)
        self.grid, self.compare_grid = (grid, grid), (side, side)
        self.width, self.summary_width = REDUCED, shape.width
        self.text_width = TEXT_WIDTHS.get(settings.text_teacher.partition(":")[0], DINOTXT_WIDTH)
        self.plan = {"text": {"reduced": REDUCED, "summary_width": self.text_width}}
        self.wanted = needed(settings.criterion, "both" if settings.criterion in ("mse", "cosine") else "gram")
        self._tokenizer = tokenizer

    def check_data(self, source: Source) -> None:
        """Any data will do."""

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        found = self._features("image", len(keys), self.compare_grid[0] ** 2, self.summary_width)
        if self._tokenizer is not None:
            found |= self._features("text", len(keys), WORDS, self.text_width)
            if self.wanted & {"gram", "tokens"}:
                found["text_mask"] = torch.ones(len(keys), WORDS, dtype=torch.bool)
                found["text_word_ids"] = bpe_word_ids(self._tokenizer, captions).clamp_max(WORDS - 1)
        return found

    def _features(self, branch: str, items: int, tokens: int, summary: int) -> dict[str, Tensor]:
        draws = torch.Generator().manual_seed(0)
        found = {}
        if "gram" in self.wanted:
            found[f"{branch}_gram"] = torch.eye(tokens).expand(items, -1, -1).contiguous()
        if "tokens" in self.wanted:
            found[f"{branch}_tokens"] = torch.randn(items, tokens, REDUCED, generator=draws)
        if "summary" in self.wanted:
            found[f"{branch}_summary"] = torch.randn(items, summary, generator=draws)
        return found
