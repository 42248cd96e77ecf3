"""Reads a teacher cache at training time: features by key and caption that follow crop and flip.

A call returns these tensors for B samples, as far as they are in `fields` and in the cache:
    image_gram     [B, g², g²]  unnormalised token Gram of the view, on the comparing grid g×g: A·G·Aᵀ
    image_tokens   [B, g², K]   PCA tokens of the view: A·T
    image_summary  [B, C']      the class token, or the mean token of a view that shows too little of the image
    text_gram      [B, W, W]    Gram of the caption's words, W the most words of the batch; zero for missing words
    text_tokens    [B, W, K]    PCA tokens of words
    text_summary   [B, C']
    text_mask      [B, W]       True for words that the teacher read
    text_word_ids  [B, L]       the word of each id of the trunk's tokenizer, -1 for none

The comparing grid is about half as fine as the cached grid. Enlarging a map bilinearly makes neighbours alike, so a
Gram cached at the comparing grid would differ from the teacher's own Gram of a crop.

Files are memory-mapped read-only. Each process maps a shard, and compares its hash, when it first needs it: forked
workers are safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dinorankclip.checked_files import UnfitFile, read_array
from dinorankclip.data.samples import Purpose, permutation
from dinorankclip.data.splits import undivided
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses.resampling import resample_gram, resample_grid, resample_tokens
from dinorankclip.system import most_open_files
from dinorankclip.teachers import cache_format
from dinorankclip.teachers.cache_format import BASIS, IMAGE_BASIS, TEXT, GramCodec
from dinorankclip.teachers.text_teachers import bpe_word_ids
from dinorankclip.types import Source, UserError, View

# The class token represents a view with at least this share of the image (D19). Boxes are moved to whole pixels of
# small images, which takes up to two hundredths off a crop that was drawn as 0.9.
WHOLE_VIEW = 0.9 - 0.02
FEWEST_MAPS = 256  # files that stay mapped at least: each costs a descriptor, and a process usually has 1024
ALL_FIELDS = frozenset({"gram", "tokens", "summary"})
OF_TOKENS = frozenset({"gram", "tokens"})


class TeacherCache:
    """Reads features of one part of the data ("train", "val", …) in a complete cache: a `types.TeacherFeatureProvider`.

    Without cached tokens the mean token of a crop is unknown. The class token of the whole image then replaces it, and
    `summary_follows` is False.
    """

    def __init__(
        self,
        folder: str | Path,
        part: str,
        *,
        compare_grid: int | None = None,
        tokenizer: Tokenizer | None = None,
        fields: frozenset[str] = ALL_FIELDS,
    ) -> None:
        """With the `tokenizer` of the trunk, captions are looked up too. `fields`: some of gram, tokens, summary."""
        self.folder = Path(folder)
        manifest = cache_format.read_manifest(self.folder)
        self._manifest = manifest
        self._checked: set[str] = set()  # names of large files whose bytes this process has compared
        self.plan: dict[str, Any] = manifest["plan"]
        self.bytes = sum(manifest["files"].values())
        # A validation part that the data lacks was carved from its training part, or from the undivided whole.
        self.part = next((p for p in (part, "train", "all") if p in self.plan["data"]), min(self.plan["data"]))
        self.grid: tuple[int, int] = tuple(self.plan["grid"])
        side = compare_grid or half_as_fine(max(self.grid))
        if side > min(self.grid):
            raise UserError(
                f"--distil.compare-grid {side} is finer than the {self.grid[0]}×{self.grid[1]} of {self.folder}: "
                "cache at a larger --input-size, or compare on a coarser grid"
            )
        self.compare_grid = (side, side)
        self._tokenizer = tokenizer
        self._record = cache_format.image_record(self.plan)
        self._index = _Index(self.folder / cache_format.keys_name(self.part))
        self._others: np.ndarray | None = None  # by place of an image: the place whose features it gets
        self._maps: dict[str, np.ndarray] = {}
        self._most_maps = max(FEWEST_MAPS, (most_open_files() or (0, 0))[0] // 4)
        self._basis = self._read_basis() if "tokens" in self._record.codecs else None
        self.fields = fields & self._record.codecs.keys()
        self.summary_follows = self._basis is not None and self.plan["width"] == self.plan["summary_width"]
        if tokenizer is not None:
            if self.plan["text"] is None:
                raise UserError(f"{self.folder} holds no text features; make it with --text-teacher minilm")
            self._text_record = cache_format.text_record(self.plan)
            self._text_index = _Index(self.folder / cache_format.keys_name(TEXT))

    def _read_basis(self) -> Tensor:
        try:
            return load_file(self.folder / BASIS)[IMAGE_BASIS]
        except (SafetensorError, KeyError, OSError) as error:
            raise UserError(
                f"{self.folder / BASIS} is damaged ({error}): delete {self.folder} and make the cache again"
            ) from error

    @property
    def width(self) -> int:
        """Return K, the width of the PCA tokens."""
        return self.plan["reduced"]

    @property
    def summary_width(self) -> int:
        return self.plan["summary_width"]

    @property
    def identity(self) -> str:
        """Return a hash that changes with everything that the features depend on."""
        return f"{cache_format.hashes([str(sorted(self.plan.items()))])[0]:016x}"

    def check_data(self, source: Source) -> None:
        """Refuse data that the cache was not made of. A part carved from a source belongs to that source."""
        made_of = self.plan["data"][self.part]
        if undivided(source).fingerprint != made_of["fingerprint"]:
            raise UserError(
                f"{self.folder} was made of other data ('{self.part}', {made_of['images']} images): make a cache of "
                "this data with dinorankclip teacher cache, or train on that data"
            )

    def shuffle(self, seed: int) -> None:
        """Give every image the features of another image from now on, the same one at each call: a control.

        The readable images form one cycle in an order drawn from the seed, and each gets the features of its successor.
        """
        shards = -(-self._index.size // self.plan["rows"])
        marks = [self._records(number)[:, 0] for number in range(shards)]
        readable = np.flatnonzero(np.concatenate(marks)[: self._index.size])
        order = readable[permutation(seed, 0, len(readable), Purpose.SHUFFLED)]
        self._others = np.arange(self._index.size)
        self._others[order] = np.roll(order, -1)

    def summaries(self, keys: Sequence[str]) -> Tensor:
        """Return the class tokens [n, C'] of whole images, without those that could not be read."""
        raw = self._raw(keys)
        return torch.from_numpy(self._record.decode("summary", raw[raw[:, 0] != 0]))

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        features = self.images(keys, views)
        if self._tokenizer is not None:
            features |= self.texts(captions)
        return features

    def images(self, keys: Sequence[str], views: Sequence[View]) -> dict[str, Tensor]:
        """Return features of the views, in the order of the keys."""
        raw = self._rows(keys)
        features: dict[str, Tensor] = {}
        tokens: Tensor | None = None
        if self.fields & OF_TOKENS or (self.summary_follows and not all(map(_shows_all, views))):
            matrix = self._matrix(views)
            if "gram" in self.fields:
                features["image_gram"] = self._gram(raw, matrix)
            if self._basis is not None:
                decoded = torch.from_numpy(self._record.decode("tokens", raw)).unflatten(1, (-1, self.width))
                tokens = resample_tokens(decoded, matrix)
                if "tokens" in self.fields:
                    features["image_tokens"] = tokens
        if "summary" in self.fields:
            features["image_summary"] = self._summary(raw, views, tokens)
        return features

    def _matrix(self, views: Sequence[View]) -> Tensor:
        boxes = torch.tensor([(v.top, v.left, v.height, v.width) for v in views], dtype=torch.float64)
        top, left, height, width = boxes.unbind(1)
        flip = torch.tensor([v.flip for v in views])
        return resample_grid(self.grid, self.compare_grid, top, left, height, width, flip).float()

    def _gram(self, raw: np.ndarray, matrix: Tensor) -> Tensor:
        """Return A·G·Aᵀ. The lengths are multiplied into A, which is the smaller matrix."""
        codec = self._record.codecs["gram"]
        assert isinstance(codec, GramCodec)
        lengths, cosines = map(torch.from_numpy, codec.parts(self._record.bytes_of("gram", raw)))
        matrix = matrix * lengths[:, None, :]
        return resample_gram(cosines, matrix)

    def _summary(self, raw: np.ndarray, views: Sequence[View], tokens: Tensor | None) -> Tensor:
        summary = torch.from_numpy(self._record.decode("summary", raw))
        if tokens is None or self._basis is None or not self.summary_follows:
            return summary
        shows_all = torch.tensor([_shows_all(view) for view in views])
        return torch.where(shows_all[:, None], summary, tokens.mean(1) @ self._basis)

    def _rows(self, keys: Sequence[str]) -> np.ndarray:
        """Return the records of the keys, uint8 [B, bytes]; refuse an image that could not be read."""
        rows = self._raw(keys)
        if not rows[:, 0].all():
            key = keys[int(rows[:, 0].argmin())]
            raise UserError(
                f"{key} could not be read when {self.folder} was made, and now it can: delete that folder, and run the "
                "command that made it again"
            )
        return rows

    def _raw(self, keys: Sequence[str]) -> np.ndarray:
        places = self._index.find(keys, f"the '{self.part}' part of {self.folder}")
        if self._others is not None:
            places = self._others[places]
        rows = np.empty((len(keys), self._record.bytes), np.uint8)
        for row, place in enumerate(places):
            number, inside = divmod(int(place), self.plan["rows"])
            rows[row] = self._records(number)[inside]
        return rows

    def _records(self, number: int) -> np.ndarray:
        """Return the records of a shard of images, uint8 [rows, bytes]."""
        return self._map(cache_format.shard_name(self.part, number)).reshape(-1, self._record.bytes)

    def texts(self, captions: Sequence[str]) -> dict[str, Tensor]:
        assert self._tokenizer is not None, "captions are looked up by a cache with a tokenizer"
        places = self._text_index.find(captions, f"the captions of {self.folder}")
        names = set(self.fields)
        if self.fields & OF_TOKENS:  # Gram or tokens tell which words exist
            names.add("gram" if "gram" in self._record.codecs else "tokens")
        records = [self._text_record.decode(self._caption(int(place)), names) for place in places]
        stored = [name for name in ("gram", "tokens") if name in records[0]]
        most = max((len(record[name]) for record in records for name in stored), default=0)
        features: dict[str, Tensor] = {}
        mask = torch.zeros(len(records), most, dtype=torch.bool)
        for name in stored:
            width = most if name == "gram" else records[0][name].shape[1]
            block = torch.zeros(len(records), most, width)
            for row, record in enumerate(records):
                value = torch.from_numpy(record[name])
                block[row, : len(value), : value.shape[1]] = value
                mask[row, : len(value)] = (value.diagonal() if name == "gram" else value.abs().sum(1)) > 0
            if name in self.fields:
                features[f"text_{name}"] = block
        if self.fields & OF_TOKENS:
            features["text_mask"] = mask
            features["text_word_ids"] = bpe_word_ids(self._tokenizer, captions)
        if "summary" in self.fields:
            features["text_summary"] = torch.from_numpy(np.stack([record["summary"] for record in records]))
        return features

    def _caption(self, place: int) -> np.ndarray:
        number, inside = divmod(place, self.plan["captions"])
        offsets = self._map(cache_format.offsets_name(number))
        return self._map(cache_format.shard_name(TEXT, number))[offsets[inside] : offsets[inside + 1]]

    def _map(self, name: str) -> np.ndarray:
        """Return a file as an array. The least recently used map is closed when there are too many."""
        mapped = self._maps.pop(name, None)
        if mapped is None:
            path = self.folder / name
            if name not in self._checked:
                cache_format.demand_as_written(self.folder, self._manifest, name)
                self._checked.add(name)
            mapped = read_array(path) if path.suffix == ".npy" else np.memmap(path, np.uint8, "r")
            mapped = mapped.view(np.ndarray)  # without memmap's slow bookkeeping for each slice
            if len(self._maps) >= self._most_maps:
                self._maps.pop(next(iter(self._maps)))
        self._maps[name] = mapped
        return mapped

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}  # another process maps files of its own


def half_as_fine(side: int) -> int:
    """Return the default side of the comparing grid for a cached grid of `side` tokens."""
    return (side + 1) // 2


class _Index:
    """Finds the places of names by sorted hashes."""

    def __init__(self, path: Path) -> None:
        keys = np.array(read_array(path))
        if keys.ndim != 1 or keys.dtype != np.uint64 or not len(keys):
            raise UnfitFile(f"{path} is damaged: it holds no hashes of keys; make the cache again")
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]
        self.size = len(keys)

    def find(self, names: Sequence[str], where: str) -> np.ndarray:
        hashes = cache_format.hashes(names)
        at = np.searchsorted(self._sorted, hashes).clip(0, len(self._sorted) - 1)
        missing = self._sorted[at] != hashes
        if missing.any():
            raise UserError(f"'{names[int(missing.argmax())]}' is not in {where}: the cache was made of other data")
        return self._order[at]


def _shows_all(view: View) -> bool:
    return view.height * view.width >= WHOLE_VIEW
