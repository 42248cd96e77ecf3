"""Scores cheap enough to take during training."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dinorankclip.data.evaluation import iterate_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.dino.cached import TeacherCache
from dinorankclip.equations import resample_grid
from dinorankclip.joint.model import JointModel
from dinorankclip.scoring.fidelity import Fidelity, collect, fidelity
from dinorankclip.scoring.retrieval import recalls, right_pairs
from dinorankclip.types import Encoder, ImageSpec, Source

TEXTS_AT_ONCE = 512
FIDELITY_ITEMS = {"train": 4000, "val": 1000, "test": 5000}  # the paper scores on 5000


class RetrievalEvaluator:
    """Retrieval on held-out pairs; every caption of an image is used."""

    def __init__(self, name: str, source: Source, image: ImageSpec, tokenizer: Tokenizer):
        self.name = name
        self.source, self.image, self.tokenizer = source, image, tokenizer

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        images, captions = [], []
        for _keys, pixels, groups in iterate_pairs(self.source, self.image):
            images.append(encoder.encode_image(pixels).cpu())
            captions.extend(groups)
        texts, right = right_pairs(captions)
        # Captions of like length go together, so that short ones are not padded to the longest.
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        rows: list[torch.Tensor] = [torch.empty(0)] * len(texts)
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = by_length[start : start + TEXTS_AT_ONCE]
            for i, row in zip(some, encoder.encode_text(self.tokenizer([texts[i] for i in some])).cpu()):
                rows[i] = row
        yield from recalls(torch.cat(images), torch.stack(rows), right).items()
        yield "images", float(sum(map(len, images)))


class FidelityEvaluator:
    """How faithful a model's students are to the cached teacher (D17), on held-out pairs.

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
        projectors: dict[str, torch.nn.Module] | None = None,
    ):
        self.cache, self.compare_grid, self.sources = cache, compare_grid, sources
        self.tokenizer, self.projectors = tokenizer, projectors or {}

    def __call__(self, model: JointModel) -> Iterator[tuple[str, float]]:
        branches = ["image"] + (["text"] if model.text_student is not None else [])
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
            sides[part] = collect(model, cache, source, branch, FIDELITY_ITEMS[part], reads, own)
        return fidelity(sides["train"], sides["val"], sides.get("test", sides["val"]))
