"""Features of the right shapes that no teacher computed: a dry run times a step before any cache is there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dinorankclip.config import DistilSettings
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.dino.cached import half_as_fine
from dinorankclip.dino.reduction import REDUCED
from dinorankclip.dino.sources import shape_of
from dinorankclip.dino.words import bpe_word_ids
from dinorankclip.losses.distillation import keeping_for, needed
from dinorankclip.types import Source, View

SIZE, WORDS = 224, 12


class StandIn:
    """A `types.Companions` with a `TeacherCache`'s attributes; every item looks the same.

    `network`: whose features have these shapes.
    """

    identity = "stand-in"

    def __init__(self, settings: DistilSettings, tokenizer: Tokenizer | None) -> None:
        image, text = shape_of(settings.teacher, "image"), shape_of(settings.text_teacher, "text")
        self.network = image.network
        assert image.patch is not None, "an image teacher has patches"
        grid = (settings.teacher_size or SIZE) // image.patch
        side = settings.compare_grid or half_as_fine(grid)
        self.grid, self.compare_grid = (grid, grid), (side, side)
        self.width, self.summary_width = min(REDUCED, image.width), image.summary
        self.plan = {"text": {"reduced": min(REDUCED, text.width), "summary_width": text.summary}}
        self.wanted = needed(settings.criterion, keeping_for(settings.criterion))
        self._tokenizer = tokenizer

    def check_data(self, source: Source) -> None:
        """Any data will do."""

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        found = self._features("image", (len(keys), self.compare_grid[0] ** 2, self.width), self.summary_width)
        if self._tokenizer is not None:
            text = self.plan["text"]
            found |= self._features("text", (len(keys), WORDS, text["reduced"]), text["summary_width"])
            if self.wanted & {"gram", "tokens"}:
                found["text_mask"] = torch.ones(len(keys), WORDS, dtype=torch.bool)
                found["text_word_ids"] = bpe_word_ids(self._tokenizer, captions).clamp_max(WORDS - 1)
        return found

    def _features(self, branch: str, shape: tuple[int, int, int], summary: int) -> dict[str, Tensor]:
        """`shape`: of the branch's tokens."""
        items, tokens, _ = shape
        draws = torch.Generator().manual_seed(0)
        found = {}
        if "gram" in self.wanted:
            found[f"{branch}_gram"] = torch.eye(tokens).expand(items, -1, -1).contiguous()
        if "tokens" in self.wanted:
            found[f"{branch}_tokens"] = torch.randn(shape, generator=draws)
        if "summary" in self.wanted:
            found[f"{branch}_summary"] = torch.randn(items, summary, generator=draws)
        return found
