"""Crops, flips and word pooling as matrices: exact on tokens and on Grams."""

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.losses.distillation import cosine_gram, normalise_gram
from dinorankclip.losses.resampling import resample_gram, resample_grid, resample_tokens, word_matrix, word_pooling


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_map(tokens, grid):
    return tokens.transpose(1, 2).unflatten(2, grid)


def as_tokens(feature_map):
    return feature_map.flatten(2).transpose(1, 2)


def test_the_whole_view_is_the_identity_and_a_flip_mirrors():
    assert torch.equal(resample_grid((3, 4), (3, 4)), torch.eye(12, dtype=torch.float64))
    tokens = draw(2, 12, 5)
    mirrored = resample_tokens(tokens, resample_grid((3, 4), (3, 4), flip=True))
    assert torch.equal(mirrored, as_tokens(as_map(tokens, (3, 4)).flip(-1)))


def test_a_box_on_cell_borders_selects_its_cells():
    tokens = draw(2, 8 * 6, 5)
    view = resample_grid((8, 6), (4, 3), top=2 / 8, left=1 / 6, height=4 / 8, width=3 / 6, flip=True)
    expected = as_tokens(as_map(tokens, (8, 6))[:, :, 2:6, 1:4].flip(-1))
    torch.testing.assert_close(resample_tokens(tokens, view), expected, atol=1e-6, rtol=0)


GRIDS = [((7, 7), (8, 8)), ((14, 14), (8, 8)), ((16, 9), (5, 14)), ((2, 2), (1, 1))]


@pytest.mark.parametrize(("grid_in", "grid_out"), GRIDS)
def test_the_whole_view_is_torchs_antialiased_bilinear(grid_in, grid_out):
    tokens = draw(2, grid_in[0] * grid_in[1], 3).double()
    theirs = F.interpolate(as_map(tokens, grid_in), grid_out, mode="bilinear", antialias=True, align_corners=False)
    ours = resample_tokens(tokens, resample_grid(grid_in, grid_out))
    torch.testing.assert_close(ours, as_tokens(theirs), atol=1e-6, rtol=1e-6)


def test_an_enlarged_box_is_torchs_grid_sample():
    tokens, out = draw(1, 7 * 7, 3).double(), (8, 8)
    top, left, height, width = 0.13, 0.4, 0.55, 0.6
    y = (top + (torch.arange(8) + 0.5) / 8 * height) * 2 - 1
    x = (left + (torch.arange(8) + 0.5) / 8 * width) * 2 - 1
    where = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)[None].double()
    theirs = F.grid_sample(as_map(tokens, (7, 7)), where, padding_mode="border", align_corners=False)
    ours = resample_tokens(tokens, resample_grid((7, 7), out, top, left, height, width))
    torch.testing.assert_close(ours, as_tokens(theirs), atol=1e-6, rtol=1e-6)


def test_the_gram_of_a_view_follows_from_the_gram_of_the_whole():
    tokens = draw(3, 49, 320)
    matrix = resample_grid(
        (7, 7),
        (8, 8),
        top=torch.tensor([0.0, 0.21, 0.5]),
        left=torch.tensor([0.0, 0.03, 0.5]),
        height=torch.tensor([1.0, 0.7, 0.5]),
        width=torch.tensor([1.0, 0.9, 0.5]),
        flip=torch.tensor([False, True, True]),
    )
    torch.testing.assert_close(matrix[1], resample_grid((7, 7), (8, 8), 0.21, 0.03, 0.7, 0.9, True), atol=1e-6, rtol=0)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(3, 64, dtype=torch.float64))
    fresh = cosine_gram(resample_tokens(tokens, matrix))
    cached = normalise_gram(resample_gram(tokens @ tokens.transpose(1, 2), matrix))
    torch.testing.assert_close(cached, fresh, atol=1e-5, rtol=0)


def test_a_box_beyond_the_map_shows_its_edge():
    matrix = resample_grid((3, 3), (2, 2), top=1.5, left=-2.0)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(4, dtype=torch.float64))
    assert (matrix[:, 6] == 1).all()  # bottom left


def test_words_are_the_means_of_their_tokens():
    tokens = draw(3, 6, 4)
    ids = torch.tensor([[-1, 0, 0, 1, 2, -1], [-1, 0, 1, -1, -1, -1], [-1, -1, -1, -1, -1, -1]])
    pooled, mask = word_pooling(tokens, ids)
    assert mask.tolist() == [[True] * 3, [True, True, False], [False] * 3]
    torch.testing.assert_close(pooled[0], torch.stack([tokens[0, 1:3].mean(0), tokens[0, 3], tokens[0, 4]]))
    torch.testing.assert_close(pooled[1], torch.stack([tokens[1, 1], tokens[1, 2], torch.zeros(4)]))
    assert not pooled[2].any()
    wide, wide_mask = word_pooling(tokens, ids, 5)
    torch.testing.assert_close(wide[:, :3], pooled)
    assert not wide_mask[:, 3:].any()
    matrix, _ = word_matrix(ids, 3)
    torch.testing.assert_close(resample_gram(tokens @ tokens.mT, matrix), pooled @ pooled.mT)


def test_padding_reaches_no_word():
    tokens = draw(1, 3, 2)
    tokens[0, 2] = float("nan")
    tokens.requires_grad_()
    pooled, _ = word_pooling(tokens, torch.tensor([[0, 1, -1]]))
    pooled.sum().backward()
    assert pooled.isfinite().all() and tokens.grad.isfinite().all() and not tokens.grad[0, 2].any()
    assert word_pooling(draw(2, 3, 2), torch.full((2, 3), -1))[0].shape == (2, 0, 2)
