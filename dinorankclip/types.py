"""The nouns that travel between rooms, and the protocols rooms are handed instead of importing each other.

Shapes: B pairs of a batch, L tokens of a caption, D embedding width, S image side in pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor


class UserError(Exception):
    """Something the user can mend. Commands print its text without a traceback and exit with status 2."""


def first_line(error: BaseException) -> str:
    """What another library's error says, for a `UserError` that quotes it; the error's kind if it says nothing."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True)
class ImageSpec:
    """What an image tower wants to see. `mean` and `std` are for pixels in [0, 1]."""

    size: int
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class TextSpec:
    """What a text tower wants to read: CLIP's BPE ids, at most `context_length` of them."""

    context_length: int = 77


@dataclass(frozen=True)
class View:
    """The part of the whole (upright) image that a sample shows: a box in fractions of its sides, and a flip.

    The box is taken first; `flip` then mirrors it left to right.
    """

    top: float = 0.0
    left: float = 0.0
    height: float = 1.0
    width: float = 1.0
    flip: bool = False


@dataclass(frozen=True)
class RawSample:
    """One stored pair before decoding."""

    key: str
    image: bytes
    captions: tuple[str, ...]


class _Listed(Protocol):
    """Items in a fixed order, each with a key of its own."""

    fingerprint: str  # changes when the data does

    def __len__(self) -> int: ...
    def key(self, index: int) -> str: ...
    def stamps(self) -> ndarray: ...  # int64 [n, …]: tell a replaced image where the fingerprint knows its name only


class ImageSource(_Listed, Protocol):
    """Images that can be read in any order. `image` raises `data.damage.Damage(cause)` for one that cannot be used."""

    def image(self, index: int) -> bytes: ...
    def sizes(self) -> ndarray: ...  # int64 [n]: bytes of each image, -1 where there is none


class CaptionSource(_Listed, Protocol):
    """Captions that can be read in any order, some for each item; `Damage` as with images."""

    def captions(self, index: int) -> tuple[str, ...]: ...  # without reading an image


class Source(ImageSource, CaptionSource, Protocol):
    """Pairs that can be read in any order. `read` is a pure function of the index, safe in worker processes."""

    def read(self, index: int) -> RawSample:
        """Image and captions at once."""
        return RawSample(self.key(index), self.image(index), self.captions(index))


@runtime_checkable
class Grouped(Protocol):
    """A source whose items come in groups (a product, a patient) that a validation cut must not tear apart."""

    def group(self, index: int) -> str: ...


@dataclass
class Batch:
    """One process's share of a step. Images stay uint8 until they are on the device."""

    images: Tensor  # uint8 [B, 3, S, S]; of a frozen image side its raw embeddings, float32 [B, D]
    texts: Tensor  # int64 [B, L], padded with 0, cut to the longest caption of the batch
    keys: list[str]
    views: list[View]
    captions: list[str]
    second_texts: Tensor | None = None  # another caption of the same image, int64 [B, L'] (ALIP)
    teacher_features: dict[str, Tensor] = field(default_factory=dict)  # e.g. cached teacher features, batch first
    damage: list[tuple[str, str]] = field(default_factory=list)  # (key, cause) of samples that were replaced


class TeacherFeatureProvider(Protocol):
    """Extra tensors for the samples of a batch, found by key and following the view (the teacher cache)."""

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]: ...


class ImageRows(Protocol):
    """What is known of the images of a source, found by index: float32 [D] each. Raises `Damage` as reading would."""

    def __call__(self, index: int) -> Tensor: ...


@dataclass
class Embeddings:
    """What a model says of a batch, before normalisation: every entry is batch first.

    `image` and `text` are always there, unless students alone learn. Others (student tokens, second captions, …)
    carry their own names, so that gradient caching can treat all of them alike.
    """

    named: dict[str, Tensor]

    @property
    def image(self) -> Tensor:
        return self.named["image"]

    @property
    def text(self) -> Tensor:
        return self.named["text"]


@dataclass
class LossTerms:
    """A loss as the sum of its named, already weighted terms; `report` holds numbers that are only watched."""

    total: Tensor
    terms: dict[str, Tensor]
    report: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Where a run stands. Schedules are functions of this alone, so a resumed run follows the same curve."""

    step: int  # steps done
    total_steps: int
    epochs: float

    @property
    def epoch(self) -> float:
        """Epochs done, fractional."""
        return self.epochs * self.step / max(1, self.total_steps)


class Encoder(Protocol):
    """A model as evaluation sees it: uint8 images and token ids in, unit-norm rows out."""

    def encode_image(self, images: Tensor) -> Tensor: ...
    def encode_text(self, texts: Tensor) -> Tensor: ...


class Evaluator(Protocol):
    """A score taken during training; the loop is handed these and never imports scoring."""

    name: str

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]: ...


@dataclass(frozen=True)
class Finding:
    """What a check-up saw, and what to do about it. `level` is "fine", "note" or "problem"."""

    level: str
    what: str
    advice: str = ""
