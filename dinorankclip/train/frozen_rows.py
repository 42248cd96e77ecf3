"""Embeddings of the images of a source, computed once and kept: what a frozen image side says of each of them.

    built/features/NAME/about.json          whose embeddings of which images, for a person who looks
    built/features/NAME/causes-00000.npy    int8 [n]: why an image cannot be used (its place in `CAUSES`), -1 if it can
    built/features/NAME/rows-00000.npy      float32 [n, D], in the order of the source; zeros where there is a cause

NAME is a hash of all that the rows depend on, so nothing is ever stale: other weights, another image or another size
are other rows. Images are dealt out in blocks; process r of W makes blocks r, r + W, … A block depends on its images
and the model alone, and its rows are written last: a killed computation goes on with the first block that has none,
on any number of processes. Deleting a folder only costs the time to make it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip import distributed
from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import CAUSES, PASSING, Damage, DamageCount
from dinorankclip.data.loader import iterate_pairs
from dinorankclip.data.splits import Part
from dinorankclip.data.streams import PipeSource
from dinorankclip.data.unpaired import WithoutCaptions
from dinorankclip.io import digest, write_bytes, write_json
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import refuse_non_finite
from dinorankclip.models.weights_file import identity, weights_hash
from dinorankclip.train.run_folder import say
from dinorankclip.types import ImageRows, ImageSpec, Source, UserError

FOLDER = Path("built/features")
FORMAT = 2  # 1: of images whose centre was cut out before they were resized
BATCH = 64  # images the model sees at once
BLOCK = 2048  # rows of a file, at least: what a kill costs
MOST_BLOCKS = 128  # each is an open file in every process
_CAUSES = list(CAUSES)
_GOOD = -1
_PASSING = _CAUSES.index(PASSING)


class KeptRows:
    """`rows(index)` → the raw embedding of that image, float32 [D]: a `types.ImageRows` on disk."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self._size = block_size(count)
        blocks = range(-(-count // self._size))
        self._rows = [_open(folder, number) for number in blocks]
        self._causes = np.concatenate([np.load(folder / causes_name(number)) for number in blocks])

    def __call__(self, index: int) -> Tensor:
        if self._causes[index] != _GOOD:
            raise Damage(_CAUSES[self._causes[index]])
        block, place = divmod(index, self._size)
        return torch.from_numpy(np.array(self._rows[block][place]))  # a copy: the map itself is read-only

    def __reduce__(self) -> tuple:
        return KeptRows, (self.folder, self.count)  # a spawned worker opens the files instead of receiving them


@dataclass(frozen=True)
class RowMaker:
    """What turns images into rows. `encode`: uint8 [B, 3, S, S] → [B, D]; `identity` names it, weights included."""

    encode: Callable[[Tensor], Tensor]
    identity: str
    image: ImageSpec
    dim: int
    max_pixels: int

    def folder(self, source: Source) -> Path:
        # A table's and a folder's fingerprint know the names of images; the stamps also tell a replaced image.
        data = (source.fingerprint, source.stamps().tobytes())
        return FOLDER / digest("image rows", FORMAT, self.identity, self.image, self.max_pixels, *data)

    def missing(self, source: Source, look_again: bool = False) -> list[int]:
        """Blocks that are not there, or not whole; with `look_again` also those with images that can be read again."""
        folder = self.folder(source)
        numbers = range(block_count(len(source)))
        missing = [number for number in numbers if not _is_whole(folder, number, self._shape(source, number))]
        if look_again:
            missing += [n for n in numbers if n not in missing and self._is_back(source, folder, n)]
        return sorted(missing)

    def _is_back(self, source: Source, folder: Path, number: int) -> bool:
        """Whether an image of a block can be read now that could not when its rows were made."""
        first = number * block_size(len(source))
        for place in np.flatnonzero(np.load(folder / causes_name(number)) == _PASSING):
            with contextlib.suppress(Damage):
                source.image(first + int(place))
                return True
        return False

    def make(self, source: Source, name: str, max_damaged: float = 1.0) -> KeptRows:
        """The rows of a source, all of which are kept afterwards. All processes call. `name` labels the progress."""
        folder, world = self.folder(source), distributed.world()
        todo = self.missing(source, look_again=True)[world.rank :: world.size]
        distributed.wait_for_all()  # nobody writes before everybody has looked, or the shares would not fit together
        count = DamageCount(max_damaged)
        total = sum(self._shape(source, number)[0] for number in todo)
        with tqdm(
            total=total, desc=f"embedding {name}", unit="image", disable=not (world.leads and total), mininterval=1.0,
            dynamic_ncols=True,
        ) as bar:  # fmt: skip
            for number in todo:
                rows, causes = self._block(source, number, count, bar)
                self._write(folder, number, rows, causes, source)
        distributed.wait_for_all()
        if self.missing(source):
            raise UserError(f"{folder.resolve()} lacks what another process made: all machines must share that disk")
        return KeptRows(folder, len(source))

    def seconds(self, source: Source) -> float:
        """How long the missing rows would take one process, from one batch."""
        images = WithoutCaptions(Part(source, np.arange(min(BATCH, len(source)))))
        begin, seen = time.perf_counter(), 0
        for _keys, pixels, _captions in iterate_pairs(images, self.image, BATCH, max_pixels=self.max_pixels):
            self.encode(pixels).cpu()
            seen += len(pixels)
        rate = max(1, seen) / (time.perf_counter() - begin)
        return sum(self._shape(source, number)[0] for number in self.missing(source)) / rate

    def bytes(self, source: Source) -> int:
        return len(source) * self.dim * 4

    def _shape(self, source: Source, number: int) -> tuple[int, int]:
        size = block_size(len(source))
        return min(size, len(source) - number * size), self.dim

    def _block(self, source: Source, number: int, count: DamageCount, bar: tqdm) -> tuple[np.ndarray, np.ndarray]:
        first, length = number * block_size(len(source)), self._shape(source, number)[0]
        images = WithoutCaptions(Part(source, np.arange(first, first + length)))
        place = {images.key(at): at for at in range(length)}
        rows = np.zeros((length, self.dim), np.float32)
        causes = np.full(length, _GOOD, np.int8)
        for keys, pixels, _captions in iterate_pairs(
            images, self.image, BATCH, max_pixels=self.max_pixels, damage=count
        ):
            rows[[place[key] for key in keys]] = self.encode(pixels).float().cpu().numpy()
            bar.update(len(keys))
        for key, cause in count.keys.items():
            if key in place:  # not one of an earlier block
                causes[place[key]] = _CAUSES.index(cause)
        bar.update(int((causes != _GOOD).sum()))
        refuse_non_finite(torch.from_numpy(rows), "embedding")
        return rows, causes

    def _write(self, folder: Path, number: int, rows: np.ndarray, causes: np.ndarray, source: Source) -> None:
        about = {
            "image side": self.identity,
            "preprocessing": asdict(self.image),
            "data": source.fingerprint,
            "images": len(source),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "about.json", about)
            files = [(causes_name(number), causes), (rows_name(number), rows)]
            # Rows say that a block is whole. Where there are old ones, the old causes must outlive them instead: no
            # kill may leave an image without its row marked as good.
            for name, values in reversed(files) if (folder / rows_name(number)).exists() else files:
                write_bytes(folder / name, _as_npy(values))
        except OSError as error:
            needed = self.bytes(source) / 1e6
            raise UserError(
                f"{folder.resolve()} cannot be written ({error.strerror}): the embeddings of {len(source)} images need "
                f"{needed:.0f} MB there"
            ) from error


def block_size(count: int) -> int:
    return max(BLOCK, -(-count // MOST_BLOCKS))


def block_count(count: int) -> int:
    return -(-count // block_size(count))


def rows_name(number: int) -> str:
    return f"rows-{number:05d}.npy"


def causes_name(number: int) -> str:
    return f"causes-{number:05d}.npy"


def _open(folder: Path, number: int) -> np.ndarray:
    return np.load(folder / rows_name(number), mmap_mode="r")


def _is_whole(folder: Path, number: int, shape: tuple[int, int]) -> bool:
    try:
        return _open(folder, number).shape == shape and len(np.load(folder / causes_name(number))) == shape[0]
    except (OSError, ValueError, EOFError):  # absent, or cut short by a machine that lost power
        return False


def _as_npy(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


# -------- frozen
# Fine-tuning with a frozen image side: trunk, student and fusion of the images stay as they are, captions learn.
#
# What a frozen image side says of an image never changes. So every image is shown to it once, as evaluation shows it (no
# crops, no flips); batches then hold the kept rows instead of pixels, and a step costs what the text side costs. The
# held-out parts are kept likewise: a score taken during training decodes nothing either.

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
