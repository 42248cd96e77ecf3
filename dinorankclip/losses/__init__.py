"""Gather once → equations → weighted, named terms. Baselines are settings of one objective."""

from .objective import Objective
from .ranking_loss import RankingLoss
from .telemetry import gradient_report

__all__ = ["Objective", "RankingLoss", "gradient_report"]
