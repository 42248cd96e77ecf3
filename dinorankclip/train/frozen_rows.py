"""Trains with a frozen image side (`--model.frozen-image-tower`): images are embedded once, then captions learn.

The image side (trunk, student and fusion of the images) never changes, so neither does its embedding of an image.
Every image of every part is therefore embedded once, as evaluation shows it (no crops, no flips). Batches hold the
stored rows instead of pixels, and a step costs as much as the text side. Scoring decodes no image either.

Rows lie in built/features/KEY (see data/row_store.py). KEY is a digest of everything that they depend on: other
weights, another image or another size lead to other rows. Blocks are dealt out to whoever is free (room `pieces`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.open_data import WithoutCaptions
from dinorankclip.data.row_pieces import RowPieces
from dinorankclip.data.row_store import CAUSE_NAMES, GOOD, RowStore, can_read, embed_rows
from dinorankclip.data.streams import refuse_stream
from dinorankclip.io import digest, home
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import refuse_non_finite
from dinorankclip.models.trunk import without_start
from dinorankclip.models.weights_file import identity, weights_hash
from dinorankclip.pieces.contract import Progress
from dinorankclip.pieces.run import make_pieces
from dinorankclip.train.run_folder import say
from dinorankclip.types import ImageRows, ImageSpec, Source, UserError

IMAGE_SIDE = ("trunk.towers.visual.", "image_student.", "image_fusion.")  # prefixes of parameter names
FOLDER = home() / "features"
FORMAT = 3  # version of the stored files
BATCH = 64  # images that the model embeds at once


@dataclass(frozen=True)
class FrozenImages:
    """Holds the rows of every part ("train", "val", …) and the identity of the image side that computed them."""

    rows: dict[str, ImageRows]
    identity: str
    identify: Callable[[Any], str]

    def demand(self, model: nn.Module) -> None:
        """Raise `UserError` if a checkpoint holds another image side."""
        if self.identify(model) != self.identity:
            raise UserError(
                "the model this run started from (--init, --model.weights) has changed since: its image side is not "
                "that of the run's checkpoint, so the stored image embeddings do not belong to this run. Restore the "
                "old model, name one of its checkpoints (RUN/checkpoints/step-N), or begin anew with --restart."
            )


def freeze_image_side(model: JointModel) -> None:
    for name, parameter in model.named_parameters():
        if name.startswith(IMAGE_SIDE):
            parameter.requires_grad_(False)


def image_identity(model: JointModel) -> str:
    """Hash the design and the weights of the image side, whatever the text side is."""
    design = {
        "trunk": without_start(model.trunk.config),
        "student": model.students.image,
        "fusion": asdict(model.fusion),
    }
    weights = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(IMAGE_SIDE)}
    return identity(design, weights_hash(weights))


Deal = Callable[[RowPieces, str], object]  # makes the missing rows; the second is their name: "train", "captions", …


def deal_here(pieces: RowPieces, name: str) -> None:
    make_pieces(pieces)


def image_maker(model: JointModel, reading: ReadingSettings) -> RowMaker:
    encode = partial(model.encode_image, normalize=False)
    return RowMaker(encode, image_identity(model), model.image_spec, model.dim, reading.max_pixels)


def frozen_images(
    model: JointModel, parts: dict[str, Source], reading: ReadingSettings, dry: bool = False, deal: Deal = deal_here
) -> FrozenImages:
    """Return rows of all parts after computing the missing rows. Every process must call this.
    A dry run prints the cost of the computation instead, and uses random rows."""
    maker, learning = image_maker(model, reading), model.training
    model.eval()
    rows = rows_of_parts(maker, parts, "image side", reading, dry, deal)
    model.train(learning)
    return FrozenImages(rows, maker.identity, image_identity)


def rows_of_parts(
    maker: RowMaker, parts: dict[str, Source], what: str, reading: ReadingSettings, dry: bool, deal: Deal
) -> dict[str, ImageRows]:
    """Return the rows of every part; random ones in a dry run that would have to compute them."""
    rows: dict[str, ImageRows] = {}
    for part, source in parts.items():
        refuse_stream(source, "a frozen image side finds embeddings by the image's place")
        stored = not maker.store(source).missing()
        words, size = f"frozen {what}: {len(source)} {part} images", f"{len(source) * maker.dim * 4 / 1e6:.1f} MB"
        if dry and not stored:
            minutes = maker.seconds(source) / 60
            say(f"{words}, embedded once: {minutes:.1f} min, {size} in {maker.folder(source)}; random rows below")
            rows[part] = partial(random_row, maker.dim)
        else:
            # As with pixels, damage stops a run in the training part only, and before the long computation ends.
            made = maker.make(source, part, max_damaged_of(part, reading), deal)
            say(f"{words}, {'stored before' if stored else 'embedded once'} ({size} in {made.folder})")
            rows[part] = made
    return rows


def max_damaged_of(part: str, reading: ReadingSettings) -> float:
    return reading.max_damaged if part == "train" else 1.0


@dataclass(frozen=True)
class RowMaker:
    """Turns images into rows. `encode`: uint8 [B, 3, S, S] → [B, D]; `identity` names it, weights included."""

    encode: Callable[[Tensor], Tensor]
    identity: str
    image: ImageSpec
    dim: int
    max_pixels: int

    def folder(self, source: Source) -> Path:
        # The fingerprint of a table or folder covers names of images; the stamps also tell a replaced image.
        data = (source.fingerprint, source.stamps().tobytes())
        return FOLDER / digest("image rows", FORMAT, self.identity, self.image, self.max_pixels, *data)

    def pieces(self, source: Source, name: str, max_damaged: float = 1.0) -> RowPieces:
        """Return the blocks of a source as pieces of work. `name` labels the progress bar."""
        about = {"image side": self.identity, "preprocessing": asdict(self.image), "data": source.fingerprint}
        damage = DamageCount(max_damaged)
        return RowPieces(
            f"embedding {name}", "image", self.folder(source), len(source), self.dim, about | {"images": len(source)},
            lambda block, progress: self._rows(source, block, damage, progress), partial(can_read, source),
        )  # fmt: skip

    def store(self, source: Source) -> RowStore:
        return self.pieces(source, "").store()

    def make(self, source: Source, name: str, max_damaged: float = 1.0, deal: Deal = deal_here) -> StoredRows:
        """Compute the missing rows of a source. Every process must call this."""
        deal(self.pieces(source, name, max_damaged), name)
        return StoredRows(self.folder(source), len(source))

    def seconds(self, source: Source) -> float:
        """Estimate the time that the missing rows would take one process, from one batch."""
        begin = time.perf_counter()
        first = range(min(BATCH, len(source)))
        self._rows(source, first, DamageCount(max_damaged=1.0))
        return sum(map(len, self.store(source).missing())) * (time.perf_counter() - begin) / max(1, len(first))

    def _rows(
        self, source: Source, block: range, damage: DamageCount, progress: Progress = lambda count: None
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, causes = embed_rows(
            {"embedding": self.encode}, WithoutCaptions(source), block, self.image, batch=BATCH,
            max_pixels=self.max_pixels, damage=damage, progress=progress,
        )  # fmt: skip
        refuse_non_finite(torch.from_numpy(rows["embedding"]), "embedding")
        return rows["embedding"], causes


class StoredRows:
    """Reads rows from disk as a `types.ImageRows`: `rows(index)` is the raw embedding of that image, float32 [D]."""

    def __init__(self, folder: Path, count: int) -> None:
        store = RowStore(folder, count)
        self.folder, self.count = folder, count
        self._rows, self._causes = store.rows(), store.causes

    def __call__(self, index: int) -> Tensor:
        if self._causes[index] != GOOD:
            raise Damage(CAUSE_NAMES[self._causes[index]])
        return torch.from_numpy(np.array(self._rows[index]))

    def __reduce__(self) -> tuple:
        return StoredRows, (self.folder, self.count)  # a spawned worker opens the files instead of receiving them


def random_row(dim: int, index: int) -> Tensor:
    """Return a row of the right shape for a dry run."""
    return torch.randn(dim, generator=torch.Generator().manual_seed(index))
