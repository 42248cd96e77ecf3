"""One raw sample and its random draws → what a batch holds of it. Shared by both loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dinorankclip.config import ReadingSettings
from dinorankclip.data import draws as streams
from dinorankclip.data.images import decode, read_header
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.data.views import enough_pixels, random_view, render, snap
from dinorankclip.types import Batch, Companions, ImageSpec, RawSample, UserError, View


@dataclass(frozen=True)
class Sample:
    key: str
    image: Tensor  # uint8 [3, S, S], or the row that is known of it, float32 [D]
    view: View
    caption: str
    second_caption: str | None = None


@dataclass(frozen=True)
class Recipe:
    """How samples and batches are made; the same in every worker."""

    image: ImageSpec
    tokenizer: Tokenizer
    reading: ReadingSettings
    second_caption: bool = False
    companions: Companions | None = None

    def sample(self, raw: RawSample, view_draws: np.random.Generator, caption_draws: np.random.Generator) -> Sample:
        """Decode, crop, flip and resize the image, and pick a caption; `Damage` if the image cannot be used."""
        header = read_header(raw.image, self.reading.max_pixels)
        view = random_view(view_draws, header.height, header.width, self.reading.crop_scale, self.reading.flip)
        pixels = decode(raw.image, header, least=enough_pixels(view, self.image.size))
        view = snap(view, *pixels.shape[:2])
        image = render(pixels, view, self.image.size)
        return self.captioned(raw.key, image, view, raw.captions, caption_draws)

    def captioned(
        self, key: str, image: Tensor, view: View, captions: Sequence[str], draws: np.random.Generator
    ) -> Sample:
        """An image that is ready, with one of its captions (and another one, if a second is wanted)."""
        caption = captions[streams.below(draws, len(captions))]
        second = _another(key, captions, caption, draws) if self.second_caption else None
        return Sample(key, image, view, caption, second)

    def batch(self, samples: Sequence[Sample], damage: list[tuple[str, str]]) -> Batch:
        keys = [sample.key for sample in samples]
        views = [sample.view for sample in samples]
        captions = [sample.caption for sample in samples]
        seconds = [sample.second_caption for sample in samples if sample.second_caption is not None]
        return Batch(
            images=torch.stack([sample.image for sample in samples]),
            texts=self.tokenizer(captions),
            keys=keys,
            views=views,
            captions=captions,
            second_texts=self.tokenizer(seconds) if self.second_caption else None,
            companions=self.companions(keys, views, captions) if self.companions else {},
            damage=damage,
        )


def _another(key: str, captions: Sequence[str], caption: str, draws: np.random.Generator) -> str:
    others = [other for other in captions if other != caption]
    if not others:
        raise UserError(
            f"image {key} has only one caption, and ALIP compares two captions of each image. Use data with "
            "several captions an image (a generated second caption will do), or another --method."
        )
    return others[streams.below(draws, len(others))]
