"""How a student's features enter the trunk's embedding: scales, attention, gate, six variants."""

from .gating import Fused, Fusion
from .variants import VARIANTS, build_fusion

__all__ = ["VARIANTS", "Fused", "Fusion", "build_fusion"]
