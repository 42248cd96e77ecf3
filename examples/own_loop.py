"""The ranking loss in an own training loop, beside open_clip's model: python examples/own_loop.py"""

import math

import torch

from dinorankclip.device import declare_missing
from dinorankclip.losses.contrastive import info_nce
from dinorankclip.losses.ranking import RankingLoss

declare_missing()  # only needed where torchvision and torch come from different builds
from open_clip.model import CLIP  # noqa: E402

tower = {"width": 64, "layers": 2}
vision = {**tower, "head_width": 32, "image_size": 32, "patch_size": 8}
model = CLIP(64, vision, {**tower, "heads": 2, "vocab_size": 1000})
ranking = RankingLoss(dim=64, order=3)  # has parameters of its own: transition heads and gates
# No decay for gates, biases and norms: decay alone would pull the gates, which start almost shut, halfway open.
parameters = [*model.parameters(), *ranking.parameters()]
groups = [
    {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.2},
    {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-3)

steps, epochs = 6, 2
for step in range(steps):
    images, texts = torch.randn(16, 3, 32, 32), torch.randint(1, 1000, (16, 77))
    image, text, scale = model(images, texts)
    ranking.set_progress(step, steps, epochs)  # ramp and stages follow the run
    ranks = ranking(image, text, scale)
    loss = info_nce(image, text, scale) + ranks.total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.logit_scale.data.clamp_(0, math.log(100))  # as CLIP does: lists at a scale above 100 are all or nothing
    print(f"step {step}: loss {loss.item():.4f}", {name: f"{term.item():.4f}" for name, term in ranks.terms.items()})
