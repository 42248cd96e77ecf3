"""Loads a trained model for use (`load_model`), with checks of its inputs and outputs.

    model = load_model("runs/first")
    images = torch.stack([model.preprocess(path) for path in paths])
    similarity = model.encode_image(images) @ model.encode_text(["a red mug"]).T

Shapes: B images or captions, S image side, L tokens, D embedding width, W width of the trunk's pooled features.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dinorankclip.checked_files import file_bytes
from dinorankclip.data.damage import CAUSES, IMAGE_BYTES, Damage
from dinorankclip.data.decode import decode, from_pillow
from dinorankclip.data.samples import render_whole
from dinorankclip.data.scenes.make import SampleSpec, SetSplit, sample_files
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import Placement, choose
from dinorankclip.models.folder import AnyModel, check_vocabulary, design_of, find_model, load_folder
from dinorankclip.models.foreign import foreign_model, is_foreign
from dinorankclip.models.joint import Details, details_of
from dinorankclip.models.starter import STARTER, starter_model
from dinorankclip.models.towers import TowerTokenizer
from dinorankclip.models.weights_file import identity, weights_hash
from dinorankclip.types import ImageSpec, TextSpec, UserError

# A batch is cut into pieces of this size, which bounds the memory for any batch.
PIXELS_AT_ONCE = 64 * 224 * 224
TEXTS_AT_ONCE = 256
_SLACK = 4.0  # augmentations and trial inputs go beyond black and white; pixels that were not normalised go far beyond

STARTER_NOTE = "the installed towers as they are, no pair seen"
Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
Output = TypeVar("Output")  # rows or details


def load_model(where: str | Path, device: str = "auto", precision: str = "auto") -> LoadedModel:
    """Load a run folder, a checkpoint, an exported folder, `open_clip:NAME:FILE`, `transformers:FOLDER` or `starter`.

    A run is its last checkpoint. `open_clip:NAME:random` has random weights from seed 0 (and warns). Published weights
    (`open_clip:NAME:TAG`, `transformers:owner/name`) come from the local hub cache; nothing is downloaded unless the
    environment has DINORANKCLIP_ONLINE=1. "auto" chooses the GPU if there is one, and bf16 where it is native;
    `model.reason` says what was chosen and why.
    """
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"precision '{precision}': there are auto, fp32 and bf16")
    placement = choose(str(device), precision)
    if str(where) == STARTER:
        return LoadedModel(starter_model(), STARTER, placement, STARTER_NOTE)
    if not is_foreign(str(where)):
        folder = find_model(where)
        check_vocabulary(folder)
        return LoadedModel(load_folder(folder), str(where), placement)
    parts, note = foreign_model(str(where))
    if note:
        warnings.warn(f"{where}: {note}", stacklevel=2)
    return LoadedModel(parts, str(where), placement, note)


class LoadedModel:
    """Holds frozen trunk, students and fusion. Methods return ordinary fp32 tensors without history, on `device`."""

    def __init__(self, parts: AnyModel, name: str, placement: Placement, note: str = ""):
        self.parts = parts.to(placement.device).eval().requires_grad_(False)
        self.name = name
        self.placement = placement
        self.reason = f"{placement.reason}; {note}" if note else placement.reason
        self.image_spec: ImageSpec = parts.image_spec
        self.text_spec: TextSpec = parts.text_spec
        self.tokenizer = parts.tokenizer()

    @property
    def dim(self) -> int:
        return self.parts.dim

    @property
    def device(self) -> torch.device:
        return self.placement.device

    @functools.cached_property
    def identity(self) -> str:
        """Return a hex hash of design and weights: the key under which embeddings of this model may be stored."""
        return identity(design_of(self.parts), weights_hash(self.parts.own_state()))

    def preprocess(self, picture: Picture) -> Tensor:
        """Map a path, bytes, a Pillow image or uint8 pixels [H, W, 3] to uint8 [3, S, S], as evaluation does."""
        try:
            pixels = _decoded(picture)
        except Damage as damage:
            name = f"{os.fspath(picture)}: " if isinstance(picture, str | os.PathLike) else ""
            raise UserError(f"{name}{CAUSES[damage.cause]} ({damage.detail or damage.cause})") from damage
        spec = self.image_spec
        return render_whole(pixels, spec.size, spec.resize, spec.interpolation)

    def encode_image(self, images: Tensor, normalize: bool = True) -> Tensor:
        """Map uint8 images [B, 3, S, S], or normalised floats, to [B, D], of length 1 if `normalize`."""
        rows = self._rows("embedding", lambda pixels: self.parts.see(pixels).raw, self._pixels(images))
        return F.normalize(rows, dim=-1) if normalize else rows

    def encode_text(self, texts: Sequence[str] | Tensor, normalize: bool = True) -> Tensor:
        """Map captions, or their ids [B, L], to [B, D], of length 1 if `normalize`."""
        order = None
        if isinstance(texts, Tensor):
            pieces = self._ids(texts)
        else:
            _check_captions(texts)
            # Captions of like length go together, so that short captions are not padded to the longest.
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            cuts = (order[at : at + TEXTS_AT_ONCE] for at in range(0, len(order), TEXTS_AT_ONCE))
            pieces = (self.tokenizer([texts[i] for i in cut]).to(self.device) for cut in cuts)
        rows = self._rows("text", lambda ids: self.parts.read(ids).raw, pieces)
        if order:
            rows = rows[torch.tensor(order, device=rows.device).argsort()]
        return F.normalize(rows, dim=-1) if normalize else rows

    def image_features(self, images: Tensor) -> Tensor:
        """Map images as in `encode_image` to the features before projection [B, W], for linear probes."""
        return self._rows("features", self.parts.pooled_image_features, self._pixels(images))

    def look(self, images: Tensor) -> Details:
        """Return embeddings, patch tokens, gate values and angles of images as in `encode_image`."""
        return _joined(self._each(self.parts.image_details, self._pixels(images)))

    def read(self, texts: Sequence[str] | Tensor) -> Details:
        """Return embeddings, tokens, gate values and angles of captions, or of their ids [B, L]."""
        if not isinstance(texts, Tensor):
            _check_captions(texts)
            texts = self.tokenizer(texts)
        return _joined(self._each(lambda ids: details_of(self.parts.read(ids)), self._ids(texts)))

    def _pixels(self, images: Tensor) -> Iterator[Tensor]:
        """Yield normalised pieces of a batch on the device."""
        _check_images(images, self.image_spec)
        at_once = max(1, PIXELS_AT_ONCE // self.image_spec.size**2)
        for start in range(0, len(images), at_once):
            piece = images[start : start + at_once].to(self.device)
            yield self.parts.normalised(piece) if piece.dtype == torch.uint8 else piece.float()

    def _ids(self, ids: Tensor) -> Iterator[Tensor]:
        _check_ids(ids, self.tokenizer)
        for start in range(0, len(ids), TEXTS_AT_ONCE):
            yield ids[start : start + TEXTS_AT_ONCE].to(self.device, torch.int64)

    def _rows(self, kind: str, step: Callable[[Tensor], Tensor], pieces: Iterable[Tensor]) -> Tensor:
        outputs = [rows.float() for rows in self._each(step, pieces)]
        rows = torch.cat(outputs) if outputs else torch.empty(0, self.dim, device=self.device)
        refuse_non_finite(rows, kind)
        return rows

    def _each(self, step: Callable[[Tensor], Output], pieces: Iterable[Tensor]) -> list[Output]:
        """Apply `step` to every piece. Tensors joined from the results outside of inference mode are ordinary again."""
        with torch.inference_mode(), self.placement.autocast():
            return [step(piece) for piece in pieces]


def _joined(pieces: list[Details]) -> Details:
    """Join the details of the pieces of a batch."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Details):
        tensors = [getattr(piece, field.name) for piece in pieces]
        values[field.name] = None if tensors[0] is None else torch.cat(tensors)
    return Details(**values)


def _decoded(picture: Picture) -> np.ndarray:
    """Return the uint8 pixels [H, W, 3] of a picture."""
    if isinstance(picture, Image.Image):
        return from_pillow(picture)
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise UserError(f"pixels must be uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
        return picture
    if isinstance(picture, bytes):
        return decode(picture)
    if not isinstance(picture, str | os.PathLike):
        raise UserError(f"a picture is a path, bytes, a Pillow image or uint8 pixels, not {type(picture).__name__}")
    try:
        data = file_bytes(Path(picture), IMAGE_BYTES)
    except OSError as error:
        raise UserError(f"{os.fspath(picture)} cannot be read: {error.strerror}") from error
    return decode(data)


def _check_images(images: Tensor, spec: ImageSpec) -> None:
    """Demand uint8 or normalised floats [B, 3, S, S]; other images would give wrong rows silently."""
    expected = f"uint8 images [B, 3, {spec.size}, {spec.size}]"
    advice = "torch.stack([model.preprocess(path) for path in paths]) makes them"
    if not isinstance(images, Tensor):
        raise UserError(f"expected {expected} as a tensor, not {type(images).__name__}; {advice}")
    if images.ndim != 4 or images.shape[1:] != (3, spec.size, spec.size):
        raise UserError(f"expected {expected}, not {list(images.shape)}; {advice}")
    if images.dtype == torch.uint8 or not len(images):
        return
    if not images.is_floating_point():
        raise UserError(f"expected {expected} or normalised floats, not {images.dtype}; {advice}")
    brightest = max(max(mean, 1 - mean) / std for mean, std in zip(spec.mean, spec.std))
    if not float(images.abs().amax()) <= _SLACK * brightest:
        raise UserError(
            f"float images must be normalised, (p/255 - mean)/std, which stays below {brightest:.1f}; these reach "
            f"{float(images.abs().amax()):.1f}. Pass uint8 pixels, the model normalises them itself"
        )


def _check_ids(ids: Tensor, tokenizer: Tokenizer | TowerTokenizer) -> None:
    """Demand integers [B, L] from the model's tokenizer: L up to the context length, each row with its end-of-text."""
    context = tokenizer.spec.context_length
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2 or not 1 <= ids.shape[1] <= context:
        raise UserError(
            f"expected captions, or their ids as integers [B, L] with L up to {context}, not {ids.dtype} "
            f"{list(ids.shape)}; model.tokenizer(captions) makes them"
        )
    if not len(ids):
        return
    if int(ids.min()) < 0 or int(ids.max()) >= tokenizer.vocabulary:
        raise UserError(f"ids must lie between 0 and {tokenizer.vocabulary - 1}; model.tokenizer(captions) makes them")
    without = (ids != tokenizer.end_of_text).all(1).nonzero()
    if len(without):
        raise UserError(
            f"row {int(without[0])} of the ids has no end-of-text token ({tokenizer.end_of_text}), at which the "
            "caption is read off; model.tokenizer(captions) sets it"
        )


def _check_captions(captions: Sequence[str]) -> None:
    if isinstance(captions, str):
        raise UserError("expected a list of captions, not one string: put it in a list")
    for caption in captions:
        if not isinstance(caption, str):
            raise UserError(f"captions must be strings, not {type(caption).__name__}")


class BrokenModel(UserError):
    """Reports a model whose rows are infinite or not numbers."""


def refuse_non_finite(rows: Tensor, kind: str) -> None:
    """Raise `BrokenModel` for rows that are not numbers.

    Comparisons with NaN are all false: without this check a broken model would get some score. Weights of a diverged
    training may be finite, and so large that rows are not.
    """
    # A row whose length overflows is as broken: normalised it would be zeros.
    if not bool(torch.isfinite(rows.norm(dim=-1)).all()):
        raise BrokenModel(
            f"the model gives non-finite {kind} rows: its weights are broken (training may have diverged)"
        )


def try_out(model: LoadedModel) -> None:
    """Encode two pairs, to refuse a broken model before anything is made for it."""
    pictures, captions = trial_pairs(2)
    model.encode_image(torch.stack([model.preprocess(picture) for picture in pictures]))
    model.encode_text(captions)


def trial_pairs(count: int) -> tuple[list[bytes], list[str]]:
    """Draw JPEGs of built-in scenes and as many captions, to check a model without any data.

    The shortest and the longest possible caption are among them.
    """
    samples = [sample_files(SampleSpec(SetSplit("pairs", "test", count), index, 0, 128)) for index in range(count)]
    captions = [sample["txt"].decode().splitlines()[0] for sample in samples]
    fills_the_context = "a very long caption " * 30
    return [sample["jpg"] for sample in samples], ["", fills_the_context, *captions][:count]
