"""Features of the right shapes that no teacher computed: a dry run times a step before any cache is there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dinorankclip.config import DistilSettings
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.dino.words import bpe_word_ids
from dinorankclip.losses.distillation import needed
from dinorankclip.types import Source, View

# As DINOv3 ViT-L at 224 pixels would give: 14×14 tokens of 1024 numbers, compared on half the grid.
GRID, WIDTH, REDUCED, TEXT_WIDTH = 14, 1024, 256, 1280
WORDS = 12


class StandIn:
    """A `types.Companions` with a `TeacherCache`'s attributes; every item looks the same."""

    identity = "stand-in"

    def __init__(self, settings: DistilSettings, tokenizer: Tokenizer | None) -> None:
        side = settings.compare_grid or GRID // 2
        self.grid, self.compare_grid = (GRID, GRID), (side, side)
        self.width, self.summary_width = REDUCED, WIDTH
        self.plan = {"text": {"reduced": REDUCED, "summary_width": TEXT_WIDTH}}
        self.wanted = needed(settings.criterion, "both" if settings.criterion in ("mse", "cosine") else "gram")
        self._tokenizer = tokenizer

    def check_data(self, source: Source) -> None:
        """Any data will do."""

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        found = self._features("image", len(keys), self.compare_grid[0] ** 2, WIDTH)
        if self._tokenizer is not None:
            found |= self._features("text", len(keys), WORDS, TEXT_WIDTH)
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
