"""Defines data types that travel between rooms, and protocols that rooms accept instead of importing each other.

Shapes: B pairs of a batch, L tokens of a caption, D embedding width, S image side in pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from numpy import ndarray
    from torch import Tensor


class UserError(Exception):
    """Reports a mistake that the user can correct. Commands print its text without a traceback; exit status is 2."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, to quote in a `UserError`; its type if the text is empty."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True)
class ImageSpec:
    """Describes the input of an image tower. `mean` and `std` are for pixels in [0, 1].

    `resize` is "shortest" (the short side, then the centre is cut out) or "squash" (both sides, as SigLIP sees images).
    It and `interpolation` ("bicubic" or "bilinear") stay out of the text of a spec, which names stored rows: the
    identity of a model has them.
    """

    size: int
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    resize: str = field(default="shortest", repr=False)
    interpolation: str = field(default="bicubic", repr=False)


@dataclass(frozen=True)
class TextSpec:
    """Describes the input of a text tower: CLIP's BPE ids, at most `context_length` of them."""

    context_length: int = 77


@dataclass(frozen=True)
class View:
    """Locates the part of the whole (upright) image that a sample shows: a box in fractions of its sides, and a flip.

    The box is cut first; `flip` then mirrors it left to right.
    """

    top: float = 0.0
    left: float = 0.0
    height: float = 1.0
    width: float = 1.0
    flip: bool = False


@dataclass(frozen=True)
class RawSample:
    """Holds one stored pair before decoding."""

    key: str
    image: bytes
    captions: tuple[str, ...]
    second_captions: tuple[str, ...] = ()  # of a stream: KEY.second.txt; other sources leave them to a provider


class _Listed(Protocol):
    """Lists items in a fixed order, each with a unique key."""

    fingerprint: str  # changes when the data changes

    def __len__(self) -> int: ...
    def key(self, index: int) -> str: ...
    def stamps(self) -> ndarray: ...  # int64 [n, …]: change with an image whose name alone is in the fingerprint


class ImageSource(_Listed, Protocol):
    """Reads images in any order. `image` raises `data.damage.Damage(cause)` for an unusable image."""

    def image(self, index: int) -> bytes: ...
    def sizes(self) -> ndarray: ...  # int64 [n]: bytes of each image, -1 where there is none


class CaptionSource(_Listed, Protocol):
    """Reads captions in any order, one or more for each item; raises `Damage` as `ImageSource` does."""

    def captions(self, index: int) -> tuple[str, ...]: ...  # reads no image


class Source(ImageSource, CaptionSource, Protocol):
    """Reads pairs in any order. `read` is a pure function of the index, safe in worker processes."""

    def read(self, index: int) -> RawSample:
        """Return image and captions at once."""
        return RawSample(self.key(index), self.image(index), self.captions(index))


@runtime_checkable
class Grouped(Protocol):
    """Groups the items of a source (a product, a patient) that a validation cut must keep together."""

    def group(self, index: int) -> str: ...


@dataclass
class Batch:
    """Holds the share of one process in a step. Images stay uint8 until they are on the device."""

    images: Tensor  # uint8 [B, 3, S, S]; for a frozen image tower its raw embeddings, float32 [B, D]
    texts: Tensor  # int64 [B, L], padded with 0, cut to the longest caption of the batch
    keys: list[str]
    views: list[View]
    captions: list[str]
    second_texts: Tensor | None = None  # second captions, int64 [B, L'] (ALIP)
    teacher_features: dict[str, Tensor] = field(default_factory=dict)  # batch first
    damage: list[tuple[str, str]] = field(default_factory=list)  # (key, cause) of samples that were replaced
    groups: Tensor | None = None  # int64 [B, C]: pairs that share an id are no negatives of each other; < 0: no id

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies while the host goes on. torch's DataLoader
        calls this in a thread. Groups stay: they are compared on the host."""
        second = None if self.second_texts is None else self.second_texts.pin_memory()
        features = {name: tensor.pin_memory() for name, tensor in self.teacher_features.items()}
        images, texts = self.images.pin_memory(), self.texts.pin_memory()
        return replace(self, images=images, texts=texts, second_texts=second, teacher_features=features)


class TeacherFeatureProvider(Protocol):
    """Looks up teacher features of a batch by key and caption, for the views that it shows (the teacher cache)."""

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]: ...


class SecondCaptionProvider(Protocol):
    """Looks up the second captions of an image by its key (`data.second_captions`); () if there are none."""

    identity: str  # changes when the captions change

    def __call__(self, key: str) -> tuple[str, ...]: ...


class ImageRows(Protocol):
    """Looks up the stored row of an image by its index: float32 [D]. Raises `Damage` as reading the image would."""

    def __call__(self, index: int) -> Tensor: ...


@dataclass
class Embeddings:
    """Holds the outputs of a model for a batch, before normalisation. Every entry is batch first.

    `image` and `text` are always there, except when only students learn. Other outputs (student tokens, second
    captions, …) have their own names, so that gradient caching treats all entries alike.
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
    """Holds a loss as the sum of its named, weighted terms; the numbers in `report` are logged, not minimised."""

    total: Tensor
    terms: dict[str, Tensor]
    report: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Holds the position in a run. Schedules depend on nothing else, so a resumed run follows the same curve."""

    step: int  # steps done
    total_steps: int
    epochs: float

    @property
    def epoch(self) -> float:
        """Return the number of epochs done, fractional."""
        return self.epochs * self.step / max(1, self.total_steps)


@dataclass(frozen=True)
class Placement:
    """Holds the device and precision of a process, with the reason in words, as `device.choose` chose them."""

    device: torch.device
    precision: str  # "fp32" or "bf16"
    reason: str

    def autocast(self) -> torch.autocast:
        """Return the mixed-precision context of the encoders; parameters and losses stay fp32."""
        import torch

        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


class Encoder(Protocol):
    """Defines the part of a model that evaluation uses: uint8 images and token ids in, unit-norm rows out."""

    def encode_image(self, images: Tensor) -> Tensor: ...
    def encode_text(self, texts: Tensor) -> Tensor: ...


class Evaluator(Protocol):
    """Computes scores during training. The loop receives evaluators and never imports scoring."""

    name: str

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]: ...


@dataclass(frozen=True)
class Finding:
    """Holds a result of `doctor` and the advice that follows. `level` is "fine", "note" or "problem"."""

    level: str
    what: str
    advice: str = ""
