"""Fine-tuning with a frozen image side: trunk, student and fusion of the images stay as they are, captions learn.

What a frozen image side says of an image never changes. So every image is shown to it once, as evaluation shows it (no
crops, no flips); batches then hold the kept rows instead of pixels, and a step costs what the text side costs. The
held-out parts are kept likewise: a score taken during training decodes nothing either.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from dinorankclip.config import ReadingSettings
from dinorankclip.data.pipes import PipeSource
from dinorankclip.joint.identity import identity, weights_hash
from dinorankclip.joint.model import JointModel
from dinorankclip.pretrain.image_rows import RowMaker
from dinorankclip.pretrain.records import say
from dinorankclip.types import ImageRows, Source, UserError

IMAGE_SIDE = ("trunk.towers.visual.", "image_student.", "image_fusion.")


@dataclass(frozen=True)
class FrozenImages:
    """The rows of every part of the data ("train", "val", …), and the identity of the image side that gave them."""

    rows: dict[str, ImageRows]
    identity: str

    def demand(self, model: JointModel) -> None:
        """Refuse to go on with a checkpoint of another image side."""
        if image_identity(model) != self.identity:
            raise UserError(
                "the model this run started from (--init, --model.weights) has changed since: its image side is not "
                "the one in the run's checkpoint, so the kept image embeddings are not this run's. Bring the old one "
                "back, name one of its checkpoints (RUN/checkpoints/step-N), or begin anew with --restart."
            )


def freeze_image_side(model: JointModel) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith(IMAGE_SIDE):
            parameter.requires_grad_(False)


def image_identity(model: JointModel) -> str:
    """Hash of how the image side is built and of its weights; whatever the text side is."""
    design = {
        "trunk": model.trunk.config,
        "student": model.students.image,
        "fusion": dataclasses.asdict(model.fusion),
    }
    weights = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(IMAGE_SIDE)}
    return identity(design, weights_hash(weights))


def frozen_images(
    model: JointModel, parts: dict[str, Source | PipeSource], reading: ReadingSettings, dry: bool = False
) -> FrozenImages:
    """Rows of all parts, computed where they are not kept. All processes call. A dry run only says what that takes."""
    stored = {part: source for part, source in parts.items() if not isinstance(source, PipeSource)}
    if len(stored) < len(parts):
        raise UserError(
            "--model.frozen-image-tower finds embeddings by the image's place, and pipe: shards have none: "
            "store the data first"
        )
    maker = RowMaker(
        lambda pixels: model.encode_image(pixels, normalize=False),
        image_identity(model),
        model.trunk.image_spec,
        model.dim,
        reading.max_pixels,
    )
    learning = model.training
    model.eval()
    make = _pretended if dry else _made
    rows = {part: make(maker, part, source, reading) for part, source in stored.items()}
    model.train(learning)
    return FrozenImages(rows, maker.identity)


def _made(maker: RowMaker, part: str, source: Source, reading: ReadingSettings) -> ImageRows:
    there = not maker.missing(source)
    # As with pixels: damage stops a run in the training part only, and there before the long computation ends.
    rows = maker.make(source, part, reading.max_damaged if part == "train" else 1.0)
    size = maker.bytes(source) / 1e6
    say(
        f"frozen image side: {len(source)} {part} images, {'kept before' if there else 'embedded once'} "
        f"({size:.1f} MB in {rows.folder})"
    )
    return rows


def _pretended(maker: RowMaker, part: str, source: Source, reading: ReadingSettings) -> ImageRows:
    if not maker.missing(source):
        return _made(maker, part, source, reading)
    seconds, size = maker.seconds(source), maker.bytes(source) / 1e6
    say(
        f"frozen image side: {len(source)} {part} images, embedded once: {seconds / 60:.1f} min, {size:.1f} MB in "
        f"{maker.folder(source)}; stand-ins below"
    )
    return StandInRows(maker.dim)


class StandInRows:
    """Rows of the right shape that say nothing."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, index: int) -> Tensor:
        return torch.randn(self.dim, generator=torch.Generator().manual_seed(index))
