"""A teacher cache at training time: features by key and caption, following crop and flip. A `types.TeacherFeatureProvider`.

What a call gives, each batch first, B samples (those of them that are `wanted` and kept):
    image_gram     [B, g², g²]  unnormalised token Gram of the view, on the comparing grid g×g: A·G·Aᵀ
    image_tokens   [B, g², K]   PCA tokens of the view: A·T
    image_summary  [B, C']      the class token, or the mean token of a view that shows too little of the image
    text_gram      [B, W, W]    Gram of the caption's words, W the most words of the batch; zero for missing words
    text_tokens    [B, W, K]    PCA tokens of words
    text_summary   [B, C']
    text_mask      [B, W]       which words the teacher read
    text_word_ids  [B, L]       the word each id of the trunk's tokenizer belongs to, -1 for none

The comparing grid is coarser than the cached one, about half: enlarging a map bilinearly makes neighbours alike, so
a Gram that was cached at the grid it is compared at says of a crop what the teacher would never say.

Without cached tokens the mean token of a crop is not known; the class token of the whole image then stands in, and
`summary_follows` is False.

Safe in forked workers: files are memory-mapped read-only, each process maps a shard when it first needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from dinorankclip.data.splits import whole
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.teachers import cache_format
from dinorankclip.teachers.cache_build import IMAGE_BASIS
from dinorankclip.teachers.cache_format import Gram
from dinorankclip.teachers.caption_features import bpe_word_ids, text_record
from dinorankclip.types import Source, UserError, View

# D19: a view with at least this share of the image is spoken for by the class token. Boxes are moved to whole pixels
# of small images, which takes up to two hundredths off a crop that was drawn as 0.9.
WHOLE_VIEW = 0.9 - 0.02
FEWEST_MAPS = 256  # files that stay mapped at least: each costs a descriptor, of which a process usually may have 1024
EVERYTHING = frozenset({"gram", "tokens", "summary"})

# `equations.resample_grid(grid_in, grid_out, top, left, height, width, flip)`; handed in, since equations come later.
Resample = Callable[..., Tensor]


class TeacherCache:
    """Features of one part of the data ("train", "val", …) that a complete cache holds."""

    def __init__(
        self,
        folder: str | Path,
        part: str,
        *,
        resample: Resample,
        compare_grid: int | None = None,
        tokenizer: Tokenizer | None = None,
        wanted: frozenset[str] = EVERYTHING,
    ) -> None:
        """`tokenizer`: the trunk's; with it captions are looked up too. `wanted`: some of gram, tokens, summary."""
        self.folder = Path(folder)
        manifest = cache_format.read_manifest(self.folder)
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
        self._resample, self._tokenizer = resample, tokenizer
        self._record = cache_format.image_record(self.plan)
        self._index = _Index(self.folder / cache_format.keys_name(self.part))
        self._maps: dict[str, np.ndarray] = {}
        self._most_maps = max(FEWEST_MAPS, _open_files() // 4)
        has_tokens = "tokens" in self._record.coders
        self._basis = load_file(self.folder / cache_format.BASIS)[IMAGE_BASIS] if has_tokens else None
        self.wanted = wanted & self._record.coders.keys()
        self.summary_follows = self._basis is not None and self.plan["width"] == self.plan["summary_width"]
        if tokenizer is not None:
            if self.plan["text"] is None:
                raise UserError(f"{self.folder} holds no text features; make it with --text-teacher minilm")
            self._text_record = text_record(self.plan)
            self._text_index = _Index(self.folder / cache_format.keys_name(cache_format.TEXT))

    @property
    def width(self) -> int:
        """K of the PCA tokens."""
        return self.plan["reduced"]

    @property
    def summary_width(self) -> int:
        return self.plan["summary_width"]

    @property
    def identity(self) -> str:
        """Changes when anything does that the features depend on."""
        return f"{cache_format.hashes([str(sorted(self.plan.items()))])[0]:016x}"

    def check_data(self, source: Source) -> None:
        """Refuse data that the cache was not made of. A part carved from a source belongs to that source."""
        made_of = self.plan["data"][self.part]
        if whole(source).fingerprint != made_of["fingerprint"]:
            raise UserError(
                f"{self.folder} was made of other data ('{self.part}', {made_of['images']} images): make a cache of "
                "this data with dinorankclip teacher cache, or train on that data"
            )

    def __call__(self, keys: Sequence[str], views: Sequence[View], captions: Sequence[str]) -> dict[str, Tensor]:
        found = self.images(keys, views)
        if self._tokenizer is not None:
            found |= self.texts(captions)
        return found

    # --------------------------------------------------------------------------------------------------- images

    def images(self, keys: Sequence[str], views: Sequence[View]) -> dict[str, Tensor]:
        """Features of the views; keys in the order of the batch."""
        raw = self._rows(keys)
        found: dict[str, Tensor] = {}
        needs_map = self.wanted & {"gram", "tokens"} or (self.summary_follows and not all(map(_shows_all, views)))
        matrix = self._matrix(views) if needs_map else None
        if matrix is not None and "gram" in self.wanted:
            found["image_gram"] = self._gram(raw, matrix)
        tokens = self._tokens(raw, matrix) if self._basis is not None and matrix is not None else None
        if tokens is not None and "tokens" in self.wanted:
            found["image_tokens"] = tokens
        if "summary" in self.wanted:
            found["image_summary"] = self._summary(raw, views, tokens)
        return found

    def _matrix(self, views: Sequence[View]) -> Tensor:
        box = torch.tensor([(v.top, v.left, v.height, v.width) for v in views], dtype=torch.float64)
        flip = torch.tensor([v.flip for v in views])
        return self._resample(self.grid, self.compare_grid, *box.unbind(1), flip).float()

    def _gram(self, raw: np.ndarray, matrix: Tensor) -> Tensor:
        """A·G·Aᵀ. The lengths are multiplied into A, which is the smaller matrix."""
        coder = self._record.coders["gram"]
        assert isinstance(coder, Gram)
        lengths, cosines = map(torch.from_numpy, coder.parts(self._record.bytes_of("gram", raw)))
        matrix = matrix * lengths[:, None, :]
        return matrix @ cosines @ matrix.mT

    def _tokens(self, raw: np.ndarray, matrix: Tensor) -> Tensor:
        whole = torch.from_numpy(self._record.decode("tokens", raw)).unflatten(1, (-1, self.width))
        return matrix @ whole

    def _summary(self, raw: np.ndarray, views: Sequence[View], tokens: Tensor | None) -> Tensor:
        summary = torch.from_numpy(self._record.decode("summary", raw))
        if tokens is None or self._basis is None or not self.summary_follows:
            return summary
        shows_all = torch.tensor([_shows_all(view) for view in views])
        return torch.where(shows_all[:, None], summary, tokens.mean(1) @ self._basis)

    def _rows(self, keys: Sequence[str]) -> np.ndarray:
        """Records of the keys: uint8 [B, bytes]."""
        places = self._index.find(keys, f"the '{self.part}' part of {self.folder}")
        rows = np.empty((len(keys), self._record.bytes), np.uint8)
        for row, place in enumerate(places):
            number, inside = divmod(int(place), self.plan["rows"])
            rows[row] = self._map(cache_format.shard_name(self.part, number)).reshape(-1, self._record.bytes)[inside]
        if not rows[:, 0].all():
            key = keys[int(rows[:, 0].argmin())]
            raise UserError(
                f"{key} could not be read when {self.folder} was made, and now it can: delete that folder, and run the "
                "command that made it again"
            )
        return rows

    # --------------------------------------------------------------------------------------------------- captions

    def texts(self, captions: Sequence[str]) -> dict[str, Tensor]:
        assert self._tokenizer is not None, "captions are looked up by a cache with a tokenizer"
        places = self._text_index.find(captions, f"the captions of {self.folder}")
        masks = {"gram" if "gram" in self._record.coders else "tokens"} if self.wanted & {"gram", "tokens"} else set()
        each = [self._text_record.decode(self._caption(int(place)), self.wanted | masks) for place in places]
        sizes = [len(one[name]) for one in each for name in ("gram", "tokens") if name in one]
        most = max(sizes, default=0)
        found: dict[str, Tensor] = {}
        mask = torch.zeros(len(each), most, dtype=torch.bool)
        names = [name for name in ("gram", "tokens") if name in each[0]]
        for name in names:
            width = most if name == "gram" else each[0][name].shape[1]
            block = torch.zeros(len(each), most, width)
            for row, one in enumerate(each):
                value = torch.from_numpy(one[name])
                block[row, : len(value), : value.shape[1]] = value
                mask[row, : len(value)] = (value.diagonal() if name == "gram" else value.abs().sum(1)) > 0
            if name in self.wanted:
                found[f"text_{name}"] = block
        if self.wanted & {"gram", "tokens"}:
            found["text_mask"] = mask
            found["text_word_ids"] = bpe_word_ids(self._tokenizer, captions)
        if "summary" in self.wanted:
            found["text_summary"] = torch.from_numpy(np.stack([one["summary"] for one in each]))
        return found

    def _caption(self, place: int) -> np.ndarray:
        number, inside = divmod(place, self.plan["captions"])
        ends = self._map(cache_format.offsets_name(number))
        return self._map(cache_format.shard_name(cache_format.TEXT, number))[ends[inside] : ends[inside + 1]]

    def _map(self, name: str) -> np.ndarray:
        found = self._maps.pop(name, None)
        if found is None:
            path = self.folder / name
            found = np.load(path, mmap_mode="r") if path.suffix == ".npy" else np.memmap(path, np.uint8, "r")
            found = found.view(np.ndarray)  # without memmap's slow bookkeeping for each slice
            if len(self._maps) >= self._most_maps:
                self._maps.pop(next(iter(self._maps)))  # the one that was not asked for the longest
        self._maps[name] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}  # another process maps its own


def half_as_fine(side: int) -> int:
    """The comparing grid of a cached grid of `side` tokens, unless another is asked for."""
    return (side + 1) // 2


def _open_files() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:
        return 0  # not known
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class _Index:
    """Name → place, by sorted hashes."""

    def __init__(self, path: Path) -> None:
        keys = np.load(path)
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def find(self, names: Sequence[str], where: str) -> np.ndarray:
        asked = cache_format.hashes(names)
        at = np.searchsorted(self._sorted, asked).clip(0, len(self._sorted) - 1)
        missing = self._sorted[at] != asked
        if missing.any():
            raise UserError(f"'{names[int(missing.argmax())]}' is not in {where}: the cache was made of other data")
        return self._order[at]


def _shows_all(view: View) -> bool:
    return view.height * view.width >= WHOLE_VIEW
