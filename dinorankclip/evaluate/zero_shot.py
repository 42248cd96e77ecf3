"""Zero-shot classification: each class is the mean of its prompts, an image belongs to the nearest class.

Protocol: embeddings of all prompts of a class (one a template) are normalised, averaged, normalised again. T@k counts
an image as right when its class is among the k nearest. Equal similarities cannot favour a model: where the right
class ties with others, the share of their orders that put it among the first k counts, so a collapsed model scores
exactly k / K.

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

from dinorankclip.evaluate.scores import Score, SeenSet, combined_score, mean_score

KS = (1, 3, 5)
SAME = 1e-6  # cosines closer than this are equal: fp32 tells them apart by rounding alone
_AT_ONCE = 4096  # images


def prompts(class_names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """All prompts, class by class: K·P texts."""
    return [template.replace("{c}", name) for name in class_names for template in templates]


def class_embeddings(prompt_rows: Tensor, classes: int) -> Tensor:
    """Rows of `prompts` [K·P, D] → [K, D], unit-norm."""
    rows = F.normalize(prompt_rows, dim=-1).reshape(classes, -1, prompt_rows.shape[1])
    return F.normalize(rows.mean(1), dim=-1)


def standing(images: Tensor, classes: Tensor, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each image: how many classes are nearer than its own, how many as near, its own included. [N] both."""
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
    """[N]: 1 if the right class is among the first k, 0 if not, and in between where it depends on breaking a tie."""
    return np.clip((k - above) / equal, 0, 1)


def predictions(images: Tensor, classes: Tensor) -> np.ndarray:
    """The nearest class of each image, int64 [N]; of equally near ones the first."""
    parts = [(images[at : at + _AT_ONCE] @ classes.T).argmax(1) for at in range(0, len(images), _AT_ONCE)]
    return torch.cat(parts).numpy()


def per_class_weights(labels: np.ndarray) -> np.ndarray:
    """[N]: weights under which every class that occurs counts alike."""
    return 1.0 / np.bincount(labels)[labels]


class ZeroShotScorer:
    """T@1, T@3, T@5 (as far as there are more classes than that) and mean per class recall."""

    name = "zero-shot"
    version = 1

    def applies(self, seen: SeenSet) -> bool:
        return seen.kind == "classification"

    def __call__(self, seen: SeenSet) -> Iterator[Score]:
        classes, labels = set_classes(seen), seen.labels()
        above, equal = standing(seen.images(), classes, labels)
        for k in KS:
            if k < len(classes):
                yield mean_score(f"T@{k}", hits(above, equal, k), chance=k / len(classes))
        first, alike = hits(above, equal, 1), per_class_weights(labels)
        yield mean_score("mean per class", first, weights=alike, chance=1 / len(classes))


def set_classes(seen: SeenSet) -> Tensor:
    """The classes of a classification set as the model embeds them, [K, D]."""
    names = seen.benchmark.class_names
    return class_embeddings(seen.texts(prompts(names, seen.benchmark.templates)), len(names))


# -------- shift
# Natural distribution shift: zero-shot accuracy on renditions of a base set, their mean, and the drop from the base.
#
# Each rendition is scored with its own classes and prompts. Where a rendition has only some of the base's classes
# (ImageNet-R has 200 of ImageNet's 1000), the base it is compared with is the base restricted to these classes, images
# and candidates alike; otherwise the drop would mix an easier task with a harder picture.
#
# The drop is of two means over different images; see `scores.combined_score` for what its items are.

NAME, VERSION = "shift", 2


@dataclass(frozen=True)
class Shift:
    """A base set and renditions of it, by the names of the sets."""

    base: str
    renditions: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"shift from {self.base}"


def shift_scores(shift: Shift, seen: Mapping[str, SeenSet]) -> Iterator[Score]:
    """Scores of the renditions that are there; `seen` must hold the base."""
    base = seen[shift.base]
    found = {name: top1(seen[name]) for name in shift.renditions if name in seen}
    for name, items in found.items():
        yield mean_score(f"T@1 {name}", items)
    bases: dict[tuple[int, ...], np.ndarray] = {}
    pairs = []
    for name, items in found.items():
        classes = shared_classes(base, seen[name])
        if classes not in bases:
            bases[classes] = restricted_top1(base, classes)
        pairs.append((bases[classes], items))
    yield from mean_and_drop(pairs)


def mean_and_drop(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[Score]:
    """`pairs` are items of (base, rendition), in shares; renditions count alike, however many images they have."""
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


def top1(seen: SeenSet) -> np.ndarray:
    """Hits of the first guess, [N]."""
    return hits(*standing(seen.images(), set_classes(seen), seen.labels()), 1)


def shared_classes(base: SeenSet, rendition: SeenSet) -> tuple[int, ...]:
    """The base's class indices of the rendition's classes, matched by name, in the base's order.

    A name that the base has twice (ImageNet's "missile") is taken as often as the rendition has it, the first one
    first: names cannot tell which it is, and both together would give the base a class more.
    """
    wanted = Counter(rendition.benchmark.class_names)
    found = []
    for number, name in enumerate(base.benchmark.class_names):
        if wanted[name]:
            wanted[name] -= 1
            found.append(number)
    return tuple(found)


def restricted_top1(base: SeenSet, classes: Sequence[int]) -> np.ndarray:
    """Hits on the base's images of some classes, with these classes alone to choose from."""
    labels = base.labels()
    place = np.full(len(base.benchmark.class_names), -1)
    place[list(classes)] = np.arange(len(classes))
    chosen = np.flatnonzero(place[labels] >= 0)
    return hits(*standing(base.images()[chosen], set_classes(base)[list(classes)], place[labels[chosen]]), 1)


def unlike(base: SeenSet, rendition: SeenSet) -> str:
    """Why one set is no rendition of the other; empty if it is one."""
    strangers = set(rendition.benchmark.class_names) - set(base.benchmark.class_names)
    if strangers:
        return f"{rendition.name} has classes that {base.name} has not: {', '.join(sorted(strangers)[:3])}"
    return ""


def _joined(sides: Sequence[tuple[np.ndarray, float]]) -> list[tuple[np.ndarray, float]]:
    """A base that stands against several renditions becomes one side, so that its images are drawn once for all."""
    weights: dict[int, float] = {}
    for items, weight in sides:
        weights[id(items)] = weights.get(id(items), 0.0) + weight
    arrays = {id(items): items for items, _ in sides}
    return [(arrays[which], weight) for which, weight in weights.items()]
