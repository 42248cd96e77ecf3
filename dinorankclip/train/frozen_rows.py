"""Trains with a frozen image side (`--model.frozen-image-tower`): images are embedded once, then captions learn.

The image side (trunk, student and fusion of the images) never changes, so neither does its embedding of an image.
Every image of every part is therefore embedded once, as evaluation shows it (no crops, no flips). Batches hold the
stored rows instead of pixels, and a step costs as much as the text side. Scoring decodes no image either.

Rows lie in built/features/KEY (see data/row_store.py). KEY is a digest of everything that they depend on: other
weights, another image or another size lead to other rows. Process r of W computes blocks r, r + W, … of a part.
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
from tqdm import tqdm

from dinorankclip import distributed
from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.open_data import WithoutCaptions
from dinorankclip.data.row_store import CAUSE_NAMES, GOOD, RowStore, can_read, embed_rows
from dinorankclip.data.streams import refuse_stream
from dinorankclip.io import digest, home
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import refuse_non_finite
from dinorankclip.models.trunk import without_start
from dinorankclip.models.weights_file import identity, weights_hash
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


def frozen_images(
    model: JointModel, parts: dict[str, Source], reading: ReadingSettings, dry: bool = False
) -> FrozenImages:
    """Return rows of all parts after computing the missing rows. Every process must call this.
    A dry run prints the cost of the computation instead, and uses random rows."""
    encode = partial(model.encode_image, normalize=False)
    maker = RowMaker(encode, image_identity(model), model.image_spec, model.dim, reading.max_pixels)
    learning = model.training
    model.eval()
    rows: dict[str, ImageRows] = {}
    for part, source in parts.items():
        refuse_stream(source, "--model.frozen-image-tower finds embeddings by the image's place")
        stored = not maker.store(source).missing()
        words, size = f"frozen image side: {len(source)} {part} images", f"{len(source) * model.dim * 4 / 1e6:.1f} MB"
        if dry and not stored:
            minutes = maker.seconds(source) / 60
            say(f"{words}, embedded once: {minutes:.1f} min, {size} in {maker.folder(source)}; random rows below")
            rows[part] = partial(random_row, model.dim)
        else:
            # As with pixels, damage stops a run in the training part only, and before the long computation ends.
            made = maker.make(source, part, reading.max_damaged if part == "train" else 1.0)
            say(f"{words}, {'stored before' if stored else 'embedded once'} ({size} in {made.folder})")
            rows[part] = made
    model.train(learning)
    return FrozenImages(rows, maker.identity, image_identity)


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

    def store(self, source: Source) -> RowStore:
        about = {"image side": self.identity, "preprocessing": asdict(self.image), "data": source.fingerprint}
        return RowStore(self.folder(source), len(source), about | {"images": len(source)})

    def make(self, source: Source, name: str, max_damaged: float = 1.0) -> StoredRows:
        """Compute the missing rows of a source. Every process must call this. `name` labels the progress bar."""
        store, world = self.store(source), distributed.world()
        missing = store.missing(partial(can_read, source))
        todo = missing[world.rank :: world.size]
        distributed.wait_for_all()  # all processes read the store before one writes, so their shares fit together
        distributed.leader_first(lambda: self._write(source, lambda: store.reserve(self.dim)) if missing else None)
        total, damage = sum(map(len, todo)), DamageCount(max_damaged)
        with tqdm(
            total=total, desc=f"embedding {name}", unit="image", disable=not (world.leads and total), mininterval=1.0,
            dynamic_ncols=True,
        ) as bar:  # fmt: skip
            for block in todo:
                self._write(source, partial(store.write, block, *self._rows(source, block, damage, bar.update)))
        distributed.wait_for_all()
        if self.store(source).missing():
            raise UserError(
                f"{self.folder(source).resolve()} lacks rows that another process computed: all machines must share "
                "that disk"
            )
        return StoredRows(self.folder(source), len(source))

    def _write(self, source: Source, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise UserError(
                f"{self.folder(source).resolve()} cannot be written ({error.strerror}): the embeddings of "
                f"{len(source)} images need {len(source) * self.dim * 4 / 1e6:.0f} MB there"
            ) from error

    def seconds(self, source: Source) -> float:
        """Estimate the time that the missing rows would take one process, from one batch."""
        begin = time.perf_counter()
        first = range(min(BATCH, len(source)))
        self._rows(source, first, DamageCount(max_damaged=1.0))
        return sum(map(len, self.store(source).missing())) * (time.perf_counter() - begin) / max(1, len(first))

    def _rows(
        self, source: Source, block: range, damage: DamageCount, progress: Callable[[int], object] = lambda count: None
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
