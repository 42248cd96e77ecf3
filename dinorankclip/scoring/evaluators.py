"""Scores cheap enough to take during training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.damage import Damage
from dinorankclip.data.images import MAX_PIXELS
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.dino.cached import TeacherCache
from dinorankclip.equations import resample_grid
from dinorankclip.joint.model import JointModel
from dinorankclip.scoring.embed import EmbeddedImages, embed_images, embed_texts
from dinorankclip.scoring.fidelity import Fidelity, OwnProjector, collect, fidelity
from dinorankclip.scoring.retrieval import retrieval_scores
from dinorankclip.scoring.scores import Score
from dinorankclip.types import Encoder, ImageRows, ImageSpec, Source, UserError

FIDELITY_ITEMS = {"train": 4000, "val": 1000, "test": 5000}  # the paper scores on 5000


class RetrievalEvaluator:
    """Retrieval on held-out pairs; every caption of an image is used. `rows`: what a frozen image side says of them."""

    def __init__(
        self,
        name: str,
        source: Source,
        image: ImageSpec,
        tokenizer: Tokenizer,
        rows: ImageRows | None = None,
        max_pixels: int = MAX_PIXELS,
    ):
        self.name, self.max_pixels = name, max_pixels
        self.source, self.image, self.tokenizer, self.rows = source, image, tokenizer, rows
        self.taken: list[Score] = []  # of the last call, with items

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        if self.rows is not None:
            seen = known_images(self.source, self.rows)
        else:
            encoders = {"embedding": encoder.encode_image}
            seen = embed_images(encoders, self.source, self.image, max_pixels=self.max_pixels)
        captions = [self.source.captions(int(index)) for index in seen.indices]
        rows = embed_texts(encoder.encode_text, self.tokenizer, [text for group in captions for text in group])
        self.taken = list(retrieval_scores(seen.rows["embedding"], rows, captions))
        yield from ((score.name, score.value) for score in self.taken)
        chance = self.taken[-1].chance
        assert chance is not None, "a recall has a chance"
        yield "chance R@1", chance
        yield "images", float(len(seen.indices))


def known_images(source: Source, rows: ImageRows) -> EmbeddedImages:
    """What `embed_images` would find, unit-norm, from rows that are kept."""
    found: list[Tensor] = []
    indices: list[int] = []
    damaged: list[tuple[str, str]] = []
    for index in range(len(source)):
        try:
            row = rows(index)
            source.captions(index)  # a pair is usable if both of its sides are
        except Damage as damage:
            damaged.append((source.key(index), damage.cause))
            continue
        found.append(row)
        indices.append(index)
    if not found:
        raise UserError(f"none of the {len(source)} held-out pairs can be read: {damaged[0][0]} ({damaged[0][1]})")
    return EmbeddedImages({"embedding": F.normalize(torch.stack(found), dim=-1)}, np.array(indices), damaged)


class FidelityEvaluator:
    """How faithful a model's students, or the trunk that was taught, are to the cached teacher (D17) on held-out pairs.

    `sources` are the training part, on which the ridge map is fitted, "val", on which its penalty is chosen, and
    "test"; without a test part the validation part is scored.
    """

    name = "fidelity"

    def __init__(
        self,
        cache: str,
        compare_grid: int | None,
        sources: dict[str, Source],
        tokenizer: Tokenizer,
        projectors: dict[str, OwnProjector] | None = None,
        max_pixels: int = MAX_PIXELS,
    ):
        self.cache, self.compare_grid, self.sources = cache, compare_grid, sources
        self.tokenizer, self.projectors, self.max_pixels = tokenizer, projectors or {}, max_pixels

    def __call__(self, model: JointModel, branches: Iterable[str]) -> Iterator[tuple[str, float]]:
        """`branches`: those that were taught; a fine-tuned model may have a student that the cache knows nothing of."""
        for branch in branches:
            for name, value in self.measure(model, branch).numbers().items():
                yield f"{branch} {name}", value

    def measure(self, model: JointModel, branch: str) -> Fidelity:
        """Everything that is known of one branch, histograms and Gram matrices included."""
        reads = self.tokenizer if branch == "text" else None
        sides = {}
        for part, source in self.sources.items():
            cache = TeacherCache(
                self.cache, part, resample=resample_grid, compare_grid=self.compare_grid, tokenizer=reads
            )
            own = self.projectors.get(branch)
            sides[part] = collect(model, cache, source, branch, FIDELITY_ITEMS[part], reads, own, self.max_pixels)
        return fidelity(sides["train"], sides["val"], sides.get("test", sides["val"]))
