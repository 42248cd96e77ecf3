"""DinoRankCLIP: CLIP-style pretraining with high-order ranking, dense distillation and fair baselines.

`train`, `score`, `search` and `load_model` do in Python what the commands do; `register_*` add methods, teachers,
readers and scorers. `import dinorankclip` costs milliseconds: a name is imported, and torch with it, on its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dinorankclip.api.scoring import score
    from dinorankclip.api.searching import search
    from dinorankclip.api.training import TrainedRun, train
    from dinorankclip.config import TrainSettings
    from dinorankclip.data.readers import register_reader
    from dinorankclip.evaluate.suite import register_scorer
    from dinorankclip.losses import RankingLoss
    from dinorankclip.methods import MethodTraits, register_method
    from dinorankclip.models.loaded import load_model
    from dinorankclip.teachers.registry import TeacherKind, register_teacher
    from dinorankclip.train.callbacks import Event
    from dinorankclip.types import UserError

__version__ = "0.2.0"
__all__ = [
    "Event", "MethodTraits", "RankingLoss", "TeacherKind", "TrainSettings", "TrainedRun", "UserError", "__version__",
    "load_model", "register_method", "register_reader", "register_scorer", "register_teacher", "score", "search",
    "train",
]  # fmt: skip

_MODULES = {
    "Event": "dinorankclip.train.callbacks",
    "MethodTraits": "dinorankclip.methods",
    "RankingLoss": "dinorankclip.losses",
    "TeacherKind": "dinorankclip.teachers.registry",
    "TrainSettings": "dinorankclip.config",
    "TrainedRun": "dinorankclip.api.training",
    "UserError": "dinorankclip.types",
    "load_model": "dinorankclip.models.loaded",
    "register_method": "dinorankclip.methods",
    "register_reader": "dinorankclip.data.readers",
    "register_scorer": "dinorankclip.evaluate.suite",
    "register_teacher": "dinorankclip.teachers.registry",
    "score": "dinorankclip.api.scoring",
}
_ROOMS = ("search", "train")  # rooms that are also functions (callable_room.py)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from dinorankclip.extras import naming_extras

        with naming_extras(f"dinorankclip.{name}"):
            return getattr(importlib.import_module(_MODULES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"dinorankclip.{name}")
    raise AttributeError(f"module 'dinorankclip' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
