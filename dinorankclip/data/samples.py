"""Which part of an image a sample shows (`types.View`), and showing it: crop, flip, resize to S×S.

A view always lies on whole pixels of the decoded image: the box that is recorded is exactly the box that is
shown, so cached teacher features can follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dinorankclip import seeds as streams
from dinorankclip.config import ReadingSettings
from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import Batch, Companions, ImageSpec, RawSample, UserError, View

LONGEST = 16  # times the short side: what of an image is resized to show its centre
ASPECTS = (3 / 4, 4 / 3)  # width to height of a random crop


def random_view(draws: np.random.Generator, height: int, width: int, scale: tuple[float, float], flip: bool) -> View:
    """A random crop with an area of `scale` of the image, and a flip half of the time if `flip`.

    Aspects are drawn (uniformly in the logarithm) from those in 3/4 … 4/3 for which the box fits, so nothing
    is drawn twice. If none fits, as for a panorama, the box has the nearest allowed aspect and the largest
    size that fits. `scale` (1, 1) shows the centre square. Always five draws.
    """
    area_draw, aspect_draw, top_draw, left_draw, flip_draw = draws.random(5)
    flipped = bool(flip and flip_draw < 0.5)
    if scale[0] >= 1:
        whole = centre_view(height, width)
        return View(whole.top, whole.left, whole.height, whole.width, flipped)
    share = scale[0] + (scale[1] - scale[0]) * area_draw
    lowest = max(ASPECTS[0], share * width / height)
    highest = min(ASPECTS[1], width / (share * height))
    if lowest <= highest:
        aspect = lowest * (highest / lowest) ** aspect_draw
        box_height = math.sqrt(share * height * width / aspect)
        box_width = box_height * aspect
    else:
        aspect = ASPECTS[1] if lowest > ASPECTS[1] else ASPECTS[0]
        box_height = min(height, width / aspect)
        box_width = box_height * aspect
    rows = min(height, max(1, round(box_height)))
    columns = min(width, max(1, round(box_width)))
    top = min(height - rows, int(top_draw * (height - rows + 1)))
    left = min(width - columns, int(left_draw * (width - columns + 1)))
    return View(top / height, left / width, rows / height, columns / width, flipped)


def centre_view(height: int, width: int) -> View:
    """The centre square, on whole pixels."""
    side = min(height, width)
    return View((height - side) // 2 / height, (width - side) // 2 / width, side / height, side / width)


def pixel_box(view: View, height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, rows, columns) in whole pixels of an image of this size; at least one pixel."""
    top = min(height - 1, round(view.top * height))
    left = min(width - 1, round(view.left * width))
    bottom = min(height, max(top + 1, round((view.top + view.height) * height)))
    right = min(width, max(left + 1, round((view.left + view.width) * width)))
    return top, left, bottom - top, right - left


def snap(view: View, height: int, width: int) -> View:
    """The same view on whole pixels of an image of this size (after a scaled decode)."""
    top, left, rows, columns = pixel_box(view, height, width)
    return View(top / height, left / width, rows / height, columns / width, view.flip)


def enough_pixels(view: View, size: int) -> tuple[int, int]:
    """Height and width of the whole image from which `view` still has twice the pixels it is shown with.

    Twice: moving the box to whole pixels then shifts it by at most a quarter of a shown pixel, and the
    antialiased resize still does most of the filtering.
    """
    return math.ceil(2 * size / view.height), math.ceil(2 * size / view.width)


def render(pixels: np.ndarray, view: View, size: int) -> Tensor:
    """uint8 [H, W, 3] → uint8 [3, size, size]: torch's antialiased bicubic, which matches Pillow's to one level.

    Colours stay side by side in memory, as decoders give them: torch resizes three interleaved channels at once. For
    that it must see a whole image in this layout; a crop that is a mere view it would first sort into planes.
    """
    top, left, rows, columns = pixel_box(view, *pixels.shape[:2])
    image = _resized(pixels[top : top + rows, left : left + columns], size, size)
    return image.flip(-1) if view.flip else image


def render_whole(pixels: np.ndarray, size: int) -> Tensor:
    """uint8 [H, W, 3] → uint8 [3, size, size], as evaluation shows an image and as open_clip does, to one level:
    the short side resized to `size`, then the centre cut out. (The centre square of the original, resized, lies up to
    half a shown pixel beside it, and scores differ by some tenths of a point.)
    """
    pixels = _without_far_ends(pixels)
    height, width = pixels.shape[:2]
    tall, wide = (int(size * side / min(height, width)) for side in (height, width))
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    # contiguous: a part of a long image would keep the whole of it in memory.
    return _resized(pixels, tall, wide)[:, top : top + size, left : left + size].contiguous()


def _without_far_ends(pixels: np.ndarray) -> np.ndarray:
    """Of a strip a pixel high and a million wide, resized, the centre alone would fit into memory."""
    height, width = pixels.shape[:2]
    most = LONGEST * min(height, width)
    top, left = max(0, height - most) // 2, max(0, width - most) // 2
    return pixels[top : top + most, left : left + most]


def _resized(pixels: np.ndarray, rows: int, columns: int) -> Tensor:
    if not (pixels.flags.c_contiguous and pixels.flags.writeable):  # torch warns about Pillow's read-only arrays
        pixels = pixels.copy()
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    if pixels.shape[:2] != (rows, columns):
        image = torch.nn.functional.interpolate(
            image, (rows, columns), mode="bicubic", antialias=True, align_corners=False
        )  # fmt: skip
    return image[0]


# -------- samples
# One raw sample and its random draws → what a batch holds of it. Shared by both loaders.


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
