"""Computes the rows of frozen towers once (`--recipe aligned`): every image of every part, every different caption.

Rows lie in built/features/KEY (see data/row_store.py), like those of a frozen image tower (frozen_rows.py). KEY is a
digest of everything that they depend on, so runs on the same data with the same towers share them. Captions have rows
of their own: each different caption once, in the order of first appearance. Process r of W computes blocks r, r + W, …

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
from tqdm import tqdm

from dinorankclip import distributed
from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.row_store import GOOD, RowStore
from dinorankclip.data.samples import iterate_pairs
from dinorankclip.data.splits import SplitPart
from dinorankclip.data.streams import refuse_stream
from dinorankclip.io import digest, write_bytes
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.weights_file import read_weights
from dinorankclip.teachers.cache_build import fit_basis
from dinorankclip.train.frozen_rows import FOLDER, FrozenImages, RowMaker, random_row
from dinorankclip.train.run_folder import say
from dinorankclip.types import ImageRows, Source, UserError

FORMAT = 1
FIT_IMAGES, FIT_CAPTIONS = 256, 2048  # sample sizes for fitting the bases
CAPTIONS_AT_ONCE = 128


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
    model: AlignedModel, parts: dict[str, Source], reading: ReadingSettings, dry: bool = False
) -> tuple[FrozenImages, CaptionRows]:
    """Return rows of all images and captions after computing the missing rows, and set the model's bases and scales.

    Every process must call this. A dry run prints the cost instead, and uses random rows.
    """
    model.eval()
    cards = model.image_tower.teacher.card, model.text_tower.teacher.card
    say("frozen towers: " + " and ".join(f"{card.name} ({card.licence})" for card in cards))
    for source in parts.values():
        refuse_stream(source, "--recipe aligned finds features by the image's place")
    captions = different_captions(parts.values())
    if not dry:
        _set_bases(model, parts["train"], captions, reading)
    encode = torch.inference_mode()(lambda images: model.image_rows(model.normalised(images.to(model.device))))
    dim = model.layouts["image"].dim
    maker = RowMaker(encode, branch_identity(model, "image"), model.image_spec, dim, reading.max_pixels)
    rows: dict[str, ImageRows] = {}
    for part, source in parts.items():
        stored = not maker.store(source).missing()
        words, size = f"frozen towers: {len(source)} {part} images", f"{len(source) * dim * 4 / 1e6:.0f} MB"
        if dry:
            say(f"{words}, {'stored before' if stored else f'looked at once, {maker.seconds(source) / 60:.1f} min'}")
            rows[part] = partial(random_row, dim)
            continue
        made = maker.make(source, part, reading.max_damaged if part == "train" else 1.0)
        say(f"{words}, {'stored before' if stored else 'looked at once'} ({size} in {made.folder})")
        rows[part] = made
    texts = _random_captions(model, captions) if dry else _caption_rows(model, captions)
    return FrozenImages(rows, rows_identity(model), rows_identity), texts


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


def _set_bases(model: AlignedModel, train: Source, captions: list[str], reading: ReadingSettings) -> None:
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


def _caption_rows(model: AlignedModel, captions: list[str]) -> CaptionRows:
    """Compute the missing rows of captions. Every process must call this."""
    identity = branch_identity(model, "text")
    folder, dim, world = FOLDER / digest(identity, *captions), model.layouts["text"].dim, distributed.world()
    store = RowStore(folder, len(captions), {"text side": identity, "captions": len(captions)})
    missing = store.missing()
    todo = missing[world.rank :: world.size]
    distributed.wait_for_all()  # all processes read the store before one writes
    try:
        distributed.leader_first(lambda: store.reserve(dim) if missing else None)
        with tqdm(
            total=sum(map(len, todo)), desc="reading captions", unit="caption", mininterval=1.0, dynamic_ncols=True,
            disable=not (world.leads and todo),
        ) as bar:  # fmt: skip
            for block in todo:
                rows = embed_captions(model, captions[block.start : block.stop], bar.update)
                store.write(block, rows, np.full(len(block), GOOD, np.int8))
    except OSError as error:
        size = len(captions) * dim * 4 / 1e6
        raise UserError(
            f"{folder.resolve()} cannot be written ({error.strerror}): the features of {len(captions)} captions need "
            f"{size:.0f} MB there"
        ) from error
    distributed.wait_for_all()
    words = "read once" if missing else "read before"
    say(f"frozen towers: {len(captions)} different captions, {words} ({len(captions) * dim * 4 / 1e6:.0f} MB)")
    return CaptionRows(captions, RowStore(folder, len(captions)).rows())


@torch.inference_mode()
def embed_captions(model: AlignedModel, captions: Sequence[str], progress: Callable[[int], object]) -> np.ndarray:
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
