"""Teacher features of a whole data set, computed once. In order:

1. The plan says whose features of which data are kept, and how. A folder belongs to one plan.
2. If tokens are kept, the leading process fits their PCA on a fixed sample of the first part's images.
3. Images are dealt out in shards of 2048, in the order of the data; process r of W makes shards r, r + W, …
   What a shard holds depends on its images and the teacher alone, so a killed extraction that is resumed, on any
   number of processes, ends with the same bytes. Shards that are there are not made again.
4. The same for captions: each different one once, in the order in which they are first met.
   A folder that was begun with files of another size goes on with those.
5. The leading process writes the keys, and the manifest last.

The teacher sees the whole image, squeezed to its square (D19). Reading and resizing run ahead in threads.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm import tqdm

from dinorankclip import distributed, seeds
from dinorankclip.data.damage import Damage, refuse_passing
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.io import write_bytes
from dinorankclip.teachers import cache_format
from dinorankclip.teachers.cache_format import REDUCED, CacheLayout, fit_basis
from dinorankclip.teachers.caption_features import encode_captions, pool_words, text_record
from dinorankclip.teachers.frozen_teacher import Teacher, TextTeacher, whole_images
from dinorankclip.types import Source, UserError

BATCH = 64  # images the teacher sees at once
FIT_IMAGES, FIT_CAPTIONS = 1024, 4096  # of the PCA
HELD_OUT = ("val", "test")
IMAGE_BASIS, TEXT_BASIS = "image", "text"


def make_cache(
    folder: str | Path,
    parts: dict[str, Source],
    teacher: Teacher,
    text_teacher: TextTeacher | None = None,
    keeping: CacheLayout | None = None,
    max_pixels: int = MAX_PIXELS,
    show: bool = True,
) -> dict[str, Any]:
    """Make (or finish) the cache of `parts` (name → source, undivided). All processes call; returns the manifest."""
    folder = Path(folder)
    keeping = cache_format.as_begun(folder, keeping or CacheLayout())
    maker = _Maker(folder, parts, teacher, text_teacher, keeping, max_pixels, show)
    plan = maker.plan()
    distributed.leader_first(lambda: cache_format.claim(folder, plan))
    if (folder / cache_format.MANIFEST).is_file():
        manifest = cache_format.read_manifest(folder)
        maker.say(f"{folder} is complete already")
        return manifest
    try:
        maker.features(plan)
    except KeyboardInterrupt:
        maker.say(f"\nstopped: what is finished stays in {folder}; the same command goes on from there")
        raise
    distributed.wait_for_all()
    distributed.leader_first(lambda: maker.finish(plan))
    return cache_format.read_manifest(folder)


class _Maker:
    def __init__(
        self,
        folder: Path,
        parts: dict[str, Source],
        teacher: Teacher,
        text_teacher: TextTeacher | None,
        keeping: CacheLayout,
        max_pixels: int,
        show: bool,
    ) -> None:
        self.folder, self.parts, self.teacher, self.text_teacher = folder, parts, teacher, text_teacher
        self.keeping, self.max_pixels, self.show = keeping, max_pixels, show
        self.world = distributed.world()
        self._basis: dict[str, Tensor] | None = None
        self._captions: list[str] | None = None

    def say(self, text: str) -> None:
        if self.show and self.world.leads:
            print(text, flush=True)

    def plan(self) -> dict[str, Any]:
        teacher, size = self.teacher, self.teacher.input_size
        blank = teacher.dense(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        width = blank.tokens.shape[-1]
        plan: dict[str, Any] = {
            "format": cache_format.FORMAT,
            "teacher": teacher.name,
            "note": teacher.card.note,
            "weights": teacher.weights_hash,
            "preprocessing": _as_json(teacher.preprocessing),
            "grid": list(teacher.grid),
            "width": width,
            "summary_width": blank.summary.shape[-1],
            "reduced": min(REDUCED, width),
            "keep": self.keeping.keep,
            "coding": self.keeping.coding,
            "rows": self.keeping.rows,
            "captions": self.keeping.captions,
            "data": {
                part: {"fingerprint": source.fingerprint, "images": len(source)} for part, source in self.parts.items()
            },
            "text": None,
        }
        if self.max_pixels != MAX_PIXELS:  # else left out, so that caches made without this entry stay valid
            plan["max_pixels"] = self.max_pixels
        if self.text_teacher is not None:
            blank_text = self.text_teacher.tokens(["a photo"])
            text_width = blank_text.tokens.shape[-1]
            plan["text"] = {
                "teacher": self.text_teacher.name,
                "note": self.text_teacher.card.note,
                "weights": self.text_teacher.weights_hash,
                "summary_width": blank_text.summary.shape[-1],
                "reduced": min(REDUCED, text_width),
            }
        return plan

    def features(self, plan: dict[str, Any]) -> None:
        """This process's share of all files that are missing."""
        if self.keeping.keep != "gram":
            distributed.leader_first(self.fit)
        for part in self.parts:
            self.images(part, plan)
        if self.text_teacher is not None:
            self.captions(self.text_teacher, plan)

    # ------------------------------------------------------------------------------------------------------ PCA

    def fit(self) -> None:
        """Fit the bases on images and captions that depend on the data alone."""
        path = self.folder / cache_format.BASIS
        if path.exists():
            return
        source = next(iter(self.parts.values()))
        chosen = np.sort(seeds.permutation(0, 0, len(source))[:FIT_IMAGES])
        self.say(f"fitting the PCA of tokens on {len(chosen)} images")
        tokens = (
            self.teacher.dense(torch.stack(images)).tokens.flatten(0, 1).cpu()
            for images in _batches(image for image in self._whole(source, chosen) if image is not None)
        )
        bases = {IMAGE_BASIS: fit_basis(tokens)}
        if self.text_teacher is not None:
            captions = self._all_captions()
            some = [captions[i] for i in np.sort(seeds.permutation(0, 1, len(captions))[:FIT_CAPTIONS])]
            bases[TEXT_BASIS] = fit_basis(_words(self.text_teacher, some))
        write_bytes(path, save(bases))

    def _projection(self, name: str) -> np.ndarray | None:
        if self.keeping.keep == "gram":
            return None
        if self._basis is None:
            self._basis = load_file(self.folder / cache_format.BASIS)
        return self._basis[name].numpy()

    # --------------------------------------------------------------------------------------------------- images

    def images(self, part: str, plan: dict[str, Any]) -> None:
        source, rows = self.parts[part], self.keeping.rows
        record = cache_format.image_record(plan)
        todo = self._own_missing(part, cache_format.shard_count(len(source), rows))
        ranges = [range(number * rows, min(len(source), (number + 1) * rows)) for number in todo]
        self.say(
            f"{part}: {len(source)} images × {record.bytes} bytes = {len(source) * record.bytes / 1e6:.1f} MB"
            + (f"; {sum(map(len, ranges))} to go here" if sum(map(len, ranges)) < len(source) else "")
        )
        with self._bar(part, sum(map(len, ranges)), "image") as bar:
            for number, indices in zip(todo, ranges):
                data = np.zeros((len(indices), record.bytes), np.uint8)
                where: list[int] = []
                waiting: list[Tensor] = []
                for row, image in enumerate(self._whole(source, indices)):
                    if image is not None:
                        where.append(row)
                        waiting.append(image)
                    if waiting and (len(waiting) == BATCH or row == len(indices) - 1):
                        data[where] = self._encode(record, torch.stack(waiting))
                        where, waiting = [], []
                    bar.update(1)
                write_bytes(self.folder / cache_format.shard_name(part, number), data.tobytes())

    def _whole(self, source: Source, indices: Sequence[int] | np.ndarray) -> Iterator[Tensor | None]:
        return whole_images(source, indices, self.teacher.preprocessing, self.max_pixels, ahead=2 * BATCH)

    def _encode(self, record: cache_format.ImageRecord, images: Tensor) -> np.ndarray:
        seen = self.teacher.dense(images)
        tokens = seen.tokens.cpu().numpy()
        values = {"summary": seen.summary.cpu().numpy(), "gram": tokens}
        basis = self._projection(IMAGE_BASIS)
        if basis is not None:
            values["tokens"] = (tokens @ basis.T).reshape(len(tokens), -1)
        return record.encode(**values)

    # ------------------------------------------------------------------------------------------------- captions

    def captions(self, teacher: TextTeacher, plan: dict[str, Any]) -> None:
        captions, size = self._all_captions(), self.keeping.captions
        record, basis = text_record(plan), self._projection(TEXT_BASIS)
        todo = self._own_missing(cache_format.TEXT, cache_format.shard_count(len(captions), size))
        self.say(f"text: {len(captions)} different captions")
        with self._bar("text", sum(len(captions[n * size : (n + 1) * size]) for n in todo), "caption") as bar:
            for number in todo:
                some = captions[number * size : (number + 1) * size]
                data, ends = encode_captions(some, teacher, record, basis, bar.update)
                offsets = io.BytesIO()
                np.save(offsets, ends)
                write_bytes(self.folder / cache_format.offsets_name(number), offsets.getvalue())
                write_bytes(self.folder / cache_format.shard_name(cache_format.TEXT, number), data)

    def _all_captions(self) -> list[str]:
        """Each different caption once, in the order in which they are first met.

        Of held-out parts the first caption of an image: fidelity, their only reader, looks at no other.
        """
        if self._captions is None:
            found: dict[str, None] = {}
            for part, source in self.parts.items():
                most = 1 if part in HELD_OUT else None
                for index in range(len(source)):
                    try:
                        found.update(dict.fromkeys(source.captions(index)[:most]))
                    except Damage as damage:
                        refuse_passing([(source.key(index), damage.cause)])
            self._captions = list(found)
        return self._captions

    # ------------------------------------------------------------------------------------------------------ end

    def finish(self, plan: dict[str, Any]) -> None:
        for part, source in self.parts.items():
            self._write_keys(part, cache_format.hashes(source.key(index) for index in range(len(source))))
        if self.text_teacher is not None:
            self._write_keys(cache_format.TEXT, cache_format.hashes(self._all_captions()))
        damaged = sum(self._damaged(part, plan) for part in self.parts)
        licences = {"image": self.teacher.licence}
        if self.text_teacher is not None:
            licences["text"] = self.text_teacher.licence
        manifest = cache_format.finish(self.folder, plan, damaged, licences)
        size = sum(manifest["files"].values())
        lost = f", {damaged} damaged ones left out" if damaged else ""
        self.say(f"{self.folder}: {sum(map(len, self.parts.values()))} images{lost}, {size / 1e6:.1f} MB")

    def _write_keys(self, part: str, keys: np.ndarray) -> None:
        if len(np.unique(keys)) != len(keys):
            raise UserError(f"two samples of '{part}' have the same key: a cache finds features by key")
        buffer = io.BytesIO()
        np.save(buffer, keys)
        write_bytes(self.folder / cache_format.keys_name(part), buffer.getvalue())

    def _damaged(self, part: str, plan: dict[str, Any]) -> int:
        size, count = cache_format.image_record(plan).bytes, 0
        for number in range(cache_format.shard_count(len(self.parts[part]), self.keeping.rows)):
            rows = np.memmap(self.folder / cache_format.shard_name(part, number), np.uint8, "r").reshape(-1, size)
            count += int((rows[:, 0] == 0).sum())
        return count

    def _own_missing(self, part: str, shards: int) -> list[int]:
        own = range(self.world.rank, shards, self.world.size)
        return [number for number in own if not (self.folder / cache_format.shard_name(part, number)).exists()]

    def _bar(self, what: str, total: int, unit: str) -> tqdm:
        """Rate and time left of this process's share."""
        hidden = not (self.show and self.world.leads) or total == 0
        return tqdm(total=total, desc=what, unit=unit, disable=hidden, mininterval=1.0, dynamic_ncols=True)


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    items = iter(items)
    while batch := list(itertools.islice(items, BATCH)):
        yield batch


def _words(teacher: TextTeacher, captions: Sequence[str]) -> Iterator[Tensor]:
    for batch in _batches(captions):
        seen = teacher.tokens(batch)
        words, exists = pool_words(seen.tokens, seen.word_ids)
        yield words[exists].cpu()


def _as_json(preprocessing: Any) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(preprocessing).items()}
