"""Classification sets in the clip-benchmark layout: images with a class index, class names, prompt templates.

    SET/classnames.txt                          one name a line; line n is class n, counted from 0
    SET/zeroshot_classification_templates.txt   one template a line, {c} stands for the class name
    SET/SPLIT/<n>.tar                           KEY.jpg with KEY.cls, the class index in digits
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dinorankclip.data import kept
from dinorankclip.data.contents import content_digest
from dinorankclip.data.parts import name_hash
from dinorankclip.data.shards import ShardSource
from dinorankclip.digests import digest
from dinorankclip.types import RawSample, UserError

CLASS_NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
DEFAULT_TEMPLATE = "a photo of a {c}."
VAL_FRACTION = 0.2  # of the training images, class by class, for sets without a validation part
UNKNOWN = -1  # the label of a sample that cannot be read


class LabelledSource(ShardSource):
    """Images of tar shards with their class indices, `labels` int64 [N]; samples have no captions."""

    beside = frozenset(("cls",))

    def __init__(self, shards: Sequence[Path], classes: int) -> None:
        super().__init__(shards)
        self.fingerprint = content_digest(self.shards)  # a class index that was corrected has the size of the old one
        self.labels = self._labels()
        outside = np.flatnonzero(self.labels >= classes)
        if len(outside):
            first = int(outside[0])
            raise UserError(
                f"{len(outside)} class indices are out of range, first {self.key(first)}.cls = {self.labels[first]} in "
                f"{self.shards[0].parent}: {CLASS_NAMES} names {classes} classes, 0 to {classes - 1}"
            )

    def captions(self, index: int) -> tuple[str, ...]:
        return ()

    def read(self, index: int) -> RawSample:
        return RawSample(self.key(index), self.image(index), ())

    def _check_texts(self) -> None:
        if not (self._image_at >= 0).any():
            raise UserError(f"no images in {self.shards[0].parent}: {len(self.shards)} shards, empty or damaged")
        without = np.flatnonzero((self._image_at >= 0) & (self._caption_at < 0))
        if len(without):
            raise UserError(
                f"{len(without)} of {len(self)} images in {self.shards[0].parent} have no class index: "
                f"{self.key(int(without[0]))}.cls is missing"
            )

    def _labels(self) -> np.ndarray:
        """Read once and kept: a million of them are a million small reads."""
        name = digest("labels", 1, self.fingerprint)
        known = kept.load(name)
        if known is None:
            known = {"labels": np.array([self._label(index) for index in range(len(self))], dtype=np.int64)}
            kept.save(name, known)
        return known["labels"]

    def _label(self, index: int) -> int:
        if self._cause[index] >= 0:
            return UNKNOWN
        text = self.text(index).decode("ascii", "replace").strip()
        if not text.isdigit():
            raise UserError(f"{self.key(index)}.cls in {self.shards[0].parent} holds {text[:40]!r}, not a class index")
        return int(text)


def read_class_names(folder: Path) -> tuple[str, ...]:
    """The names of `classnames.txt`, in the order of the class indices."""
    names = _lines(folder / CLASS_NAMES)
    if names is None:
        raise UserError(
            f"{folder} has no {CLASS_NAMES}: one class name a line, in the order of the class indices. (A set of "
            "captioned images says 'retrieval' in dataset_type.txt.)"
        )
    while names and not names[-1]:
        names.pop()
    blank = [number for number, name in enumerate(names) if not name]
    if blank or not names:
        what = f"class {blank[0]} (line {blank[0] + 1}) has no name" if blank else "it is empty"
        raise UserError(f"{folder / CLASS_NAMES}: {what}")
    return tuple(names)


def read_templates(folder: Path) -> tuple[tuple[str, ...], str]:
    """Prompt templates of a set, and a note if it has none and the default had to do."""
    templates = [line for line in _lines(folder / TEMPLATES) or [] if line]
    if not templates:
        return (DEFAULT_TEMPLATE,), f"no {TEMPLATES}: prompts are '{DEFAULT_TEMPLATE}'"
    without = [template for template in templates if "{c}" not in template]
    if without:
        raise UserError(f"{folder / TEMPLATES}: '{without[0]}' has no {{c}}, the place of the class name")
    return tuple(templates), ""


def _lines(path: Path) -> list[str] | None:
    try:
        return [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8; convert it") from None


def carve_validation(
    keys: Sequence[str], labels: np.ndarray, fraction: float = VAL_FRACTION
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (train, val) of a training part: of every class the share with the smallest hashes of their keys.

    It depends on keys and labels alone. A class of one image keeps it for training; any other class gives at least
    one image and keeps at least one.
    """
    order = sorted(range(len(keys)), key=lambda at: name_hash(keys[at]))
    labels = np.asarray(labels)
    wanted = {
        int(label): min(count - 1, max(1, round(fraction * count)))
        for label, count in zip(*np.unique(labels, return_counts=True))
    }
    val = []
    for at in order:
        label = int(labels[at])
        if wanted[label] > 0:
            wanted[label] -= 1
            val.append(at)
    chosen = np.sort(np.array(val, dtype=np.int64))
    return np.setdiff1d(np.arange(len(keys)), chosen), chosen
