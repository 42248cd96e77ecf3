"""DinoRankCLIP: CLIP-style pretraining with high-order ranking, dense distillation and fair baselines.

Nothing heavy is imported here: `import dinorankclip` costs milliseconds. `load_model` brings torch with it when it is
first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dinorankclip.joint.loaded import load_model

__version__ = "0.1.0"
__all__ = ["__version__", "load_model"]


def __getattr__(name: str) -> Any:
    if name == "load_model":
        from dinorankclip.joint.loaded import load_model

        return load_model
    raise AttributeError(f"module 'dinorankclip' has no attribute '{name}'")
