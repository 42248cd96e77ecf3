"""Imports and builds in the parent what every child would otherwise import and build again."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import torch

PACKAGES = ("matplotlib.pyplot", "open_clip", "pyarrow.parquet", "timm", "torchvision", "tyro", "webdataset")


def warm_up() -> None:
    """Import all rooms and the packages they use, read the vocabulary, and build a model once."""
    torch.set_num_threads(1)
    import dinorankclip

    for module in pkgutil.walk_packages(dinorankclip.__path__, "dinorankclip."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from dinorankclip.models.joint import JointModel
    from dinorankclip.models.loaded import trial_pairs
    from dinorankclip.models.trunk import trunk_config

    model = JointModel(trunk_config("drc-tiny"), 0)
    model.tokenizer()(["a red cat"])
    trial_pairs(2)
    # The first optimiser imports a compiler.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
