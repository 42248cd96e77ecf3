"""Imports and builds in the parent what every child would otherwise import and build again."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import pkgutil

import torch

from dinorankclip.commands.train import parse
from dinorankclip.data.tokens import Tokenizer

PACKAGES = ("matplotlib.pyplot", "open_clip", "pyarrow.parquet", "timm", "torchvision", "tyro", "webdataset")


def warm_up() -> None:
    """Import all rooms and the packages they use, read the vocabulary, and build a model once."""
    torch.set_num_threads(1)
    import dinorankclip

    for module in pkgutil.walk_packages(dinorankclip.__path__, "dinorankclip."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # code for exports needs packages of its own
                importlib.import_module(module.name)
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from dinorankclip.models.joint import JointModel
    from dinorankclip.models.loaded import trial_pairs
    from dinorankclip.models.trunk import trunk_config

    _share_the_vocabulary()
    model = JointModel(trunk_config("drc-tiny"), 0)
    model.tokenizer()(["a red cat"])
    trial_pairs(2)
    parse(["--preset", "scenes", "--method", "clip"])
    # The first optimiser imports a compiler.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    gc.collect()
    gc.freeze()  # children need not look at these objects, whose memory they would then have to copy


def _share_the_vocabulary() -> None:
    """Let all tokenizers of children use the vocabulary that the parent has read."""
    ready = Tokenizer().load()._bpe

    def load(self: Tokenizer) -> Tokenizer:
        if self._bpe is None:
            self._bpe = copy.copy(ready)
            self._bpe.context_length = self.spec.context_length
        return self

    Tokenizer.load = load  # type: ignore[method-assign]
