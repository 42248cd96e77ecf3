"""Do the two modalities order items alike? What ranking consistency trains, measured on held-out pairs.

For each pair i, two orders of the other pairs are compared:

    in-modal       by image similarity to image i    against    by text similarity to text i
    cross-modal    of texts by similarity to image i against    of images by similarity to text i

as Kendall's τ-b and Spearman's ρ. Pair i itself is left out of both lists, since it tops them trivially. 0 is no
agreement, 1 the same order.

Shapes: N pairs, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dinorankclip.scoring.rank_correlation import kendall, settled, spearman
from dinorankclip.scoring.ranking_quality import others
from dinorankclip.scoring.scores import Score, mean_score

if TYPE_CHECKING:
    from dinorankclip.scoring.seen import SeenSet

PAIRS = 1000  # the gallery and the queries; more would cost their square
LEAST_PAIRS = 3  # two others make an order


def order_agreement(
    image: Tensor, text: Tensor, most: int = PAIRS, seed: int = 0, chunk: int = 256
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns by name, float64 [N'], and which pairs they belong to [N']: at most `most`, drawn by the seed.

    `image` and `text` [N, D] are unit-norm, row i of both being a pair (one caption an image).
    """
    if len(image) != len(text):
        raise ValueError(f"{len(image)} images and {len(text)} texts: one text for each image")
    drawn = np.sort(np.random.default_rng(seed).permutation(len(image))[:most])
    image, text = image[torch.from_numpy(drawn)], text[torch.from_numpy(drawn)]
    columns: dict[str, list[Tensor]] = {}
    for start in range(0, len(image), chunk):
        place = torch.arange(start, min(start + chunk, len(image)), device=image.device)
        kept = others(place, len(image))
        orders = {
            "in-modal": (image[place] @ image.T, text[place] @ text.T),
            "cross-modal": (image[place] @ text.T, text[place] @ image.T),
        }
        for name, (a, b) in orders.items():
            a, b = settled(a.gather(1, kept)), settled(b.gather(1, kept))
            columns.setdefault(f"{name} tau-b", []).append(kendall(a, b).cpu())
            columns.setdefault(f"{name} rho", []).append(spearman(a, b).cpu())
    return {name: torch.cat(parts).numpy() for name, parts in columns.items()}, drawn


class OrderAgreementScorer:
    """Agreement of orders on caption sets, an image with its first caption."""

    name = "order agreement"
    version = 1

    def applies(self, seen: SeenSet) -> bool:
        return seen.kind == "retrieval" and len(seen.indices()) >= LEAST_PAIRS

    def __call__(self, seen: SeenSet) -> Iterator[Score]:
        rows, owner = seen.caption_rows()
        first = np.unique(owner, return_index=True)[1]
        columns, drawn = order_agreement(seen.images(), rows[torch.from_numpy(first)])
        for name, values in columns.items():
            yield mean_score(name, values, drawn, unit="number", chance=0.0)
