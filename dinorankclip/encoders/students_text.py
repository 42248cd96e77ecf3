"""The text student (D20): a bidirectional transformer over the trunk's token ids.

Its embedding is the trunk's token table, detached and projected: the vocabulary's 25 million numbers are not learnt
twice, and distillation sends no gradient into the trunk. Padding is masked. The end-of-text token is the class token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .students import Shape, StudentFeatures, end_of_text, up_to

_INIT_STD = 0.02


class _Layer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """`visible` [B, 1, 1, L]: which tokens may be looked at."""
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class TextStudent(nn.Module):
    def __init__(self, shape: Shape, context_length: int, table_width: int) -> None:
        super().__init__()
        self.width = shape.width
        # The table starts at a scale of 0.01 to 0.02 and moves during training: normalise before projecting.
        self.norm_table = nn.LayerNorm(table_width)
        self.project = nn.Linear(table_width, shape.width)
        self.positions = nn.Parameter(torch.empty(context_length, shape.width))
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self._draw()

    def _draw(self) -> None:
        nn.init.normal_(self.positions, std=_INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=_INIT_STD)
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, table: Tensor) -> StudentFeatures:
        """Token ids [B, L] (start, words, end, padding) and the trunk's table [V, W] → features.

        Tokens stay at the places of their ids. The mask covers the start token and the words, so that even an empty
        caption has one token; the end-of-text token is the summary.
        """
        length = ids.shape[1]
        x = self.project(self.norm_table(F.embedding(ids, table.detach()))) + self.positions[:length]
        end = end_of_text(ids)
        visible = up_to(end + 1, length)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, visible)
        x = self.norm(x)
        # ids.shape[0], not len(ids): an exported graph would freeze the batch size.
        rows = torch.arange(ids.shape[0], device=ids.device)
        return StudentFeatures(x[rows, end], x, up_to(end, length))
