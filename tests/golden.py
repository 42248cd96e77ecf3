"""The fixed pairs of the reference figures: RankCLIP, CyCLIP and ALIP were run on these by their public code."""

import torch

SCALE = 14.285714


def pairs(dtype=torch.float64):
    """(images, texts, second texts), unnormalised."""
    image = [[1, 0.1, 0.5], [0.2, 1, -0.3], [-0.5, 0.3, 1], [0.7, 0.6, 0.1]]
    text = [[0.9, 0.2, 0.4], [0.1, 0.8, -0.6], [-0.2, 0.6, 0.9], [0.3, 1, 0.3]]
    second = [[0.8, 0, 0.7], [0.3, 0.9, -0.1], [0.5, -0.4, 0.2], [0.9, 0.4, 0]]
    return tuple(torch.tensor(rows, dtype=dtype) for rows in (image, text, second))


def sorted_by(reference):
    return reference.sort(dim=1, descending=True, stable=True).indices
