"""Makes one sample of a stored pair: random draws, a view of the image, its pixels, a caption; and batches of samples.

Random draws depend on *where* a sample stands, not on what was drawn before it. Philox is a counter-based generator:
key and counter name a point of its stream. (seed, purpose) is the key and (epoch, index, attempt) the counter, so any
process or worker can make the generator of any sample without visiting the samples before it.

A view (`types.View`) lies on whole pixels of the decoded image, so cached teacher features can follow what is shown.
`Recipe` makes the samples of training; `iterate_pairs` shows whole images in order, as evaluation sees them.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.decode import MAX_PIXELS, decode, read_header
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import (
    Batch,
    ImageSpec,
    RawSample,
    SecondCaptionProvider,
    Source,
    TeacherFeatureProvider,
    UserError,
    View,
)

_WORD = (1 << 64) - 1
LONGEST = 16  # times the short side: a longer image is cut to its centre before it is resized whole
ASPECTS = (3 / 4, 4 / 3)  # width to height of a random crop


class Purpose(IntEnum):
    """Names the purpose of random draws. No two purposes share a stream, so leaving out a purpose changes no other."""

    ORDER, VIEW, CAPTION, REPLACEMENT, SHARDS, SHUFFLED = range(6)


def generator(seed: int, purpose: int, epoch: int, index: int, attempt: int = 0) -> np.random.Generator:
    """Return the generator of one sample, for one purpose."""
    return np.random.Generator(_philox(seed, purpose, epoch, index, attempt))


def permutation(seed: int, epoch: int, size: int, purpose: int = Purpose.ORDER) -> np.ndarray:
    """Return the order in which an epoch visits `size` samples."""
    # Not `Generator.permutation`: numpy promises only of raw draws that they never change, and runs resume by them.
    return np.argsort(_philox(seed, purpose, epoch, 0, 0).random_raw(size), kind="stable")


def below(draws: np.random.Generator, limit: int) -> int:
    """Draw a whole number in 0 … limit-1. (`Generator.integers` may change between numpy versions.)"""
    return min(int(draws.random() * limit), limit - 1)


def _philox(seed: int, purpose: int, epoch: int, index: int, attempt: int) -> np.random.Philox:
    key = np.array([seed & _WORD, purpose], dtype=np.uint64)
    counter = np.array([0, attempt, index, epoch], dtype=np.uint64)  # the generator itself counts in the lowest word
    return np.random.Philox(key=key, counter=counter)


def random_view(draws: np.random.Generator, height: int, width: int, scale: tuple[float, float], flip: bool) -> View:
    """Draw a random crop with an area of `scale` of the image, and a flip half of the time if `flip`.

    Aspects are drawn (uniformly in the logarithm) from those in 3/4 … 4/3 for which the box fits, so nothing is drawn
    twice. If none fits, as for a panorama, the box has the nearest allowed aspect and the largest size that fits.
    `scale` (1, 1) shows the centre square. Every call makes five draws.
    """
    area_draw, aspect_draw, top_draw, left_draw, flip_draw = draws.random(5)
    flipped = bool(flip and flip_draw < 0.5)
    if scale[0] >= 1:
        return replace(centre_view(height, width), flip=flipped)
    share = scale[0] + (scale[1] - scale[0]) * area_draw
    lowest = max(ASPECTS[0], share * width / height)
    highest = min(ASPECTS[1], width / (share * height))
    if lowest <= highest:
        aspect = lowest * (highest / lowest) ** aspect_draw
        box_height = math.sqrt(share * height * width / aspect)
    else:
        aspect = ASPECTS[1] if lowest > ASPECTS[1] else ASPECTS[0]
        box_height = min(height, width / aspect)
    rows = min(height, max(1, round(box_height)))
    columns = min(width, max(1, round(box_height * aspect)))
    top = min(height - rows, int(top_draw * (height - rows + 1)))
    left = min(width - columns, int(left_draw * (width - columns + 1)))
    return View(top / height, left / width, rows / height, columns / width, flipped)


def centre_view(height: int, width: int) -> View:
    """Return the centre square, on whole pixels."""
    side = min(height, width)
    return View((height - side) // 2 / height, (width - side) // 2 / width, side / height, side / width)


def pixel_box(view: View, height: int, width: int) -> tuple[int, int, int, int]:
    """Return (top, left, rows, columns) in whole pixels of an image of this size; at least one pixel."""
    top = min(height - 1, round(view.top * height))
    left = min(width - 1, round(view.left * width))
    bottom = min(height, max(top + 1, round((view.top + view.height) * height)))
    right = min(width, max(left + 1, round((view.left + view.width) * width)))
    return top, left, bottom - top, right - left


def snap(view: View, height: int, width: int) -> View:
    """Move a view to whole pixels of an image of this size (after a scaled decode)."""
    top, left, rows, columns = pixel_box(view, height, width)
    return View(top / height, left / width, rows / height, columns / width, view.flip)


def enough_pixels(view: View, size: int) -> tuple[int, int]:
    """Return height and width of the whole image from which `view` has twice the pixels it is shown with.

    Moving the box to whole pixels then shifts it by at most a quarter of a shown pixel.
    """
    return math.ceil(2 * size / view.height), math.ceil(2 * size / view.width)


def render(pixels: np.ndarray, view: View, size: int) -> Tensor:
    """Show a view: uint8 [H, W, 3] → uint8 [3, size, size]."""
    top, left, rows, columns = pixel_box(view, *pixels.shape[:2])
    image = _resized(pixels[top : top + rows, left : left + columns], size, size)
    return image.flip(-1) if view.flip else image


def render_whole(
    pixels: np.ndarray, size: int, resize: str = "shortest", interpolation: str = "bicubic"
) -> Tensor:  # fmt: skip
    """Show an image as evaluation and open_clip do, to one level: uint8 [H, W, 3] → uint8 [3, size, size].

    The short side is resized to `size`, then the centre is cut out. (The centre square of the original, resized, lies
    up to half a shown pixel beside it, and scores differ by some tenths of a point.) With "squash" both sides are
    resized to `size`.
    """
    if resize == "squash":
        return _resized(pixels, size, size, interpolation).contiguous()
    height, width = pixels.shape[:2]
    most = LONGEST * min(height, width)  # a strip one pixel high and a million wide would not fit into memory, resized
    top, left = max(0, height - most) // 2, max(0, width - most) // 2
    pixels = pixels[top : top + most, left : left + most]
    height, width = pixels.shape[:2]
    tall, wide = (int(size * side / min(height, width)) for side in (height, width))
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    # contiguous: a part of a long image would keep the whole of it in memory.
    return _resized(pixels, tall, wide, interpolation)[:, top : top + size, left : left + size].contiguous()


def _resized(pixels: np.ndarray, rows: int, columns: int, interpolation: str = "bicubic") -> Tensor:
    """Resize by torch's antialiased filter, which matches Pillow's to one level.

    Colours stay interleaved, as decoders give them, and are resized at once; of a strided crop torch would sort them.
    """
    if not (pixels.flags.c_contiguous and pixels.flags.writeable):  # torch warns about Pillow's read-only arrays
        pixels = pixels.copy()
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    if pixels.shape[:2] != (rows, columns):
        image = torch.nn.functional.interpolate(
            image, (rows, columns), mode=interpolation, antialias=True, align_corners=False
        )  # fmt: skip
    return image[0]


@dataclass(frozen=True)
class Sample:
    key: str
    image: Tensor  # uint8 [3, S, S]; for a frozen image tower the embedding, float32 [D]
    view: View
    caption: str
    second_caption: str | None = None
    group: str | None = None  # a product or a patient, where the data has groups (`reading.group_column`)


def shared_ids(sample: Sample) -> list[int]:
    """Return what a sample may share with others, as ids (`losses/groups.py`): image, caption, group, second caption.

    Captions are compared as the tokenizer reads them, whatever their case and white space. -1 stands for a thing that
    the sample lacks, an empty group included. Ids are hashes, equal on every machine.
    """
    captions = [
        None if text is None else " ".join(text.lower().split()) for text in (sample.caption, sample.second_caption)
    ]
    if captions[1] == captions[0]:  # a lone caption that is shown twice
        captions[1] = None
    things = (
        ("image", sample.key),
        ("caption", captions[0]),
        ("group", sample.group or None),
        ("caption", captions[1]),
    )
    return [-1 if name is None else _hashed(kind, name) for kind, name in things]


def _hashed(kind: str, name: str) -> int:
    data = f"{kind}\0{name}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1  # 63 bits, not negative


@dataclass(frozen=True)
class Recipe:
    """Makes samples and batches, in the same way in every worker."""

    image: ImageSpec
    tokenizer: Tokenizer
    reading: ReadingSettings
    second_caption: bool = False
    teacher_features: TeacherFeatureProvider | None = None
    second_captions: SecondCaptionProvider | None = None  # None: another caption of the image is its second caption
    lone_caption_twice: bool = False  # an image with one caption shows it twice; off: it is refused

    def sample(self, raw: RawSample, view_draws: np.random.Generator, caption_draws: np.random.Generator) -> Sample:
        """Decode, crop, flip and resize the image, and pick a caption; `Damage` if the image cannot be used."""
        header = read_header(raw.image, self.reading.max_pixels)
        view = random_view(view_draws, header.height, header.width, self.reading.crop_scale, self.reading.flip)
        pixels = decode(raw.image, header, least=enough_pixels(view, self.image.size))
        view = snap(view, *pixels.shape[:2])
        shown = render(pixels, view, self.image.size)
        return self.captioned(raw.key, shown, view, raw.captions, caption_draws, raw.second_captions)

    def captioned(
        self,
        key: str,
        image: Tensor,
        view: View,
        captions: Sequence[str],
        draws: np.random.Generator,
        carried: tuple[str, ...] = (),
    ) -> Sample:
        """Join an image that is ready with one of its captions, and with a second caption if `second_caption`.
        `carried` are second captions that came with the image."""
        caption = captions[below(draws, len(captions))]
        if not self.second_caption:
            return Sample(key, image, view, caption)
        if self.second_captions is not None:
            if not (others := list(carried or self.second_captions(key))):
                raise Damage("no-second-caption")
        elif not (others := [other for other in captions if other != caption]) and self.lone_caption_twice:
            others = [caption]
        elif not others:
            raise UserError(
                f"image {key} has only one caption, and ALIP compares two captions of each image. Give generated "
                "second captions (--reading.second-captions FILE; docs/data.md has their format and a script that "
                "makes them with any captioner), use data with several captions an image, or another --method."
            )
        return Sample(key, image, view, caption, others[below(draws, len(others))])

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
            teacher_features=self.teacher_features(keys, views, captions) if self.teacher_features else {},
            damage=damage,
            groups=torch.tensor([shared_ids(sample) for sample in samples]),
        )


@dataclass(frozen=True)
class Refusal:
    """Carries a `UserError` from a worker to the main process; torch would wrap the error in the worker's traceback."""

    text: str


def iterate_pairs(
    source: Source,
    image: ImageSpec,
    batch: int = 256,
    *,
    threads: int = 2,
    max_pixels: int = MAX_PIXELS,
    damage: DamageCount | None = None,
) -> Iterator[tuple[list[str], Tensor, list[tuple[str, ...]]]]:
    """Yield the pairs of a source in order: (keys, images uint8 [b, 3, S, S], all captions of each image).

    b is `batch`, or less at the end. Damaged pairs are left out and counted in `damage`. Threads read ahead, one batch
    at most: decoding and resizing run outside Python's lock, so they overlap with the model.
    """
    damage = damage if damage is not None else DamageCount(max_damaged=1.0)

    def load(index: int) -> tuple[Tensor, tuple[str, ...]] | Damage:
        try:
            raw = source.read(index)
            pixels = decode(raw.image, read_header(raw.image, max_pixels))
            return render_whole(pixels, image.size, image.resize, image.interpolation), raw.captions
        except Damage as reason:
            return reason

    keys: list[str] = []
    images: list[Tensor] = []
    captions: list[tuple[str, ...]] = []
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque(pool.submit(load, index) for index in range(min(batch, len(source))))
        for index in range(len(source)):
            if index + batch < len(source):
                waiting.append(pool.submit(load, index + batch))
            loaded = waiting.popleft().result()
            if isinstance(loaded, Damage):
                damage.add(0, [(source.key(index), loaded.cause)])
                continue
            damage.add(1)
            keys.append(source.key(index))
            images.append(loaded[0])
            captions.append(loaded[1])
            if len(keys) == batch:
                yield keys, torch.stack(images), captions
                keys, images, captions = [], [], []
    damage.stop_if_too_many()
    if keys:
        yield keys, torch.stack(images), captions
