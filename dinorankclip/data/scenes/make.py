"""Writes the built-in scenes to a folder, in the layout of the public clip-benchmark WebDataset sets.

    folder/pairs/{train,val,test}/<n>.tar      retrieval: key.jpg, key.txt (a caption a line), key.json (the scene)
    folder/kinds/{train,test}/<n>.tar          classification of single things: key.jpg, key.cls
    folder/kinds-<rendition>/test/<n>.tar      the things of kinds/test in another rendition
    folder/fine/{train,test}/<n>.tar           kinds of fine-grained families alone, listed in families.json
    folder/scenes.json                         seed, size and counts, written last

A sample is a pure function of seed, split and index. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dinorankclip.checked_files import UnfitFile, read_object
from dinorankclip.data.scenes.composition import compose, compose_single
from dinorankclip.data.scenes.kinds import FAMILIES, KINDS, members
from dinorankclip.data.scenes.rendering import RENDITIONS, jpeg, render
from dinorankclip.data.scenes.scene import VERSION, CaptionedScene, Chance, to_json
from dinorankclip.data.scenes.wording import caption_scene
from dinorankclip.io import whole_folder
from dinorankclip.system import start_method, usable_cores
from dinorankclip.types import UserError

MANIFEST = "scenes.json"
SHARD = 1000  # samples in a tar
CHUNK = 32  # samples that a worker makes at a time
FINE_KINDS = tuple(name for name in KINDS if KINDS[name].family is not None)
# Captions use the words in front of {c}, and none of them asks for "a" or "an" before the class name.
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey")
TEMPLATES = ("A picture of one {c}.", "One {c}.", "A small {c}.", "A large {c}.", *(f"A {c} {{c}}." for c in COLOURS))


@dataclass(frozen=True)
class SetSplit:
    """One split of one set: `folder`/`split`, with `count` samples."""

    folder: str
    split: str
    count: int

    @property
    def name(self) -> str:
        return f"{self.folder}/{self.split}"

    @property
    def rendition(self) -> str:
        return self.folder.partition("-")[2] or "plain"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the class names in order, or None for pairs."""
        if self.folder == "pairs":
            return None
        return FINE_KINDS if self.folder == "fine" else tuple(KINDS)


@dataclass(frozen=True)
class SampleSpec:
    """Determines every byte of one sample."""

    part: SetSplit
    index: int
    seed: int
    size: int


def captioned_scene(seed: int, split: str, index: int) -> CaptionedScene:
    """Return the scene and captions of sample `index` of a split of the pairs ("train", "val", "test")."""
    name = f"pairs/{split}"
    return caption_scene(compose(Chance(seed, name, index, "content")), Chance(seed, name, index, "captions"))


def make_sample(spec: SampleSpec) -> dict[str, str | bytes]:
    """Return a sample for the tar writer: its key and, by extension, the bytes of its files."""
    return {"__key__": f"{spec.part.split}-{spec.index:06d}", **sample_files(spec)}


def sample_files(spec: SampleSpec) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    classes = spec.part.classes
    # Renditions draw the very things of the plain set of that split, so that scores differ by the rendition alone.
    source = f"{spec.part.folder.partition('-')[0]}/{spec.part.split}"
    if classes is None:
        captioned = captioned_scene(spec.seed, spec.part.split, spec.index)
        scene = captioned.scene
        files["txt"] = "\n".join(captioned.captions).encode()
        files["json"] = json.dumps(to_json(captioned), separators=(",", ":")).encode()
    else:
        label = spec.index % len(classes)
        scene = compose_single(classes[label], Chance(spec.seed, source, spec.index, "content"))
        files["cls"] = str(label).encode()
    drawing = Chance(spec.seed, source, spec.index, "drawing")
    files["jpg"] = jpeg(render(scene, drawing, spec.size, spec.part.rendition))
    return files


def make_scenes(
    folder: Path,
    *,
    seed: int = 0,
    train: int = 8000,
    val: int = 1000,
    test: int = 2000,
    size: int = 64,
    kinds_train: int = 2000,
    kinds_test: int = 1000,
    fine_train: int = 1500,
    fine_test: int = 1000,
    workers: int | None = None,
) -> Path:
    """Write the scenes unless the folder holds these very scenes; refuse a folder that holds anything else.

    Bytes depend on the arguments before `workers` alone. Renditions have as many samples as `kinds_test`.
    """
    counts = {"pairs/train": train, "pairs/val": val, "pairs/test": test}
    counts |= {"kinds/train": kinds_train, "kinds/test": kinds_test}
    counts |= {f"kinds-{rendition}/test": kinds_test for rendition in RENDITIONS if rendition != "plain"}
    counts |= {"fine/train": fine_train, "fine/test": fine_test}
    manifest = {"version": VERSION, "seed": seed, "size": size, "counts": counts}
    folder = Path(folder)
    if _holds(folder, manifest):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    parts = [SetSplit(name.partition("/")[0], name.partition("/")[2], count) for name, count in counts.items()]
    specs = (SampleSpec(part, index, seed, size) for part in parts for index in range(part.count))
    try:
        with whole_folder(folder) as unfinished:
            _write_shards(unfinished, specs, sum(counts.values()), workers or usable_cores())
            _write_descriptions(unfinished, parts)
            (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    except OSError:
        # Another process may have been faster: fine if it made the same.
        if not _holds(folder, manifest):
            raise
    return folder


def _holds(folder: Path, manifest: dict[str, Any]) -> bool:
    """Return whether the folder holds the scenes of the manifest; False if it is absent or empty."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        stored = read_object(folder / MANIFEST)
    except (OSError, UnfitFile):
        raise UserError(f"{folder} is there but holds no built-in scenes; name another folder") from None
    if stored == manifest:
        return True
    differing = {key for key in manifest.keys() | stored.keys() if manifest.get(key) != stored.get(key)}
    details = "; ".join(f"{key}: has {stored.get(key)}, wanted {manifest.get(key)}" for key in sorted(differing))
    raise UserError(f"{folder} holds other scenes ({details}); remove it or name another folder")


def _made(specs: Iterator[SampleSpec], workers: int) -> Iterator[tuple[SampleSpec, dict[str, str | bytes]]]:
    """Yield specs with their samples, in order."""
    if workers == 1:
        yield from ((spec, make_sample(spec)) for spec in specs)
        return
    # Workers only draw. Forked workers start at once and need no importable main module.
    listed = list(specs)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(start_method()))
    try:
        yield from zip(listed, pool.map(make_sample, listed, chunksize=CHUNK))
    finally:
        pool.shutdown(cancel_futures=True)


def _write_shards(folder: Path, specs: Iterator[SampleSpec], total: int, workers: int) -> None:
    from webdataset import TarWriter  # takes two seconds to import

    made = tqdm(_made(specs, workers), total=total, desc="drawing scenes", unit=" pictures", disable=None)
    for (part, shard), samples in groupby(made, key=lambda pair: (pair[0].part, pair[0].index // SHARD)):
        (folder / part.name).mkdir(parents=True, exist_ok=True)
        path = folder / part.name / f"{shard}.tar"
        with TarWriter(str(path), encoder=False, user="drc", group="drc", mode=0o644, mtime=0) as tar:
            for _, sample in samples:
                tar.write(sample)


def _write_descriptions(folder: Path, parts: list[SetSplit]) -> None:
    """Write the small text files beside the tars."""
    for part in parts:
        top = folder / part.folder
        (top / part.split).mkdir(parents=True, exist_ok=True)  # also for a part without samples
        (top / part.split / "nshards.txt").write_text(f"{-(-part.count // SHARD)}\n", encoding="utf-8")
        (top / "dataset_type.txt").write_text(
            "retrieval\n" if part.classes is None else "classification\n", encoding="utf-8"
        )
        if part.classes is not None:
            (top / "classnames.txt").write_text("\n".join(part.classes) + "\n", encoding="utf-8")
            (top / "zeroshot_classification_templates.txt").write_text("\n".join(TEMPLATES) + "\n", encoding="utf-8")
    families = {family: list(members(family)) for family in FAMILIES}
    (folder / "fine" / "families.json").write_text(json.dumps(families, indent=1) + "\n", encoding="utf-8")
