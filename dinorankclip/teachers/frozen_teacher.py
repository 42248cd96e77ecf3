"""What a teacher is: frozen, in eval mode, with its own preprocessing, and foreign to the model that learns from it.

A teacher is a plain object, not an `nn.Module`: assigned to a model it is no submodule, so it is in no checkpoint, no
parameter group and no `model.train()`. Its outputs are ordinary tensors without history.

Shapes: B images or captions, S side of the input, L = h·w dense tokens of the grid (h, w), C width of a token,
C' width of the summary, T text tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.data.damage import Damage, refuse_passing
from dinorankclip.data.decode import decode, read_header
from dinorankclip.types import Source

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class TeacherCard:
    """Who a teacher is. `note` is what a table must say beside its results."""

    name: str
    licence: str
    note: str = ""


@dataclass(frozen=True)
class Preprocessing:
    """How a teacher wants its images. `mean` and `std` are for pixels in [0, 1]."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bicubic"

    def resize(self, image: Tensor) -> Tensor:
        """The whole image, uint8 [3, H, W] → uint8 [3, S, S]: its sides are squeezed, nothing is cut off (D19)."""
        if image.shape[1:] == (self.size, self.size):
            return image
        return F.interpolate(
            image[None], (self.size, self.size), mode=self.interpolation, antialias=True, align_corners=False
        )[0]

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 [B, 3, S, S] → float: (p/255 - mean)/std, as one multiply and one add."""
        scale = images.new_tensor([1 / (255 * std) for std in self.std], dtype=torch.float32)
        shift = images.new_tensor([-mean / std for mean, std in zip(self.mean, self.std)], dtype=torch.float32)
        return torch.addcmul(shift.view(3, 1, 1), images.float(), scale.view(3, 1, 1))


@dataclass(frozen=True)
class TeacherFeatures:
    """Dense tokens of whole images, row by row of the grid, and one summary an image. All fp32."""

    tokens: Tensor  # [B, L, C]
    grid: tuple[int, int]
    summary: Tensor  # [B, C']


@dataclass(frozen=True)
class TextFeatures:
    """Token features of captions. `word_ids` says which word of `caption_words` a token belongs to.

    It is -1 for padding, for start and end tokens, and for pieces of a word that was cut off.
    """

    tokens: Tensor  # fp32 [B, T, C]
    mask: Tensor  # bool [B, T], False: padding
    word_ids: Tensor  # int64 [B, T]
    summary: Tensor  # fp32 [B, C']


class _Frozen:
    """A network that can no longer change."""

    def __init__(self, card: TeacherCard, network: nn.Module, weights_hash: str) -> None:
        self.card = card
        self.weights_hash = weights_hash
        self._network = network.float().eval().requires_grad_(False)
        self._device = torch.device("cpu")

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def licence(self) -> str:
        return self.card.licence

    def to(self, device: torch.device | str) -> Self:
        """Move to a device; returns the teacher itself."""
        self._device = torch.device(device)
        self._network.to(self._device)
        return self

    def parameters(self) -> int:
        """How many numbers the network holds."""
        return sum(tensor.numel() for tensor in self._network.state_dict().values())

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
    ) -> None:
        super().__init__(card, network, weights_hash)
        self.preprocessing = preprocessing
        self.grid = grid

    @property
    def input_size(self) -> int:
        return self.preprocessing.size

    def dense(self, images: Tensor) -> TeacherFeatures:
        """uint8 images [B, 3, S, S], S = `input_size` (see `preprocessing.resize`) → features.

        Pixels, not normalised floats: whoever normalises for another network would get wrong features silently.
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
        return TeacherFeatures(tokens.clone().float(), self.grid, summary.clone().float())


# Captions → ids [B, T], mask [B, T], word ids [B, T]
Reader = Callable[[Sequence[str]], tuple[Tensor, Tensor, Tensor]]


class TextTeacher(_Frozen):
    """A text teacher. Its network maps (ids [B, T], mask [B, T]) to (tokens [B, T, C], summary [B, C'])."""

    def __init__(self, card: TeacherCard, network: nn.Module, weights_hash: str, reader: Reader) -> None:
        super().__init__(card, network, weights_hash)
        self._reader = reader

    def tokens(self, captions: Sequence[str]) -> TextFeatures:
        ids, mask, word_ids = (each.to(self._device) for each in self._reader(captions))
        with torch.inference_mode():
            tokens, summary = self._network(ids, mask)
        return TextFeatures(tokens.clone().float(), mask, word_ids, summary.clone().float())


# -------- whole_images
# Images as a teacher sees them: whole, squeezed to its square (D19), read ahead by threads.
#
# Decoding and resizing run outside Python's lock, so they overlap with the teacher.

THREADS = 2


def whole_images(
    source: Source, indices: Sequence[int] | np.ndarray, preprocessing: Preprocessing, max_pixels: int, ahead: int
) -> Iterator[Tensor | None]:
    """uint8 [3, S, S] of each index, in order, at most `ahead` of them waiting; None for a damaged sample."""

    def one(index: int) -> Tensor | None:
        try:
            raw = source.read(index)
            # Twice the size is enough, as in training (`data.views.enough_pixels`).
            least = (2 * preprocessing.size, 2 * preprocessing.size)
            pixels = decode(raw.image, read_header(raw.image, max_pixels), least=least)
        except Damage as damage:
            refuse_passing([(source.key(index), damage.cause)])
            return None
        if not pixels.flags.writeable:  # torch warns about arrays it might write to; Pillow hands out read-only ones
            pixels = pixels.copy()
        return preprocessing.resize(torch.from_numpy(pixels).permute(2, 0, 1)).contiguous()

    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque = deque()
        for index in indices:
            waiting.append(pool.submit(one, int(index)))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
