"""Features as students give them, drawn at random."""

import torch
from torch import nn

from dinorankclip.models.students import StudentFeatures


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class ConstantGate(nn.Module):
    """To be put in the place of a fusion's gate, or where it has none."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, v, u):
        return torch.full_like(u, self.value)


def image_features(items=6, tokens=36, width=64, seed=0):
    return StudentFeatures(draw(items, width, seed=seed), draw(items, tokens, width, seed=seed + 1))


def text_features(lengths, tokens, width=64, seed=0):
    """Captions of these lengths, padded to `tokens` with large numbers that must not matter."""
    features = image_features(len(lengths), tokens, width, seed)
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    return StudentFeatures(features.summary, torch.where(mask[..., None], features.tokens, 1e3), mask)
