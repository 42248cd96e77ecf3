"""Gather once → equations → weighted, named terms. Baselines are settings of one objective.

objective.py      what a run minimises                   weights.py     every weight, by name
ranking_loss.py   equation 8, usable without us          telemetry.py   numbers that are only watched
distillation.py   cached teachers → students
"""

from .objective import Objective
from .ranking_loss import RankingLoss
from .telemetry import gradient_report

__all__ = ["Objective", "RankingLoss", "gradient_report"]
