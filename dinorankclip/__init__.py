"""DinoRankCLIP: CLIP-style pretraining with high-order ranking, dense distillation and fair baselines.

Nothing heavy is imported here: `import dinorankclip` costs milliseconds. `load_model` and `RankingLoss` bring torch
with them when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dinorankclip.losses import RankingLoss
    from dinorankclip.models.loaded import load_model
    from dinorankclip.types import UserError

__version__ = "0.2.0"
__all__ = ["RankingLoss", "UserError", "__version__", "load_model"]

_HOMES = {
    "load_model": "dinorankclip.models.loaded",
    "RankingLoss": "dinorankclip.losses",
    "UserError": "dinorankclip.types",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dinorankclip' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
