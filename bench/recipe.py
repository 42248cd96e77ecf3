"""What both sides share: the weights they start from, the batches, and open_clip's recipe for ViTs."""

from __future__ import annotations

from dinorankclip.config import OptimSettings, ReadingSettings
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.types import Source

TOTAL_STEPS, WARMUP = 10_000, 500  # a choice of ours; a schedule costs no time
# Gradients are not clipped, since open_clip's trainer does not clip unless told to.
OPTIMISER = OptimSettings(
    lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2, warmup_steps=WARMUP, clip_norm=None
)  # fmt: skip


def starting_model(name: str) -> JointModel:
    """A trunk at its first weights, which depend on the name alone."""
    return JointModel(trunk_config(name))


def training_loader(model: JointModel, source: Source, batch: int, workers: int = 0) -> PairLoader:
    """Batches as training sees them, with open_clip's crops: 90 to 100 % of the area, no flip."""
    trunk = model.trunk
    reading = ReadingSettings(workers=workers, crop_scale=(0.9, 1.0))
    return PairLoader(source, trunk.image_spec, Tokenizer(trunk.text_spec), batch=batch, seed=0, reading=reading)
