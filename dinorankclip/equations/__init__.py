"""Every numbered equation as a pure function: number, formula, shapes, plain loops. Imports nothing of the project.

contrastive.py    1, CLIP                     ranking.py             2 and 6, Plackett–Luce
transitions.py    7, β and γ                  rank_consistency.py    8, two similarities rank alike
distillation.py   Gram, relational, others    fusion.py              the gated sum and its angle
cyclip.py, alip.py  the baselines             geometry.py            cones
resampling.py     tokens to other tokens      precision.py           what inputs are turned into first
ranking_blocked.py, list_blocks.py            the same likelihoods in bounded memory

Equations 3 and 4 are weighted sums of the others: they are `losses.Objective`, with the weights of `losses.weights`.
"""

from .alip import alip_weights
from .contrastive import info_nce, info_nce_rows, unit_rows
from .cyclip import consistency_rows, cyclip_consistency
from .distillation import (
    cosine_gram,
    cosine_loss,
    crd_loss,
    gram_distance,
    gram_loss,
    gram_loss_to,
    mse_loss,
    normalise_gram,
    rkd_items,
    rkd_loss,
)
from .fusion import (
    PYRAMID,
    alignment_bound,
    alignment_ratio,
    fused_angle,
    gated_sum,
    lengths_of,
    pyramid_matrix,
    pyramid_pool,
    rescaled,
)
from .geometry import cone_separation
from .rank_consistency import rank_consistency, reference_order, symmetrised
from .ranking import mean_plackett_luce_nll, plackett_luce_nll, rankclip_nll
from .resampling import resample_gram, resample_grid, resample_tokens, word_matrix, word_pooling
from .transitions import gated_query, history_norm, pair_history, transitions

__all__ = [
    "PYRAMID",
    "alignment_bound",
    "alignment_ratio",
    "alip_weights",
    "cone_separation",
    "consistency_rows",
    "cosine_gram",
    "cosine_loss",
    "crd_loss",
    "cyclip_consistency",
    "fused_angle",
    "gated_query",
    "gated_sum",
    "gram_distance",
    "gram_loss",
    "gram_loss_to",
    "history_norm",
    "info_nce",
    "info_nce_rows",
    "lengths_of",
    "mean_plackett_luce_nll",
    "mse_loss",
    "normalise_gram",
    "pair_history",
    "plackett_luce_nll",
    "pyramid_matrix",
    "pyramid_pool",
    "rank_consistency",
    "rankclip_nll",
    "reference_order",
    "resample_gram",
    "resample_grid",
    "resample_tokens",
    "rescaled",
    "rkd_items",
    "rkd_loss",
    "symmetrised",
    "transitions",
    "unit_rows",
    "word_matrix",
    "word_pooling",
]
