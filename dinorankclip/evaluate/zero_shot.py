"""Scores zero-shot classification, and its drop on renditions of a set (natural distribution shift).

Zero-shot: embeddings of all prompts of a class (one a template) are normalised, averaged and normalised again. T@k
counts an image as right when its class is among the k nearest. Ties cannot favour a model: where the right class ties
with others, the share of their orders that put it among the first k counts, so a collapsed model scores exactly k / K.

Shift: each rendition is scored with its own classes and prompts. Where a rendition has only some of the base's classes
(ImageNet-R has 200 of ImageNet's 1000), the base is restricted to these classes, images and candidates alike; otherwise
the drop would mix an easier task with a harder picture. `scores.combined_score` says what the items of a drop are.

Shapes: N images, K classes, P templates, D embedding width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.evaluate.scores import EmbeddedSet, Score, combined_score, mean_score

KS = (1, 3, 5)
SHIFT, SHIFT_VERSION = "shift", 2  # name and version of the scorer
SAME = 1e-6  # cosines closer than this are equal: fp32 tells them apart by rounding alone
_AT_ONCE = 4096  # number of images in a block


def prompts(class_names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return all prompts, class by class: K·P texts."""
    return [template.replace("{c}", name) for name in class_names for template in templates]


def class_embeddings(prompt_rows: Tensor, classes: int) -> Tensor:
    """Average rows of `prompts` [K·P, D] to class embeddings [K, D], unit-norm."""
    rows = F.normalize(prompt_rows, dim=-1).reshape(classes, -1, prompt_rows.shape[1])
    return F.normalize(rows.mean(1), dim=-1)


def standing(images: Tensor, classes: Tensor, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each image, the classes nearer than its own, and the classes as near, its own included: [N] each."""
    own = torch.as_tensor(labels)
    above, equal = torch.empty(len(images), dtype=torch.long), torch.empty(len(images), dtype=torch.long)
    for start in range(0, len(images), _AT_ONCE):
        similarity = images[start : start + _AT_ONCE] @ classes.T
        right = similarity.gather(1, own[start : start + _AT_ONCE, None])
        nearer = (similarity > right + SAME).sum(1)
        above[start : start + _AT_ONCE] = nearer
        equal[start : start + _AT_ONCE] = (similarity >= right - SAME).sum(1) - nearer
    return above.numpy(), equal.numpy()


def hits(above: np.ndarray, equal: np.ndarray, k: int) -> np.ndarray:
    """Return [N]: 1 if the right class is among the first k, 0 if not, a share where that depends on breaking a tie."""
    return np.clip((k - above) / equal, 0, 1)


def predictions(images: Tensor, classes: Tensor) -> np.ndarray:
    """Return the nearest class of each image, int64 [N]; of equally near classes the first."""
    parts = [(images[at : at + _AT_ONCE] @ classes.T).argmax(1) for at in range(0, len(images), _AT_ONCE)]
    return torch.cat(parts).numpy()


def per_class_weights(labels: np.ndarray) -> np.ndarray:
    """Return weights [N] under which every class that occurs counts alike."""
    return 1.0 / np.bincount(labels)[labels]


class ZeroShotScorer:
    """Takes T@k for those k of 1, 3 and 5 that are below the number of classes, and mean per class recall."""

    name = "zero-shot"
    version = 1

    def applies(self, embedded: EmbeddedSet) -> bool:
        return embedded.kind == "classification"

    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]:
        classes, labels = set_classes(embedded), embedded.labels()
        above, equal = standing(embedded.images(), classes, labels)
        for k in KS:
            if k < len(classes):
                yield mean_score(f"T@{k}", hits(above, equal, k), chance=k / len(classes))
        first, alike = hits(above, equal, 1), per_class_weights(labels)
        yield mean_score("mean per class", first, weights=alike, chance=1 / len(classes))


def set_classes(embedded: EmbeddedSet) -> Tensor:
    """Return the embeddings of the classes of a classification set, [K, D]."""
    names = embedded.benchmark.class_names
    return class_embeddings(embedded.texts(prompts(names, embedded.benchmark.templates)), len(names))


@dataclass(frozen=True)
class Shift:
    """Names a base set and its renditions."""

    base: str
    renditions: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"shift from {self.base}"


def shift_scores(shift: Shift, sets: Mapping[str, EmbeddedSet]) -> Iterator[Score]:
    """Yield the scores of the renditions that are in `sets`, which must hold the base."""
    base = sets[shift.base]
    hits_of = {name: top1(sets[name]) for name in shift.renditions if name in sets}
    for name, items in hits_of.items():
        yield mean_score(f"T@1 {name}", items)
    bases: dict[tuple[int, ...], np.ndarray] = {}
    pairs = []
    for name, items in hits_of.items():
        classes = shared_classes(base, sets[name])
        if classes not in bases:
            bases[classes] = restricted_top1(base, classes)
        pairs.append((bases[classes], items))
    yield from mean_and_drop(pairs)


def mean_and_drop(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[Score]:
    """Yield mean and drop from `pairs` of items of (base, rendition). Renditions count alike, whatever their size."""
    share = 1 / len(pairs)
    mean = share * sum(rendition.mean() for _, rendition in pairs)
    base_mean = share * sum(base.mean() for base, _ in pairs)
    yield combined_score("mean T@1", mean, [(rendition, share) for _, rendition in pairs])
    sides = [(base, share) for base, _ in pairs] + [(rendition, -share) for _, rendition in pairs]
    yield combined_score("drop", base_mean - mean, _joined(sides))
    if base_mean > 0:
        # 1 - mean/base to first order: a change of the base counts mean/base² times, one of the mean -1/base times.
        sides = [(base, share * mean / base_mean**2) for base, _ in pairs]
        sides += [(rendition, -share / base_mean) for _, rendition in pairs]
        yield combined_score("relative drop", 1 - mean / base_mean, _joined(sides))


def top1(embedded: EmbeddedSet) -> np.ndarray:
    """Return the hits of the first guess, [N]."""
    return hits(*standing(embedded.images(), set_classes(embedded), embedded.labels()), 1)


def shared_classes(base: EmbeddedSet, rendition: EmbeddedSet) -> tuple[int, ...]:
    """Return the base's indices of the rendition's classes, matched by name, in the base's order.

    A name that the base has twice (ImageNet's "missile") is taken as often as the rendition has it, the first class
    first: names cannot tell the two apart, and both together would give the base a class more.
    """
    unmatched = Counter(rendition.benchmark.class_names)
    classes = []
    for number, name in enumerate(base.benchmark.class_names):
        if unmatched[name]:
            unmatched[name] -= 1
            classes.append(number)
    return tuple(classes)


def restricted_top1(base: EmbeddedSet, classes: Sequence[int]) -> np.ndarray:
    """Return the hits on the base's images of some classes, with these classes alone to choose from."""
    labels = base.labels()
    place = np.full(len(base.benchmark.class_names), -1)
    place[list(classes)] = np.arange(len(classes))
    chosen = np.flatnonzero(place[labels] >= 0)
    return hits(*standing(base.images()[chosen], set_classes(base)[list(classes)], place[labels[chosen]]), 1)


def unlike(base: EmbeddedSet, rendition: EmbeddedSet) -> str:
    """Return why a set is no rendition of the base; empty if it is a rendition."""
    strangers = set(rendition.benchmark.class_names) - set(base.benchmark.class_names)
    if strangers:
        return f"{rendition.name} has classes that {base.name} has not: {', '.join(sorted(strangers)[:3])}"
    return ""


def _joined(sides: Sequence[tuple[np.ndarray, float]]) -> list[tuple[np.ndarray, float]]:
    """Merge sides with the same items: a base is compared with several renditions, and its images are drawn once."""
    weights: dict[int, float] = {}
    for items, weight in sides:
        weights[id(items)] = weights.get(id(items), 0.0) + weight
    arrays = {id(items): items for items, _ in sides}
    return [(arrays[which], weight) for which, weight in weights.items()]
