"""Scores cheap enough to take during training."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dinorankclip.data.evaluation import iterate_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.scoring.retrieval import recalls, right_pairs
from dinorankclip.types import Encoder, ImageSpec, Source

TEXTS_AT_ONCE = 512


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
