"""Holds pairs in memory for benches that make many runs on one data set: pixels, token ids, held-out parts.

A run then spends its core-seconds on crops and steps, not on JPEG files and byte pairs. Batches are those of the
package's own loader, number by number: seeds, views, captions and order are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.samples import Recipe, Sample, iterate_pairs, random_view, render
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.evaluate.embeddings import embed_texts
from dinorankclip.evaluate.retrieval import both_ways, retrieval_scores, right_items
from dinorankclip.types import Encoder, ImageSpec, RawSample, Source

IMAGES_AT_ONCE = 256
SMALL_GALLERY = 100


class DecodedSource(Source):
    """Presents a source whose images are decoded once; `pixels` maps keys to uint8 [H, W, 3]."""

    def __init__(self, source: Source) -> None:
        self.fingerprint = source.fingerprint
        self._pairs: list[RawSample] = []
        self.pixels: dict[str, np.ndarray] = {}
        for index in range(len(source)):
            raw = source.read(index)
            self.pixels[raw.key] = decode(raw.image, read_header(raw.image))
            self._pairs.append(replace(raw, image=b""))
        self._stamps, self._sizes = source.stamps(), source.sizes()

    def __len__(self) -> int:
        return len(self._pairs)

    def key(self, index: int) -> str:
        return self._pairs[index].key

    def read(self, index: int) -> RawSample:
        return self._pairs[index]

    def image(self, index: int) -> bytes:
        raise NotImplementedError("images are held as pixels")

    def captions(self, index: int) -> tuple[str, ...]:
        return self._pairs[index].captions

    def stamps(self) -> np.ndarray:
        return self._stamps

    def sizes(self) -> np.ndarray:
        return self._sizes


@dataclass(frozen=True)
class DecodedRecipe(Recipe):
    """Makes the samples that `Recipe` makes, from pixels in memory."""

    pixels: dict[str, np.ndarray] | None = None

    def sample(self, raw: RawSample, view_draws: np.random.Generator, caption_draws: np.random.Generator) -> Sample:
        assert self.pixels is not None
        pixels = self.pixels[raw.key]
        view = random_view(view_draws, *pixels.shape[:2], self.reading.crop_scale, self.reading.flip)
        shown = render(pixels, view, self.image.size)
        return self.captioned(raw.key, shown, view, raw.captions, caption_draws, raw.second_captions)


def read_from_memory(loader: PairLoader, source: DecodedSource, tokenizer: Tokenizer) -> None:
    """Make a loader take pixels and token ids from memory."""
    steps = loader._steps
    own = {field.name: getattr(steps.recipe, field.name) for field in fields(steps.recipe)}
    if tokenizer.spec == own["tokenizer"].spec:
        own["tokenizer"] = tokenizer.load()
    loader._steps = replace(steps, source=source, recipe=DecodedRecipe(**own, pixels=source.pixels))


@dataclass
class HeldOut:
    """Holds a held-out part as a model sees it: images uint8 [n, 3, S, S] and the captions of each image."""

    images: Tensor
    captions: list[tuple[str, ...]]
    tokenizer: Tokenizer

    @classmethod
    def of(cls, source: Source, image: ImageSpec, tokenizer: Tokenizer, most: int | None = None) -> HeldOut:
        shown, captions = [], []
        for _, images, texts in iterate_pairs(source, image, threads=1):
            shown.append(images)
            captions += texts
        return cls(torch.cat(shown)[:most], captions[:most], tokenizer)

    @torch.inference_mode()
    def embed(self, model: Encoder) -> tuple[Tensor, Tensor]:
        """Return unit-norm rows of images [n, D] and of all captions in image order [T, D]."""
        images = torch.cat([model.encode_image(piece).float() for piece in self.images.split(IMAGES_AT_ONCE)])
        texts = [text for group in self.captions for text in group]
        return images, embed_texts(model.encode_text, self.tokenizer, texts)

    def embed_captions(self, model: Encoder, captions: Sequence[str]) -> Tensor:
        with torch.inference_mode():
            return embed_texts(model.encode_text, self.tokenizer, captions)


def mean_recall(model: Encoder, part: HeldOut) -> float:
    """Return the mean R@1 of both directions."""
    images, texts = part.embed(model)
    *_, last = retrieval_scores(images, texts, part.captions)
    assert last.name == "mean R@1"
    return last.value


def scores_of(images: Tensor, texts: Tensor, captions: Sequence[Sequence[str]]) -> Iterator[tuple[str, float]]:
    """Yield R@1/5/10 both ways, their mean R@1, the mean R@1 in galleries of 100 images, and the mean log-rank."""
    for score in retrieval_scores(images, texts, captions):
        yield score.name, score.value
    yield f"mean R@1 of {SMALL_GALLERY}", small_gallery_recall(images, texts, captions)
    yield "mean log-rank", mean_log_rank(images, texts, captions)


def small_gallery_recall(
    images: Tensor, texts: Tensor, captions: Sequence[Sequence[str]], size: int = SMALL_GALLERY
) -> float:
    """Return the mean R@1 of both directions in galleries of `size` images with all their captions.

    Images are dealt to galleries in a fixed random order; those that fill no gallery are left out.
    """
    ends = np.cumsum([0, *(len(group) for group in captions)])
    order = np.random.default_rng(0).permutation(len(captions))
    size = min(size, len(captions))
    found = []
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        rows = np.concatenate([np.arange(ends[at], ends[at + 1]) for at in chosen])
        *_, last = retrieval_scores(images[chosen], texts[rows], [captions[at] for at in chosen])
        found.append(last.value)
    return float(np.mean(found))


def mean_log_rank(images: Tensor, texts: Tensor, captions: Sequence[Sequence[str]]) -> float:
    """Return ½·(mean ln rank of images' best right caption + mean ln rank of captions' right image); ranks from 1."""
    _, right = right_items(captions)
    ways = both_ways(images, texts, right)
    return float(sum((places.double() + 1).log().mean() for places in ways) / 2)
