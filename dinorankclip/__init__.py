"""DinoRankCLIP: CLIP-style pretraining with high-order ranking, dense distillation and fair baselines.

`import dinorankclip` costs milliseconds. The first use of `load_model` or `RankingLoss` imports torch.
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

_MODULES = {
    "load_model": "dinorankclip.models.loaded",
    "RankingLoss": "dinorankclip.losses",
    "UserError": "dinorankclip.types",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from dinorankclip.extras import naming_extras

        with naming_extras(f"dinorankclip.{name}"):
            return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'dinorankclip' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
