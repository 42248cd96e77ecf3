"""Turns pairs of a Python program into a source: torch data sets, lists, and any iterable of (image, captions).

An image is a PIL image, a NumPy array (H×W×3), a tensor (3×H×W), encoded bytes or a path. Captions are a text or
several. An item may also be a mapping with `image` and `caption`, `captions` or `text`.

* Data with a length and places (a map-style data set, a list) stays where it is. Each item is read once before
  training: its captions are kept, and a hash of everything is the fingerprint, so that a resumed run notices a change.
  Afterwards items are read in any order, also by worker processes, and position and resumption are exact. This holds
  for data whose items do not change from one reading to the next; random transforms are refused.
* An iterable can be read once and in its own order alone. It is therefore written to shards first, in
  `DINORANKCLIP_HOME`/packed, which any later run and command can open; the same items again find the same shards.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import clean_captions, from_pillow
from dinorankclip.data.folders_and_tables import read_file
from dinorankclip.data.pack import Writer
from dinorankclip.data.readers import give_pairs
from dinorankclip.io import digest, home, one_at_a_time
from dinorankclip.types import RawSample, Source, UserError

CHECKED_TWICE = 3  # items that are read twice, to find data that changes from one reading to the next
PACKED = "packed"  # folder of shards made of iterables
_CAPTION_NAMES = ("captions", "caption", "text")


class PythonPairs(Source):
    """Reads pairs of a map-style data set. The key of a pair is its place."""

    def __init__(self, items: Any, title: str = "data") -> None:
        self._items, self._title = items, title
        if not len(items):
            raise UserError(f"{title} is empty: it must hold (image, captions) pairs")
        for index in range(min(CHECKED_TWICE, len(items))):
            if self._hashed(index)[0] != self._hashed(index)[0]:
                raise UserError(
                    f"item {index} of {title} differs between two readings, so no order could be repeated: give the "
                    "images without random transforms (reading.crop_scale and reading.flip crop and mirror them)"
                )
        found = [
            self._hashed(index) for index in tqdm(range(len(items)), f"reading {title}", leave=False, disable=None)
        ]
        self._sizes = np.array([size for _, size, _ in found], dtype=np.int64)
        self._captions = [captions for _, _, captions in found]
        self.fingerprint = digest("python", *(content for content, _, _ in found))

    def __len__(self) -> int:
        return len(self._captions)

    def key(self, index: int) -> str:
        return f"{index:07d}"

    def image(self, index: int) -> bytes:
        return encoded(self._item(index)[0], self._place(index))

    def captions(self, index: int) -> tuple[str, ...]:
        return clean_captions(list(self._captions[index]))

    def sizes(self) -> np.ndarray:
        return self._sizes

    def stamps(self) -> np.ndarray:
        return np.empty((len(self), 0), dtype=np.int64)  # the fingerprint covers all images

    def _place(self, index: int) -> str:
        return f"item {index} of {self._title}"

    def _item(self, index: int) -> tuple[Any, tuple[str, ...]]:
        return image_and_captions(self._items[index], self._place(index))

    def _hashed(self, index: int) -> tuple[str, int, tuple[str, ...]]:
        """Return a hash of the whole item, the bytes of its image (-1 if it cannot be used), and its captions."""
        image, captions = self._item(index)
        try:
            content = encoded(image, self._place(index))
        except Damage as damage:  # counted when the item is drawn, as in any other data
            return digest(damage.cause, *captions), -1, captions
        return digest(hashlib.blake2b(content, digest_size=16).digest(), *captions), len(content), captions


def image_and_captions(item: Any, place: str) -> tuple[Any, tuple[str, ...]]:
    """Take an item apart; raise `UserError` if it is no pair."""
    if isinstance(item, Mapping):
        captions = next((item[name] for name in _CAPTION_NAMES if name in item), None)
        image = item.get("image")
    else:
        image, captions = item if isinstance(item, tuple | list) and len(item) == 2 else (None, None)
    texts = [captions] if isinstance(captions, str) else list(captions) if isinstance(captions, Iterable) else [None]
    if image is None or not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{place} is no pair: (image, captions) or a mapping with image and caption is expected, captions being a "
            f"text or several, not {_described(item)}"
        )
    return image, tuple(texts)


def encoded(image: Any, place: str, kind: str = "BMP") -> bytes:
    """Return an image as bytes that the decoder reads, without loss. A path gives the bytes of its file."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        return read_file(Path(image), missing="missing-image")
    if isinstance(image, Image.Image):
        pixels = from_pillow(image)
    else:
        pixels = _pixels(image, place)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def _pixels(image: Any, place: str) -> np.ndarray:
    """Return uint8 [H, W, 3] of an array [H, W, 3], [H, W] or of a tensor [3, H, W], [1, H, W]."""
    is_tensor = hasattr(image, "detach")
    array = image.detach().cpu().numpy() if is_tensor else np.asarray(image)
    if is_tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or not array.size or array.dtype.kind not in "uif":
        layout = "3×H×W" if is_tensor else "H×W×3"
        raise UserError(
            f"the image of {place} must be {layout} numbers, a PIL image, bytes or a path, not {_described(image)}"
        )
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    low, high = float(array.min()), float(array.max())
    top = 1.0 if array.dtype.kind == "f" else 255.0
    if not (low >= 0 and high <= top):
        raise UserError(
            f"the image of {place} has values from {low:.3g} to {high:.3g}: give pixels, bytes 0 to 255 or floats 0 to "
            "1, before any normalisation"
        )
    return np.ascontiguousarray(np.rint(array * (255.0 / top)).astype(np.uint8))


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" {tuple(shape)}" if shape is not None else "")


def is_map_style(data: Any) -> bool:
    """Return whether data has a length and places that can be read in any order."""
    if isinstance(data, Mapping) or not hasattr(type(data), "__len__") or not hasattr(type(data), "__getitem__"):
        return False
    from torch.utils.data import IterableDataset

    return not isinstance(data, IterableDataset)


def open_python_data(data: Any, validation: Any = None) -> str:
    """Return the name under which `open_pairs` finds pairs that a Python program gives, in place or packed."""
    given = {"train": data} | ({} if validation is None else {"val": validation})
    titles = {"train": "data", "val": "validation"}
    for part, items in given.items():
        _refuse_no_items(items, titles[part])
    if not all(map(is_map_style, given.values())):
        return str(packed(given))
    parts: dict[str, Source] = {part: PythonPairs(items, titles[part]) for part, items in given.items()}
    whole = digest("python data", *(f"{part} {source.fingerprint}" for part, source in parts.items()))[:16]
    return give_pairs(parts, whole)


def _refuse_no_items(items: Any, title: str) -> None:
    from torch.utils.data import DataLoader

    if isinstance(items, DataLoader):
        raise UserError(f"{title} is a DataLoader, which gives batches: give its data set ({title}.dataset) instead")
    if isinstance(items, str | bytes | Path | Mapping) or not (hasattr(items, "__iter__") or is_map_style(items)):
        raise UserError(f"{title} must be a data set or an iterable of (image, captions), not {_described(items)}")


def packed(given: Mapping[str, Any]) -> Path:
    """Write iterables to shards, and return their folder, whose name is a hash of everything in it."""
    folder = home() / PACKED
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"data without a length is read once, into shards under {folder}: only stored pairs can be read again",
        flush=True,
    )
    content = hashlib.blake2b(digest_size=8)
    aside = Path(tempfile.mkdtemp(prefix=".incoming-", dir=folder))
    try:
        writer = Writer(aside, "shards")
        for part, items in given.items():
            content.update(part.encode())
            if not writer.write(part, _samples(items, "data" if part == "train" else "validation", content)):
                raise UserError(f"{part}: the iterable is empty, or was read to its end before")
        out = folder / content.hexdigest()
        with one_at_a_time(out.name, folder):
            if not out.exists():
                aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return out


def _samples(items: Iterable[Any], title: str, content: Any) -> Iterator[RawSample]:
    for number, item in enumerate(tqdm(items, f"packing {title}", unit="pair", leave=False, disable=None)):
        place = f"item {number} of {title}"
        image, captions = image_and_captions(item, place)
        try:
            data, captions = encoded(image, place, "PNG"), clean_captions(list(captions))
        except Damage as damage:
            raise UserError(f"{place} cannot be used: {damage}") from None
        content.update(hashlib.blake2b(data, digest_size=16).digest())
        content.update("\n".join(captions).encode())
        yield RawSample(f"{number:07d}", data, captions)
