"""How a student's features enter the trunk's embedding.

variants.py    the six of the paper, as compositions    scales.py     tokens, alone or in a pyramid
attention.py   channel, then spatial                    summaries.py  scales → one vector
residuals.py   the u of v + α ⊙ u                       gating.py     the sum itself
"""

from .gating import Fused, Fusion
from .variants import VARIANTS, build_fusion

__all__ = ["VARIANTS", "Fused", "Fusion", "build_fusion"]
