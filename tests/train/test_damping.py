"""What epsilon takes from Adam's steps, by hand and beside a step that was taken."""

import pytest
import torch
from torch import nn

from dinorankclip.config import LossSettings, OptimSettings
from dinorankclip.losses.objective import Objective
from dinorankclip.losses.telemetry import undamped, undamped_shares
from dinorankclip.train.optimizer import Updater
from dinorankclip.types import Progress


def test_by_hand():
    # one step with gradient 3 and β = 0.98 leaves v = 0.02 · 9, hence √v̂ = 3; ε = 1 leaves 3/4 of the step
    share = undamped(torch.tensor([0.18, 0.0]), torch.tensor(1.0), 0.98, 1.0)
    assert share.tolist() == pytest.approx([0.75, 0.0])


def test_it_is_the_share_of_the_step_that_was_taken():
    objective = Objective(8, "rank", LossSettings(order=3, head_dim=4))
    settings = OptimSettings(lr=1.0, weight_decay=0.0, clip_norm=None, eps=1e-6, warmup_steps=1)
    updater = Updater({"objective": objective}, settings, 10)
    sizes = {"image.heads.2.": 1e-6, "text.heads.2.": 1.0}  # order 3 has not begun: it has no gradient
    for part, size in sizes.items():
        for name, p in updater.parameters.items():
            if part in name:
                p.grad = torch.full_like(p, size)
    before = {name: p.detach().clone() for name, p in updater.parameters.items()}
    updater.step(Progress(0, 10, 1), nn.Parameter(torch.tensor(1.0)))
    shares = undamped_shares(updater.optimizer, updater.parameters.items())
    assert shares == pytest.approx({"undamped2_image": 0.5, "undamped2_text": 1 / (1 + 1e-6)})
    moved = before["objective.ranking.transitions.image.heads.2.key.weight"]
    moved = moved - updater.parameters["objective.ranking.transitions.image.heads.2.key.weight"].detach()
    assert moved.mean().item() == pytest.approx(settings.lr * shares["undamped2_image"], rel=1e-5)


def test_a_method_without_heads_has_none():
    updater = Updater({"objective": nn.ModuleDict({"other": nn.Linear(2, 2)})}, OptimSettings(), 10)
    assert undamped_shares(updater.optimizer, updater.parameters.items()) == {}
