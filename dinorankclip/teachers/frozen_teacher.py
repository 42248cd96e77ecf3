"""Defines a teacher: a frozen network in eval mode with its own preprocessing, apart from the model that learns.

A teacher is a plain object, not an `nn.Module`. Assigned to a model it is no submodule, so it enters no checkpoint, no
parameter group and no `model.train()`. Its outputs are ordinary tensors without history.

Shapes: B images or captions, S side of the input, L = h·w dense tokens of the grid (h, w), C width of a token,
C' width of the summary, T text tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.data.damage import Damage, refuse_transient
from dinorankclip.data.decode import decode, read_header
from dinorankclip.types import Source, UserError

Interpolation = Literal["bilinear", "bicubic"]
# Captions → ids [B, T], mask [B, T], word ids [B, T].
CaptionReader = Callable[[Sequence[str]], tuple[Tensor, Tensor, Tensor]]

USUAL_SIZE = 224  # 14×14 tokens for patches of 16 pixels, as in the paper
THREADS = 2  # threads that read and resize images
LONG_CAPTION = 1000  # words, more than any text tower reads


@dataclass(frozen=True)
class TeacherCard:
    """Name and licence of a teacher. Tables must print `note` beside its results."""

    name: str
    licence: str
    note: str = ""


@dataclass(frozen=True)
class Preprocessing:
    """Size, mean, std and interpolation of a teacher's images. `mean` and `std` are for pixels in [0, 1]."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bicubic"

    def resize(self, image: Tensor) -> Tensor:
        """Squeeze a whole image, uint8 [3, H, W] → uint8 [3, S, S]. Nothing is cut off: crops come later (D19)."""
        square = (self.size, self.size)
        if image.shape[1:] == square:
            return image
        return F.interpolate(image[None], square, mode=self.interpolation, antialias=True, align_corners=False)[0]

    def normalise(self, images: Tensor) -> Tensor:
        """Convert uint8 [B, 3, S, S] to float: (p/255 - mean)/std, as one multiply and one add."""
        scale = images.new_tensor([1 / (255 * std) for std in self.std], dtype=torch.float32)
        shift = images.new_tensor([-mean / std for mean, std in zip(self.mean, self.std)], dtype=torch.float32)
        return torch.addcmul(shift.view(3, 1, 1), images.float(), scale.view(3, 1, 1))


@dataclass(frozen=True)
class TeacherFeatures:
    """Dense tokens of whole images, row by row of the grid, and a summary of each image. All fp32."""

    tokens: Tensor  # [B, L, C]
    summary: Tensor  # [B, C']


@dataclass(frozen=True)
class TextFeatures:
    """Token features of captions. `word_ids` is the index in `caption_words` of each token's word.

    It is -1 for padding, for start and end tokens, and for pieces of a word that was cut off.
    """

    tokens: Tensor  # fp32 [B, T, C]
    mask: Tensor  # bool [B, T], False: padding
    word_ids: Tensor  # int64 [B, T]
    summary: Tensor  # fp32 [B, C']


class _Frozen:
    """Holds a network that can no longer change."""

    def __init__(self, card: TeacherCard, network: nn.Module, weights_hash: str, source: Path | None = None) -> None:
        self.card = card
        self.weights_hash = weights_hash
        self.source = source  # the file or folder of the weights; None if there is none
        self._network = network.float().eval().requires_grad_(False)
        self._device = torch.device("cpu")

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def licence(self) -> str:
        return self.card.licence

    @property
    def network(self) -> nn.Module:
        """Return the frozen network, for a model that has this teacher as its tower."""
        return self._network

    def to(self, device: torch.device | str) -> Self:
        """Move to a device and return the teacher itself."""
        self._device = torch.device(device)
        self._network.to(self._device)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.weights_hash[:12]})"


class Teacher(_Frozen):
    """An image teacher. Its network maps normalised images [B, 3, S, S] to (tokens [B, L, C], summary [B, C'])."""

    def __init__(
        self,
        card: TeacherCard,
        network: nn.Module,
        weights_hash: str,
        preprocessing: Preprocessing,
        grid: tuple[int, int],
        source: Path | None = None,
    ) -> None:
        super().__init__(card, network, weights_hash, source)
        self.preprocessing = preprocessing
        self.grid = grid

    @property
    def input_size(self) -> int:
        return self.preprocessing.size

    def dense(self, images: Tensor) -> TeacherFeatures:
        """Compute the features of uint8 images [B, 3, S, S], S = `input_size` (see `preprocessing.resize`).

        The input is pixels because floats normalised for another network would give wrong features silently.
        """
        size = self.input_size
        if images.dtype != torch.uint8 or images.shape[1:] != (3, size, size):
            raise ValueError(
                f"{self.name} wants uint8 images [B, 3, {size}, {size}], not {images.dtype} {list(images.shape)}"
            )
        with torch.inference_mode():
            tokens, summary = self._network(self.preprocessing.normalise(images.to(self._device)))
        h, w = self.grid
        if tokens.shape[1] != h * w:
            raise ValueError(f"{self.name} gave {tokens.shape[1]} tokens for a grid of {h}×{w}")
        # Clones made outside inference mode are ordinary tensors, which a loss may keep for its backward pass.
        return TeacherFeatures(tokens.clone().float(), summary.clone().float())


class TextTeacher(_Frozen):
    """A text teacher. Its network maps (ids [B, T], mask [B, T]) to (tokens [B, T, C], summary [B, C'])."""

    def __init__(
        self,
        card: TeacherCard,
        network: nn.Module,
        weights_hash: str,
        reader: CaptionReader,
        source: Path | None = None,
    ) -> None:
        super().__init__(card, network, weights_hash, source)
        self._reader = reader

    @property
    def vocabulary(self) -> int:
        """Return the number of different ids: the rows of the network's largest table of embeddings."""
        tables = (module for module in self._network.modules() if isinstance(module, nn.Embedding))
        return max(table.num_embeddings for table in tables)

    @property
    def most_tokens(self) -> int:
        """Return the length to which longer captions are cut."""
        return self.ids(["a " * LONG_CAPTION]).shape[1]

    def ids(self, captions: Sequence[str]) -> Tensor:
        """Return the ids of captions, int64 [B, T], padded with 0 after the end token."""
        return self._reader(captions)[0]

    def tokens(self, captions: Sequence[str]) -> TextFeatures:
        ids, mask, word_ids = (tensor.to(self._device) for tensor in self._reader(captions))
        with torch.inference_mode():
            tokens, summary = self._network(ids, mask)
        return TextFeatures(tokens.clone().float(), mask, word_ids, summary.clone().float())


def grid_of(size: int, patch: int, source: str) -> tuple[int, int]:
    """Return the grid of tokens of an image of `size` pixels, or refuse a size that patches do not fill."""
    if size % patch or size < patch:
        nearest = max(1, round(size / patch)) * patch
        raise UserError(f"{source} cuts images into patches of {patch} pixels; {size} is no multiple, {nearest} is")
    return size // patch, size // patch


def control_card(name: str, argument: str) -> tuple[int, TeacherCard]:
    """Return the seed that the argument of a spec gives, by default 0, and the card of a teacher drawn from it."""
    if argument and not argument.isdecimal():
        raise UserError(f"'{argument}' is no seed of a random teacher: it must be a number")
    seed = int(argument or 0)
    return seed, TeacherCard(f"{name}:{seed}", "none", "random weights: a control")


def whole_images(
    source: Source, indices: Sequence[int] | np.ndarray, preprocessing: Preprocessing, max_pixels: int, ahead: int
) -> Iterator[Tensor | None]:
    """Yield the resized image of each index, uint8 [3, S, S], in order; None for a damaged sample.

    Threads read at most `ahead` images in advance. Decoding and resizing release Python's lock, so both overlap with
    the teacher.
    """

    def load(index: int) -> Tensor | None:
        try:
            raw = source.read(index)
            # Twice the size is enough, as in training.
            least = (2 * preprocessing.size, 2 * preprocessing.size)
            pixels = decode(raw.image, read_header(raw.image, max_pixels), least=least)
        except Damage as damage:
            refuse_transient([(source.key(index), damage.cause)])
            return None
        if not pixels.flags.writeable:  # Pillow returns read-only arrays, about which torch warns
            pixels = pixels.copy()
        return preprocessing.resize(torch.from_numpy(pixels).permute(2, 0, 1)).contiguous()

    with ThreadPoolExecutor(THREADS) as pool:
        pending: deque = deque()
        for index in indices:
            pending.append(pool.submit(load, int(index)))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
