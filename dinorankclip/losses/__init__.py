"""Losses: every numbered equation as a pure function, and what a run minimises. Imports no other room.

contrastive.py             What equations ask of their inputs: at least single precision, and a length that has a dire
distillation.py            Distillation (D14–D16): what a student must share with its frozen teacher, as pure function
distillation_terms.py      Distillation of cached teacher features into the students, as weighted, named terms (D14–D1
objective.py               What a run minimises: gathers each embedding once, calls the equations on own rows, returns
plackett_luce.py           Equations 2 and 6: the Plackett–Luce likelihood of a ranked list, of first and of higher or
plackett_luce_blocked.py   How the scores of ranked lists are cut into blocks, and the one place where a block of them
ranking.py                 Equation 8 as a module: ranking consistency in and across modalities, at any order. Usable
resampling.py              Linear maps from the tokens a network gives to the tokens a comparison needs (D18–D20).
telemetry.py               Numbers that are only watched: does an order act, and do the terms pull the same way?
transitions.py             Equation 7: how well a candidate follows what was ranked just before it, the last item (β)
weights.py                 Every weight, ramp and constant of the objective, by name and with its source.
"""

from dinorankclip.losses.contrastive import (
    alip_weights,
    cone_separation,
    consistency_rows,
    cyclip_consistency,
    info_nce,
    info_nce_rows,
    unit_rows,
)
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
from dinorankclip.losses.objective import Objective
from dinorankclip.losses.plackett_luce import (
    mean_plackett_luce_nll,
    plackett_luce_nll,
    rank_consistency,
    rankclip_nll,
    reference_order,
    symmetrised,
)
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.losses.resampling import resample_gram, resample_grid, resample_tokens, word_matrix, word_pooling
from dinorankclip.losses.telemetry import gradient_report
from dinorankclip.losses.transitions import gated_query, history_norm, pair_history, transition_scores

__all__ = [
    "Objective",
    "RankingLoss",
    "alip_weights",
    "cone_separation",
    "consistency_rows",
    "cosine_gram",
    "cosine_loss",
    "crd_loss",
    "cyclip_consistency",
    "gated_query",
    "gradient_report",
    "gram_distance",
    "gram_loss",
    "gram_loss_to",
    "history_norm",
    "info_nce",
    "info_nce_rows",
    "mean_plackett_luce_nll",
    "mse_loss",
    "normalise_gram",
    "pair_history",
    "plackett_luce_nll",
    "rank_consistency",
    "rankclip_nll",
    "reference_order",
    "resample_gram",
    "resample_grid",
    "resample_tokens",
    "rkd_items",
    "rkd_loss",
    "symmetrised",
    "transition_scores",
    "unit_rows",
    "word_matrix",
    "word_pooling",
]
