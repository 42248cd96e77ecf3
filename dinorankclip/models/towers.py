"""Runs frozen towers: an image teacher and a text teacher whose features are the inputs of an aligned model.

A tower's features of an item are one row, so that they are computed once, stored, and fetched by the item's place:

    row = [summary C' | reduced tokens P·r | number of tokens 1]          without a fusion the row is the summary alone

An image has as many tokens as its row has places, so its rows hold no number.

Tokens are reduced from width C to r by a fixed basis (an uncentred PCA), which is part of the model.

Shapes: B items, S image side, T text tokens, P places for tokens in a row, C width of a token, C' of a summary,
r reduced width of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.models.students import StudentFeatures
from dinorankclip.teachers.frozen_teacher import Teacher, TextTeacher
from dinorankclip.teachers.portable import without_path
from dinorankclip.teachers.registry import open_teacher, open_text_teacher
from dinorankclip.types import ImageSpec, TextSpec, UserError


@dataclass(frozen=True)
class TowerDesign:
    """Names a tower and the weights it had: `spec` as in teachers/registry.py, without the path of a file."""

    spec: str
    weights_hash: str
    size: int | None = None  # image side in pixels; None for captions


@dataclass(frozen=True)
class RowLayout:
    """Describes the rows of a tower: width of the summary, places for tokens, width of a reduced token."""

    summary: int
    places: int = 0
    width: int = 0
    counted: bool = False  # items have fewer tokens than places

    @property
    def dim(self) -> int:
        return self.summary + self.places * self.width + self.counted

    def pack(self, summary: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Join summaries [B, C'], reduced tokens [B, T, r] and their mask [B, T] to rows; tokens beyond P are lost.

        Valid tokens come first in `mask`.
        """
        if not self.places:
            return summary
        if not self.counted:
            return torch.cat([summary, tokens.flatten(1)], 1)
        count = mask.sum(1, keepdim=True).clamp_max(self.places)
        tokens = tokens.masked_fill(~mask[..., None], 0.0)[:, : self.places]
        tokens = F.pad(tokens, (0, 0, 0, self.places - tokens.shape[1]))
        return torch.cat([summary, tokens.flatten(1), count.to(summary.dtype)], 1)

    def unpack(self, rows: Tensor) -> tuple[Tensor, StudentFeatures | None]:
        """Return summaries [B, C'] and, with places, tokens [B, P, r] with their mask and their mean as class token."""
        if rows.shape[1] != self.dim:
            raise ValueError(f"rows of {rows.shape[1]} numbers, not {self.dim}: they belong to other towers")
        if not self.places:
            return rows, None
        summary, flat, count = rows.split([self.summary, self.places * self.width, int(self.counted)], 1)
        tokens = flat.unflatten(1, (self.places, self.width))
        if not self.counted:
            return summary, StudentFeatures(tokens.mean(1), tokens)
        mask = torch.arange(self.places, device=rows.device) < count
        mean = tokens.sum(1) / count.clamp_min(1)
        return summary, StudentFeatures(mean, tokens, mask)


class ImageTower(nn.Module):
    """Maps normalised pixels [B, 3, S, S] to (tokens [B, L, C], summary [B, C']), frozen.

    The summary is the teacher's own with more behind it: the means of earlier stages where the network gives them
    (`with_levels`), else the mean of the tokens. On Flickr8k the earlier stages are worth two points of R@1.
    """

    def __init__(self, spec: str, size: int | None = None) -> None:
        super().__init__()
        teacher = open_teacher(spec, size)
        self.teacher: Teacher = teacher
        self.network = teacher.network
        self._with_levels: Any = getattr(teacher.network, "with_levels", None)
        self.spec = spec
        self.design = TowerDesign(without_path(spec), teacher.weights_hash, teacher.input_size)
        wanted = teacher.preprocessing
        self.image_spec = ImageSpec(wanted.size, wanted.mean, wanted.std)
        self.places = teacher.grid[0] * teacher.grid[1]
        self.grid = teacher.grid
        tokens, own, more = self._parts(torch.zeros(1, 3, wanted.size, wanted.size))
        self.width, self.own_summary = tokens.shape[-1], own.shape[-1]
        self.summary = self.own_summary + more.shape[-1]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        tokens, summary, more = self._parts(pixels)
        return tokens, torch.cat([summary, more], 1)

    @torch.no_grad()
    def _parts(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, the teacher's own summary, and what stands behind it."""
        if self._with_levels is not None:
            return self._with_levels(pixels)
        tokens, summary = self.network(pixels)
        return tokens, summary, tokens.mean(1)


class TextTower(nn.Module):
    """Maps ids [B, T] to (tokens [B, T, C], summary [B, C'], mask [B, T]), frozen.

    As with images, the summary has more behind the teacher's own: earlier layers, or the mean of the tokens.
    """

    def __init__(self, spec: str) -> None:
        super().__init__()
        teacher = open_text_teacher(spec)
        self.teacher: TextTeacher = teacher
        self.network = teacher.network
        self.spec = spec
        self.design = TowerDesign(without_path(spec), teacher.weights_hash)
        self.tokenizer = TowerTokenizer(teacher)
        self._with_levels: Any = getattr(teacher.network, "with_levels", None)
        ids = self.tokenizer(["a"])
        self.width, self.summary = _widths(*self(ids)[:2])
        self.own_summary = self.network(ids, self.tokenizer.mask(ids))[1].shape[1]

    @torch.no_grad()
    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = self.tokenizer.mask(ids)
        if self._with_levels is not None:
            tokens, summary, more = self._with_levels(ids, mask)
        else:
            tokens, summary = self.network(ids, mask)
            more = (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return tokens, torch.cat([summary, more], 1), mask


def _widths(tokens: Tensor, summary: Tensor) -> tuple[int, int]:
    return tokens.shape[-1], summary.shape[-1]


class TowerTokenizer:
    """Turns captions into the ids of a text tower, with the interface of `data.tokens.Tokenizer`."""

    def __init__(self, teacher: TextTeacher) -> None:
        self._teacher = teacher
        self.spec = TextSpec(teacher.most_tokens)
        self.vocabulary = teacher.vocabulary
        self.end_of_text = int(teacher.ids([""])[0, -1])

    def load(self) -> TowerTokenizer:
        return self

    def encode(self, caption: str) -> list[int]:
        return self._teacher.ids([caption])[0].tolist()

    def whole_length(self, caption: str) -> int:
        """Count the ids of the caption, with start and end; a caption that is cut has the context length."""
        return len(self.encode(caption))

    def mask(self, ids: Tensor) -> Tensor:
        """Return bool [B, T]: True up to the last end token of each row."""
        place = torch.arange(ids.shape[1], device=ids.device)
        last = torch.where(ids == self.end_of_text, place, 0).amax(1, keepdim=True)
        return place <= last

    def __call__(self, captions: Sequence[str], *, full: bool = False) -> Tensor:
        """Return int64 [B, T]: T is the longest caption's length, or the whole context length if `full`."""
        ids = self._teacher.ids(captions) if captions else torch.zeros(0, 1, dtype=torch.int64)
        return F.pad(ids, (0, self.spec.context_length - ids.shape[1])) if full else ids


@lru_cache(maxsize=4)
def open_image_tower(spec: str, size: int | None = None) -> ImageTower:
    """Open a tower, or return the one that this process has open: towers never change, and studies open them often."""
    return ImageTower(spec, size)


@lru_cache(maxsize=4)
def open_text_tower(spec: str) -> TextTower:
    return TextTower(spec)


def check_tower(tower: ImageTower | TextTower, expected: TowerDesign) -> None:
    """Refuse a tower whose weights are not those that a model was trained with."""
    found: TowerDesign = tower.design
    if found.weights_hash != expected.weights_hash:
        raise UserError(
            f"the tower {found.spec} has other weights than the tower this model was trained with "
            f"({found.weights_hash[:12]} instead of {expected.weights_hash[:12]}): install the version it had, or use "
            "an export that brings its towers"
        )
