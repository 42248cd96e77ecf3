"""The teacher `colour-grid`: mean and spread of each colour in 7×7 squares. It has no weights and knows no objects."""

import torch
from torch import nn

from dinorankclip.teachers.frozen_teacher import USUAL_SIZE, Preprocessing, Teacher, TeacherCard
from dinorankclip.teachers.registry import FeatureShape, TeacherKind

SIDE = 7


class Colours(nn.Module):
    """Maps images [B, 3, S, S] to tokens [B, 49, 6] and a summary [B, 24] of 2×2 squares."""

    def forward(self, images):
        mean = nn.functional.adaptive_avg_pool2d(images, SIDE)
        spread = (nn.functional.adaptive_avg_pool2d(images**2, SIDE) - mean**2).clamp(min=0).sqrt()
        tokens = torch.cat([mean, spread], 1)
        summary = nn.functional.adaptive_avg_pool2d(tokens, 2).flatten(1)
        return tokens.flatten(2).transpose(1, 2), summary


def open_colours(argument, input_size):
    """Open the teacher: `argument` is what follows the colon of `colour-grid:…`, `input_size` the side of images."""
    card = TeacherCard("colour-grid", "none", "colours of 7×7 squares: a control that knows no objects")
    preprocessing = Preprocessing(input_size or USUAL_SIZE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return Teacher(card, Colours(), "colour-grid-1", preprocessing, grid=(SIDE, SIDE))


COLOUR_GRID = TeacherKind(
    "colour-grid[:]",  # nothing need follow the name
    "image",
    "mean and spread of colours on a grid: a control",
    open_colours,
    FeatureShape("colour-grid", width=6, summary=24, patch=32),
)
