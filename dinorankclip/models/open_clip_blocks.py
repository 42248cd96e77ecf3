"""Runs open_clip's transformer blocks with less work. Parameters and values are open_clip's, up to rounding.

* Queries, keys and values are views of one product. `nn.MultiheadAttention` copies them apart, and its backward fills
  a whole tensor with zeros for each of the three.
* The last block computes one token of each sequence, the pooled one.
* Sequences may differ in length: `Runs` puts sequences of like length side by side, so that short captions are not
  padded to the longest. Norms, projections and MLPs see all tokens as one matrix; attention goes run by run.

Shapes: T tokens of all sequences, one sequence after the other; N sequences; E width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from open_clip.transformer import ResidualAttentionBlock, Transformer
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from dinorankclip.models.lora import low_rank_linear


@dataclass(frozen=True)
class Runs:
    """Divides T tokens into sequences: `shapes` lists (number of sequences, their length), run by run."""

    shapes: tuple[tuple[int, int], ...]

    def split(self, tokens: Tensor) -> list[Tensor]:
        """Split [T, C] into views [n, length, C]."""
        parts = tokens.split([count * length for count, length in self.shapes]) if len(self.shapes) > 1 else [tokens]
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes)]

    def starts(self, device: torch.device) -> Tensor:
        """Return the index [N] of the first token of each sequence."""
        starts, before = [], 0
        for count, length in self.shapes:
            starts.append(torch.arange(count, device=device) * length + before)
            before += count * length
        return torch.cat(starts)


def is_plain(transformer: Any) -> bool:
    """Return whether `pooled` can run these blocks: they are plain, and no export records a graph.

    Runs would become part of the graph, which would fit one batch alone.
    """
    return not torch.compiler.is_compiling() and has_plain_blocks(transformer)


def has_plain_blocks(transformer: Any) -> bool:
    """Return whether the blocks are pre-norm, with self-attention and biases, without custom layers."""
    return (
        type(transformer) is Transformer
        and transformer.batch_first
        and not transformer.grad_checkpointing
        and all(type(block) is ResidualAttentionBlock for block in transformer.resblocks)
        and all(_plain_attention(block.attn) for block in transformer.resblocks)
    )


def _plain_attention(attention: nn.Module) -> bool:
    return (
        type_before_parametrizations(attention) is nn.MultiheadAttention
        and attention.in_proj_weight is not None
        and attention.in_proj_bias is not None
        and attention.bias_k is None
        and not attention.add_zero_attn
        and attention.dropout == 0
    )


def pooled(transformer: Transformer, tokens: Tensor, runs: Runs, at: Tensor, causal: bool) -> Tensor:
    """Run tokens [T, E] through all blocks → [N, E]: the token at place `at` [N] of each sequence.

    If `causal`, a token attends to itself and to earlier tokens.
    """
    return pooled_and_dense(transformer, tokens, runs, at, causal)[0]


def pooled_and_dense(
    transformer: Transformer, tokens: Tensor, runs: Runs, at: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the pooled tokens [N, E], as `pooled` does, and all tokens that enter the last block [T, E]."""
    *blocks, last = transformer.resblocks
    tokens = every_token(blocks, tokens, runs, causal)
    chosen = tokens[runs.starts(at.device) + at]
    chosen = chosen + last.ls_1(_attend_at(last.attn, last.ln_1(tokens), last.ln_1(chosen), runs, at, causal))
    return chosen + last.ls_2(last.mlp(last.ln_2(chosen))), tokens


def every_token(blocks: Iterable[ResidualAttentionBlock], tokens: Tensor, runs: Runs, causal: bool) -> Tensor:
    """Run tokens [T, E] through the blocks → [T, E]."""
    for block in blocks:
        tokens = tokens + block.ls_1(_attend(block.attn, block.ln_1(tokens), runs, causal))
        tokens = tokens + block.ls_2(block.mlp(block.ln_2(tokens)))
    return tokens


def _attend(attention: nn.MultiheadAttention, tokens: Tensor, runs: Runs, causal: bool) -> Tensor:
    """Apply self-attention within each sequence: [T, E] → [T, E]."""
    mixed = []
    for part in runs.split(low_rank_linear(attention, tokens, "in_proj_weight", attention.in_proj_bias)):
        queries, keys, values = (_heads(attention, x) for x in part.chunk(3, -1))
        mixed.append(F.scaled_dot_product_attention(queries, keys, values, is_causal=causal))
    return _joined(attention, mixed)


def _attend_at(
    attention: nn.MultiheadAttention, tokens: Tensor, chosen: Tensor, runs: Runs, at: Tensor, causal: bool
) -> Tensor:
    """Let `chosen` [N, E] attend to the tokens [T, E] of their sequences → [N, E]."""
    width = attention.embed_dim
    bias = attention.in_proj_bias
    queries = low_rank_linear(attention, chosen, "in_proj_weight", bias[:width], slice(width))[:, None]
    parts = runs.split(low_rank_linear(attention, tokens, "in_proj_weight", bias[width:], slice(width, None)))
    counts = [count for count, _ in runs.shapes]
    mixed = []
    for part, query, place in zip(parts, queries.split(counts), at.split(counts)):
        keys, values = (_heads(attention, x) for x in part.chunk(2, -1))
        mask = None
        if causal:
            mask = (torch.arange(part.shape[1], device=at.device) <= place[:, None])[:, None, None]
        mixed.append(F.scaled_dot_product_attention(_heads(attention, query), keys, values, attn_mask=mask))
    return _joined(attention, mixed)


def _heads(attention: nn.MultiheadAttention, tokens: Tensor) -> Tensor:
    """Return a view by heads: [n, length, E] → [n, heads, length, E / heads]."""
    return tokens.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)


def _joined(attention: nn.MultiheadAttention, mixed: list[Tensor]) -> Tensor:
    """Join the outputs [n, heads, length, E / heads] of all runs to [T, E], projected."""
    rows = [part.transpose(1, 2).reshape(-1, attention.embed_dim) for part in mixed]
    return attention.out_proj(rows[0] if len(rows) == 1 else torch.cat(rows))
