"""Computes the rows of frozen towers once (`--recipe aligned`): every image of every part, every different caption.

Rows lie in built/features/KEY (see data/row_store.py), like those of a frozen image tower (frozen_rows.py). KEY is a
digest of everything that they depend on, so runs on the same data with the same towers share them. Captions have rows
of their own: each different caption once, in the order of first appearance. Blocks are dealt out to whoever is free.

Tokens are stored reduced. Their basis is fitted to a fixed sample of the training images and captions, and stored
beside the rows: the next run on this data finds the same basis, and with it the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.row_pieces import RowPieces
from dinorankclip.data.row_store import GOOD
from dinorankclip.data.samples import iterate_pairs
from dinorankclip.data.splits import SplitPart
from dinorankclip.io import digest, write_bytes
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.weights_file import read_weights
from dinorankclip.pieces.contract import Progress
from dinorankclip.teachers.cache_build import fit_basis
from dinorankclip.train.frozen_rows import (
    FOLDER,
    Deal,
    FrozenImages,
    RowMaker,
    deal_here,
    max_damaged_of,
    rows_of_parts,
)
from dinorankclip.train.run_folder import say
from dinorankclip.types import Source, UserError

FORMAT = 1
FIT_IMAGES, FIT_CAPTIONS = 256, 2048  # sample sizes for fitting the bases
CAPTIONS_AT_ONCE = 128
CAPTIONS = "captions"  # the name of their rows, beside the names of parts


class CaptionRows:
    """Looks up rows by caption: `rows(captions)` → float32 [B, G]. Stands where a run has its tokenizer."""

    def __init__(self, captions: Sequence[str], table: np.ndarray) -> None:
        self._place = {caption: place for place, caption in enumerate(captions)}
        self._table = table

    def load(self) -> CaptionRows:
        return self

    def __call__(self, captions: Sequence[str]) -> Tensor:
        return torch.from_numpy(self._table[[self._place[caption] for caption in captions]])


def tower_rows(
    model: AlignedModel, parts: dict[str, Source], reading: ReadingSettings, dry: bool = False, deal: Deal = deal_here
) -> tuple[FrozenImages, CaptionRows]:
    """Return rows of all images and captions after computing the missing rows, and set the model's bases and scales.

    Every process must call this. A dry run prints the cost instead, and uses random rows.
    """
    model.eval()
    cards = model.image_tower.teacher.card, model.text_tower.teacher.card
    say("frozen towers: " + " and ".join(f"{card.name} ({card.licence})" for card in cards))
    captions = different_captions(parts.values())
    if not dry:
        set_bases(model, parts["train"], captions, reading)
    rows = rows_of_parts(tower_maker(model, reading), parts, "towers", reading, dry, deal)
    if dry:
        return FrozenImages(rows, rows_identity(model), rows_identity), _random_captions(model, captions)
    pieces = caption_pieces(model, captions)
    missing = pieces.store().missing()
    deal(pieces, CAPTIONS)
    words = "read once" if missing else "read before"
    say(f"frozen towers: {len(captions)} different captions, {words} ({len(captions) * pieces.dim * 4 / 1e6:.0f} MB)")
    texts = CaptionRows(captions, pieces.store().rows())
    return FrozenImages(rows, rows_identity(model), rows_identity), texts


def tower_maker(model: AlignedModel, reading: ReadingSettings) -> RowMaker:
    encode = torch.inference_mode()(lambda images: model.image_rows(model.normalised(images.to(model.device))))
    identity, dim = branch_identity(model, "image"), model.layouts["image"].dim
    return RowMaker(encode, identity, model.image_spec, dim, reading.max_pixels)


def caption_pieces(model: AlignedModel, captions: list[str]) -> RowPieces:
    """Return the blocks of the rows of captions as pieces of work."""
    identity, dim = branch_identity(model, "text"), model.layouts["text"].dim

    def compute(block: range, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
        rows = embed_captions(model, captions[block.start : block.stop], progress)
        return rows, np.full(len(block), GOOD, np.int8)

    about = {"text side": identity, "captions": len(captions)}
    folder = FOLDER / digest(identity, *captions)
    return RowPieces("reading captions", "caption", folder, len(captions), dim, about, compute)


def open_tower_pieces(model: AlignedModel, parts: dict[str, Source], reading: ReadingSettings, name: str) -> RowPieces:
    """Return the pieces that `tower_rows` deals out under a name, in a worker elsewhere."""
    model.eval()
    captions = different_captions(parts.values())
    set_bases(model, parts["train"], captions, reading)
    if name == CAPTIONS:
        return caption_pieces(model, captions)
    return tower_maker(model, reading).pieces(parts[name], name, max_damaged_of(name, reading))


def different_captions(sources: Iterable[Source]) -> list[str]:
    """Return every caption of the sources once, in the order of first appearance."""
    known: dict[str, None] = {}
    for source in sources:
        for index in range(len(source)):
            try:
                known |= dict.fromkeys(source.captions(index))
            except Damage:
                continue  # the pair is damaged, and is counted where its image is read
    if not known:
        raise UserError("no caption of the data can be read")
    return list(known)


def rows_identity(model: AlignedModel) -> str:
    """Hash everything that the rows of a model depend on."""
    return digest(branch_identity(model, "image"), branch_identity(model, "text"))


def branch_identity(model: AlignedModel, branch: str) -> str:
    """Hash everything that the rows of a branch depend on: tower, layout and basis."""
    basis: Tensor = getattr(model, f"{branch}_basis")
    tower, layout = getattr(model.design, branch), model.layouts[branch]
    return digest("tower rows", FORMAT, branch, tower, layout, basis.cpu().numpy().tobytes())


def set_bases(model: AlignedModel, train: Source, captions: list[str], reading: ReadingSettings) -> None:
    """Give the model its bases: stored ones, or new ones fitted by the leading process."""
    widths = {branch: model.layouts[branch].width for branch in ("image", "text")}
    samples = {
        "image": partial(_image_tokens, model, train, reading.max_pixels),
        "text": partial(_caption_tokens, model, captions),
    }
    for branch, width in widths.items():
        if not width:
            continue
        data = (train.fingerprint, train.stamps().tobytes()) if branch == "image" else tuple(captions)
        key = digest("tower basis", FORMAT, getattr(model.design, branch), width, *data)
        path = FOLDER / f"basis-{key}.safetensors"
        sample = samples[branch]
        distributed.leader_first(partial(_store_basis, path, sample, width))
        getattr(model, f"{branch}_basis").copy_(read_weights(path)["basis"])


def _store_basis(path: Path, sample: Callable[[], Iterator[Tensor]], width: int) -> None:
    if not path.is_file():
        from safetensors.torch import save

        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, save({"basis": fit_basis(sample(), width)}))


def _spaced(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


@torch.inference_mode()
def _image_tokens(model: AlignedModel, train: Source, max_pixels: int) -> Iterator[Tensor]:
    part = SplitPart(train, _spaced(len(train), FIT_IMAGES))
    for _, images, _ in iterate_pairs(part, model.image_spec, 64, max_pixels=max_pixels):
        yield model.image_tower(model.normalised(images.to(model.device)))[0].flatten(0, 1).cpu()


@torch.inference_mode()
def _caption_tokens(model: AlignedModel, captions: list[str]) -> Iterator[Tensor]:
    chosen = [captions[place] for place in _spaced(len(captions), FIT_CAPTIONS)]
    for start in range(0, len(chosen), CAPTIONS_AT_ONCE):
        ids = model.tokenizer()(chosen[start : start + CAPTIONS_AT_ONCE])
        tokens, _, mask = model.text_tower(ids.to(model.device))
        yield tokens[mask].cpu()


@torch.inference_mode()
def embed_captions(model: AlignedModel, captions: Sequence[str], progress: Progress) -> np.ndarray:
    """Return the rows of captions, float32 [n, G]. Captions of like length go together, to pad them less."""
    order = sorted(range(len(captions)), key=lambda i: len(captions[i]))
    table = np.empty((len(captions), model.layouts["text"].dim), np.float32)
    for start in range(0, len(order), CAPTIONS_AT_ONCE):
        cut = order[start : start + CAPTIONS_AT_ONCE]
        ids = model.tokenizer()([captions[i] for i in cut]).to(model.device)
        table[cut] = model.text_rows(ids).float().cpu().numpy()
        progress(len(cut))
    return table


def _random_captions(model: AlignedModel, captions: list[str]) -> CaptionRows:
    """Return random rows for a dry run: one row that all captions share would make every batch alike."""
    table = np.random.default_rng(0).standard_normal((1024, model.layouts["text"].dim)).astype(np.float32)
    rows = CaptionRows(captions, table)
    rows._place = {caption: place % len(table) for caption, place in rows._place.items()}
    return rows
