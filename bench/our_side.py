"""Our training step at order 0, as `pretrain` takes it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from bench.recipe import OPTIMISER, TOTAL_STEPS, starting_model
from dinorankclip.device import choose, keep_freed_memory
from dinorankclip.losses import Objective
from dinorankclip.train.gradients import backward
from dinorankclip.train.optimizer import Updater
from dinorankclip.types import Batch, Progress


class OurTrainer:
    def __init__(self, name: str):
        keep_freed_memory()
        self.model = starting_model(name)
        self.objective = Objective(self.model.dim, "clip")
        self.updater = Updater({"model": self.model, "objective": self.objective}, OPTIMISER, TOTAL_STEPS)
        self.placement = choose("cpu", "fp32")
        self.losses: list[Tensor] = []
        self._done = 0

    def steps(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            progress = Progress(self._done, TOTAL_STEPS, 1)
            terms = backward(self.model, self.objective, batch, progress, self.placement)
            self.updater.step(progress, self.model.trunk.logit_scale)
            self.losses.append(terms.total.detach())
            self._done += 1

    @torch.no_grad()
    def loss_of(self, batch: Batch) -> float:
        embeddings = self.model(batch.images, batch.texts)
        return float(self.objective(embeddings, self.model.scale(), Progress(0, TOTAL_STEPS, 1)).total)
