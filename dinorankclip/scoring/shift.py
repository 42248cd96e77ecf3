"""Natural distribution shift: zero-shot accuracy on renditions of a base set, their mean, and the drop from the base.

Each rendition is scored with its own classes and prompts. Where a rendition has only some of the base's classes
(ImageNet-R has 200 of ImageNet's 1000), the base it is compared with is the base restricted to these classes, images
and candidates alike; otherwise the drop would mix an easier task with a harder picture.

The drop is of two means over different images; see `scores.combined_score` for what its items are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dinorankclip.scoring.scores import Score, combined_score, mean_score
from dinorankclip.scoring.seen import SeenSet
from dinorankclip.scoring.zero_shot import hits, set_classes, standing

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
