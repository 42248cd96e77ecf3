"""Losses: every numbered equation as a pure function, and the objective of a run. Imports no other room.

contrastive.py             equation 1 (InfoNCE), CyCLIP, ALIP's weights, the angle between modalities
groups.py                  pairs that share an image, a caption or a group: no negatives of each other
plackett_luce.py           equations 2 and 6: the likelihood of a ranked list, of first and higher order
plackett_luce_blocked.py   the same value and gradient in blocks, without a tensor over rows × positions × items
transitions.py             equation 7: scores after a history, and the heads that learn them
anchor.py                  the teacher as a third tower that captions and images match
decorrelation.py           variance and covariance of embeddings: a term without a teacher
sigmoid.py                 SigLIP's loss in blocks of rows
references.py              orders and transitions from a teacher's frozen features
ranking.py                 equation 8: `RankingLoss`
ranking_schedule.py        the ramp of its weights, the stages of its orders
distillation.py            losses between student and teacher: Gram, relational, token by token, contrastive
distillation_terms.py      `DistillationLoss`: these losses on cached teacher features, weighted and named
resampling.py              crops, flips and word pooling of tokens as matrices
objective.py               `Objective`: the terms of a method, summed; the table of terms
telemetry.py               numbers for the log: spreads of orders, gradients of terms, damping by Adam's epsilon
"""

from dinorankclip.losses.anchor import AnchorLoss, anchor_rows
from dinorankclip.losses.contrastive import (
    alip_weights,
    cone_separation,
    cyclip_consistency,
    cyclip_rows,
    info_nce,
    info_nce_rows,
    unit_rows,
)
from dinorankclip.losses.decorrelation import decorrelation
from dinorankclip.losses.distillation import (
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
from dinorankclip.losses.groups import other_positives
from dinorankclip.losses.objective import Objective
from dinorankclip.losses.plackett_luce import (
    mean_plackett_luce_nll,
    plackett_luce_nll,
    rankclip_nll,
    reference_order,
    symmetrised,
)
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.losses.references import mean_table_nll, teacher_similarities
from dinorankclip.losses.resampling import resample_gram, resample_grid, resample_tokens, word_matrix, word_pooling
from dinorankclip.losses.sigmoid import sigmoid_loss, sigmoid_rows
from dinorankclip.losses.telemetry import gradient_report
from dinorankclip.losses.transitions import (
    centred_queries,
    gated_query,
    history_norm,
    pair_history,
    transition_scores,
)

__all__ = [
    "AnchorLoss", "Objective", "RankingLoss", "alip_weights", "anchor_rows", "centred_queries", "cone_separation",
    "cosine_gram", "cosine_loss", "crd_loss", "cyclip_consistency", "cyclip_rows", "decorrelation", "gated_query",
    "gradient_report", "gram_distance", "gram_loss", "gram_loss_to", "history_norm", "info_nce", "info_nce_rows",
    "mean_plackett_luce_nll", "mean_table_nll", "mse_loss", "normalise_gram", "other_positives", "pair_history",
    "plackett_luce_nll", "rankclip_nll", "reference_order", "resample_gram", "resample_grid", "resample_tokens",
    "rkd_items", "rkd_loss", "sigmoid_loss", "sigmoid_rows", "symmetrised", "teacher_similarities", "transition_scores",
    "unit_rows", "word_matrix", "word_pooling",
]  # fmt: skip
