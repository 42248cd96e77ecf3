"""A model in the hands of a user: `load_model(where)`, then pictures and captions in, embeddings out.

    model = load_model("runs/first")
    images = torch.stack([model.preprocess(path) for path in paths])
    similarity = model.encode_image(images) @ model.encode_text(["a red mug"]).T

Shapes: B images or captions, S image side, L tokens, D embedding width, W width of the trunk's pooled features.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import Placement, choose
from dinorankclip.joint.finite_rows import refuse_non_finite
from dinorankclip.joint.folder import design_of, find_model, load_folder
from dinorankclip.joint.identity import identity, weights_hash
from dinorankclip.joint.inputs import check_captions, check_ids, check_images
from dinorankclip.joint.model import JointModel
from dinorankclip.joint.open_clip_source import PREFIX, open_clip_model
from dinorankclip.joint.pictures import Picture, show
from dinorankclip.joint.readings import ImageReading, TextReading, image_reading, text_reading
from dinorankclip.joint.trunk_features import pooled_features
from dinorankclip.joint.vocabulary import check_vocabulary
from dinorankclip.types import ImageSpec, TextSpec, UserError

# A batch is cut into pieces of this size, which bounds the memory whatever the batch.
PIXELS_AT_ONCE = 64 * 224 * 224
TEXTS_AT_ONCE = 256

Reading = TypeVar("Reading", ImageReading, TextReading)
Found = TypeVar("Found")  # rows or a reading


def load_model(where: str | Path, device: str = "auto", precision: str = "auto") -> LoadedModel:
    """A model ready for use, from a run folder, a checkpoint, an exported folder or `open_clip:NAME:FILE`.

    A run is its last checkpoint. `open_clip:NAME:random` has random weights from seed 0 (and warns); nothing is ever
    downloaded. With "auto": the GPU if there is one, bf16 where it computes that natively; `model.reason`
    says what was chosen and why.
    """
    placement = _placement(device, precision)
    if not str(where).startswith(PREFIX):
        folder = find_model(where)
        check_vocabulary(folder)
        return LoadedModel(load_folder(folder), str(where), placement)
    parts, note = open_clip_model(str(where))
    if note:
        warnings.warn(f"{where}: {note}", stacklevel=2)
    return LoadedModel(parts, str(where), placement, note)


class LoadedModel:
    """Trunk, students and fusion, frozen. Methods return ordinary fp32 tensors without history, on `device`."""

    def __init__(self, parts: JointModel, name: str, placement: Placement, note: str = ""):
        self.parts = parts.to(placement.device).eval().requires_grad_(False)
        self.name = name
        self.placement = placement
        self.reason = f"{placement.reason}; {note}" if note else placement.reason
        self.image_spec: ImageSpec = parts.trunk.image_spec
        self.text_spec: TextSpec = parts.trunk.text_spec
        self.tokenizer = Tokenizer(self.text_spec)

    @property
    def dim(self) -> int:
        return self.parts.dim

    @property
    def device(self) -> torch.device:
        return self.placement.device

    @functools.cached_property
    def identity(self) -> str:
        """Hex hash of design and weights: the key under which embeddings of this model may be kept."""
        return identity(design_of(self.parts), weights_hash(self.parts.state_dict()))

    def preprocess(self, picture: Picture) -> Tensor:
        """A path, encoded bytes, a Pillow image or uint8 pixels [H, W, 3] → uint8 [3, S, S], as evaluation shows it."""
        return show(picture, self.image_spec.size)

    def encode_image(self, images: Tensor, normalize: bool = True) -> Tensor:
        """uint8 images [B, 3, S, S], or floats that are normalised already → [B, D], of length 1 if `normalize`."""
        rows = self._rows("embedding", lambda pixels: self.parts.see(pixels).raw, self._pixels(images))
        return F.normalize(rows, dim=-1) if normalize else rows

    def encode_text(self, texts: Sequence[str] | Tensor, normalize: bool = True) -> Tensor:
        """Captions, or their ids [B, L] → [B, D], of length 1 if `normalize`."""
        order = None
        if isinstance(texts, Tensor):
            pieces = self._ids(texts)
        else:
            check_captions(texts)
            # Captions of like length go together, so that short ones are not padded to the longest.
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            cuts = (order[at : at + TEXTS_AT_ONCE] for at in range(0, len(order), TEXTS_AT_ONCE))
            pieces = (self.tokenizer([texts[i] for i in cut]).to(self.device) for cut in cuts)
        rows = self._rows("text", lambda ids: self.parts.read(ids).raw, pieces)
        if order:
            rows = rows[torch.tensor(order, device=rows.device).argsort()]
        return F.normalize(rows, dim=-1) if normalize else rows

    def image_features(self, images: Tensor) -> Tensor:
        """Images as in `encode_image` → [B, W], the trunk's pooled features before its projection, for linear probes.

        A fused model adds its student's class token: [B, W + C].
        """

        def features(pixels: Tensor) -> Tensor:
            pooled = pooled_features(self.parts.trunk.towers.visual, pixels)
            student = self.parts.image_student
            if self.parts.image_fusion is None or student is None:
                return pooled
            return torch.cat([pooled, student(pixels).summary], -1)

        return self._rows("features", features, self._pixels(images))

    def look(self, images: Tensor) -> ImageReading:
        """Embeddings, patch tokens, gate values and angles of images as in `encode_image`."""
        return _joined(self._each(functools.partial(image_reading, self.parts), self._pixels(images)))

    def read(self, texts: Sequence[str] | Tensor) -> TextReading:
        """Embeddings, tokens, gate values and angles of captions, or of their ids [B, L]."""
        if not isinstance(texts, Tensor):
            check_captions(texts)
            texts = self.tokenizer(texts)
        return _joined(self._each(functools.partial(text_reading, self.parts), self._ids(texts)))

    def _pixels(self, images: Tensor) -> Iterator[Tensor]:
        """Normalised pieces of a batch on the device."""
        check_images(images, self.image_spec)
        at_once = max(1, PIXELS_AT_ONCE // self.image_spec.size**2)
        for start in range(0, len(images), at_once):
            piece = images[start : start + at_once].to(self.device)
            yield self.parts.normalised(piece) if piece.dtype == torch.uint8 else piece.float()

    def _ids(self, ids: Tensor) -> Iterator[Tensor]:
        check_ids(ids, self.tokenizer)
        for start in range(0, len(ids), TEXTS_AT_ONCE):
            yield ids[start : start + TEXTS_AT_ONCE].to(self.device, torch.int64)

    def _rows(self, kind: str, step: Callable[[Tensor], Tensor], pieces: Iterable[Tensor]) -> Tensor:
        found = [rows.float() for rows in self._each(step, pieces)]
        rows = torch.cat(found) if found else torch.empty(0, self.dim, device=self.device)
        refuse_non_finite(rows, kind)
        return rows

    def _each(self, step: Callable[[Tensor], Found], pieces: Iterable[Tensor]) -> list[Found]:
        """`step` of every piece. What is joined from them outside of inference mode is an ordinary tensor again."""
        with torch.inference_mode(), self.placement.autocast():
            return [step(piece) for piece in pieces]


def _joined(readings: list[Reading]) -> Reading:
    """Readings of the pieces of a batch as one."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(readings[0]):
        parts = [getattr(reading, field.name) for reading in readings]
        values[field.name] = None if parts[0] is None else torch.cat(parts)
    return type(readings[0])(**values)


def _placement(device: str, precision: str) -> Placement:
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"precision '{precision}': there are auto, fp32 and bf16")
    return choose(str(device), precision)
