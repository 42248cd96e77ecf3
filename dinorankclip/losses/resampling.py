"""Builds linear maps from the tokens a network gives to the tokens a comparison needs (D18–D20).

A crop, flip and resize of a feature map, and the pooling of text tokens to words, are matrices A acting on
tokens V. Hence a teacher may be stored as its Gram G = V·Vᵀ alone: the Gram of A·V is exactly A·G·Aᵀ.

Shapes: B items, L_in = h·w tokens of a map read row by row, L_out those of the result, T text tokens, W words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dinorankclip.losses.contrastive import single

Number = float | Tensor


def resample_grid(
    grid_in: tuple[int, int],
    grid_out: tuple[int, int],
    top: Number = 0.0,
    left: Number = 0.0,
    height: Number = 1.0,
    width: Number = 1.0,
    flip: bool | Tensor = False,
) -> Tensor:
    """Return A, with A·tokens = the tokens of the view: the box (in fractions of the map), resized, then mirrored.

    Plain numbers give A [L_out, L_in]; tensors [B] (a view for each image) give [B, L_out, L_in]. Double precision.

    The map is bilinear, antialiased when the box is shrunk, with cell centres at (i + 1/2)/n, as in
    `F.interpolate(mode="bilinear", antialias=True, align_corners=False)`, with two differences that a view needs: the
    box may lie anywhere, and cells just outside it still count (the map continues there).

    As loops, for one axis with n_in cells, n_out results and the box from `start` over `extent`:
        reach = max(1, extent * n_in / n_out)                       # cells of the map per result, if shrinking
        for o in range(n_out):
            at = (start + (o + 0.5) / n_out * extent) * n_in - 0.5
            for i in range(n_in):
                weight[o, i] = max(0, 1 - abs(at - i) / reach)
            weight[o] /= sum(weight[o])                             # beyond the outermost centres: the edge cell
        if flip: weight = weight[::-1]                              # columns only
    and A[(y, x), (j, i)] = rows[y, j] * columns[x, i].
    """
    rows = _axis(grid_in[0], grid_out[0], top, height)
    columns = _axis(grid_in[1], grid_out[1], left, width)
    if isinstance(flip, Tensor):
        columns = torch.where(flip[:, None, None], columns.flip(-2), columns)
    elif flip:
        columns = columns.flip(-2)
    both = rows[..., :, None, :, None] * columns[..., None, :, None, :]
    return both.flatten(-4, -3).flatten(-2, -1)


def _axis(n_in: int, n_out: int, start: Number, extent: Number) -> Tensor:
    start, extent = torch.as_tensor(start, dtype=torch.float64), torch.as_tensor(extent, dtype=torch.float64)
    start, extent = start[..., None, None], extent[..., None, None]
    out = torch.arange(n_out, dtype=torch.float64, device=start.device)[:, None]
    cell = torch.arange(n_in, dtype=torch.float64, device=start.device)
    reach = (extent * n_in / n_out).clamp_min(1)
    # A box outside the map meets no cell: take the nearest cells.
    at = ((start + (out + 0.5) / n_out * extent) * n_in - 0.5).clamp(-0.5, n_in - 0.5)
    weight = (1 - (at - cell).abs() / reach).clamp_min(0)
    return weight / weight.sum(-1, keepdim=True)


def resample_tokens(tokens: Tensor, matrix: Tensor) -> Tensor:
    """Return A·V [B, L_out, C] of tokens V [B, L_in, C] and A, [L_out, L_in] or [B, L_out, L_in]."""
    return matrix.to(tokens) @ tokens


def resample_gram(gram: Tensor, matrix: Tensor) -> Tensor:
    """Return A·G·Aᵀ, the Gram of resampled tokens [B, L_out, L_out], of an unnormalised Gram [B, L_in, L_in] and A."""
    matrix = matrix.to(gram)
    return matrix @ gram @ matrix.transpose(-1, -2)


def word_matrix(word_ids: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Return the averaging matrix A [B, W, T] and a mask of words [B, W], given each token's word [B, T] (-1: none).

    A word without tokens has a zero row.
    """
    belongs = word_ids[:, None, :] == torch.arange(words, device=word_ids.device)[None, :, None]
    count = belongs.sum(-1, keepdim=True)
    return belongs / count.clamp_min(1), count.squeeze(-1) > 0


def word_pooling(tokens: Tensor, word_ids: Tensor, words: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean token of each word [B, W, C] and a mask of words [B, W], given tokens [B, T, C].

    Two tokenizers cut the same words into different pieces; pooled to words, their Grams can be compared.
    W is `words`, by default the number of words of the longest caption.

    As loops:
        for b in range(B):
            for w in range(W):
                pieces = [tokens[b, t] for t in range(T) if word_ids[b, t] == w]
                pooled[b, w] = sum(pieces) / len(pieces) if pieces else 0
    """
    if words is None:
        words = int(word_ids.max()) + 1 if word_ids.numel() else 0
    tokens = single(tokens)
    matrix, mask = word_matrix(word_ids, words)
    # Padding may hold NaN, which times 0 is not 0.
    tokens = tokens.masked_fill((word_ids < 0)[..., None], 0.0)
    with torch.autocast(tokens.device.type, enabled=False):
        return matrix.to(tokens) @ tokens, mask
