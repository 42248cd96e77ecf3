"""The sets the generator writes, and any sample of them by number: a pure function of seed, split and index."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dinorankclip.data.scenes.composition import compose, compose_single
from dinorankclip.data.scenes.kinds import FAMILIES, KINDS, members
from dinorankclip.data.scenes.rendering import RENDITIONS, jpeg, render
from dinorankclip.data.scenes.scene import VERSION, CaptionedScene, Chance, to_json
from dinorankclip.data.scenes.wording import caption_scene
from dinorankclip.types import UserError

OTHER_RENDITIONS = tuple(name for name in RENDITIONS if name != "plain")
FINE_KINDS = tuple(name for name in KINDS if KINDS[name].family is not None)

# Words in front of {c} are ones that captions use; none of them asks for "a" or "an" before the class name.
TEMPLATES = (
    "A picture of one {c}.",
    "One {c}.",
    "A small {c}.",
    "A large {c}.",
    "A red {c}.",
    "A blue {c}.",
    "A green {c}.",
    "A yellow {c}.",
    "A white {c}.",
    "A black {c}.",
    "A brown {c}.",
    "A grey {c}.",
)


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
        """Class names in order; None for pairs."""
        if self.folder == "pairs":
            return None
        return FINE_KINDS if self.folder == "fine" else tuple(KINDS)


@dataclass(frozen=True)
class SampleSpec:
    """One sample to make."""

    part: SetSplit
    index: int
    seed: int
    size: int


def captioned_scene(seed: int, split: str, index: int) -> CaptionedScene:
    """The scene and captions of sample `index` of a split of the pairs ("train", "val", "test")."""
    name = f"pairs/{split}"
    return caption_scene(compose(Chance(seed, name, index, "content")), Chance(seed, name, index, "captions"))


def make_sample(job: SampleSpec) -> dict[str, str | bytes]:
    """A sample as the tar writer wants it: its key and, by extension, the bytes of its files."""
    return {"__key__": f"{job.part.split}-{job.index:06d}", **sample_files(job)}


def sample_files(job: SampleSpec) -> dict[str, bytes]:
    sample: dict[str, bytes] = {}
    classes = job.part.classes
    # Renditions draw the very things of the plain set of that split, so that scores differ by the rendition alone.
    source = f"{job.part.folder.partition('-')[0]}/{job.part.split}"
    if classes is None:
        captioned = captioned_scene(job.seed, job.part.split, job.index)
        scene = captioned.scene
        sample["txt"] = "\n".join(captioned.captions).encode()
        sample["json"] = json.dumps(to_json(captioned), separators=(",", ":")).encode()
    else:
        label = job.index % len(classes)
        scene = compose_single(classes[label], Chance(job.seed, source, job.index, "content"))
        sample["cls"] = str(label).encode()
    drawing = Chance(job.seed, source, job.index, "drawing")
    sample["jpg"] = jpeg(render(scene, drawing, job.size, job.part.rendition))
    return sample


def families() -> dict[str, list[str]]:
    """Class names of the fine-grained set by family."""
    return {family: list(members(family)) for family in FAMILIES}


# -------- make
# Writes the built-in scenes to a folder, in the layout of the public clip-benchmark WebDataset sets.
#
#     folder/pairs/{train,val,test}/<n>.tar      retrieval: key.jpg, key.txt (a caption a line), key.json (the scene)
#     folder/kinds/{train,test}/<n>.tar          classification of single things: key.jpg, key.cls
#     folder/kinds-<rendition>/test/<n>.tar      the things of kinds/test in another rendition
#     folder/fine/{train,test}/<n>.tar           kinds of fine-grained families alone; families.json lists these
#     folder/scenes.json                         what was asked for, written last
#
# The folder appears under its name only when it is whole: it is written beside it and then renamed.

SHARD = 1000  # samples in a tar
CHUNK = 32  # samples a worker makes at a time
STALE_AFTER = 24 * 3600  # seconds after which an unfinished folder is taken for a killed run's and removed
MANIFEST = "scenes.json"


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
    """Write the scenes unless the folder holds these very ones; refuse a folder that holds anything else.

    Bytes depend on the arguments before `workers` alone. Renditions have as many samples as `kinds_test`.
    """
    parts = [
        SetSplit("pairs", "train", train),
        SetSplit("pairs", "val", val),
        SetSplit("pairs", "test", test),
        SetSplit("kinds", "train", kinds_train),
        SetSplit("kinds", "test", kinds_test),
        *(SetSplit(f"kinds-{rendition}", "test", kinds_test) for rendition in OTHER_RENDITIONS),
        SetSplit("fine", "train", fine_train),
        SetSplit("fine", "test", fine_test),
    ]
    manifest = {"version": VERSION, "seed": seed, "size": size, "counts": {part.name: part.count for part in parts}}
    folder = Path(folder)
    if _holds(folder, manifest):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
    try:
        jobs = (SampleSpec(part, index, seed, size) for part in parts for index in range(part.count))
        _write_shards(unfinished, jobs, sum(part.count for part in parts), workers or _cores())
        _write_descriptions(unfinished, parts)
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        unfinished.chmod(0o755)  # mkdtemp makes folders that only their owner can read
        _publish(unfinished, folder, manifest)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _holds(folder: Path, manifest: dict[str, Any]) -> bool:
    """Whether the folder holds what the manifest asks for; False if there is nothing there yet."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        raise UserError(f"{folder} is there but holds no built-in scenes; name another folder") from None
    if found == manifest:
        return True
    differing = {key for key in manifest.keys() | found.keys() if manifest.get(key) != found.get(key)}
    details = "; ".join(f"{key}: has {found.get(key)}, wanted {manifest.get(key)}" for key in sorted(differing))
    raise UserError(f"{folder} holds other scenes ({details}); remove it or name another folder")


def _publish(unfinished: Path, folder: Path, manifest: dict[str, Any]) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process may have been faster: fine if it made the same.
        if not _holds(folder, manifest):
            raise


def _prefix(folder: Path) -> str:
    return f".{folder.name}.unfinished-"


def _remove_stale(folder: Path) -> None:
    """Clear up after runs that were killed. Age decides, since their owner may live on another machine."""
    for left_over in folder.parent.glob(_prefix(folder) + "*"):
        if time.time() - left_over.stat().st_mtime > STALE_AFTER:
            shutil.rmtree(left_over, ignore_errors=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _made(jobs: Iterator[SampleSpec], workers: int) -> Iterator[tuple[SampleSpec, dict[str, str | bytes]]]:
    """Jobs with their samples, in order."""
    if workers == 1:
        yield from ((job, make_sample(job)) for job in jobs)
        return
    # Workers only draw. Forked ones start at once and need no importable main module; fall back where there are none.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    listed = list(jobs)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))
    try:
        yield from zip(listed, pool.map(make_sample, listed, chunksize=CHUNK))
    finally:
        pool.shutdown(cancel_futures=True)


def _write_shards(folder: Path, jobs: Iterator[SampleSpec], total: int, workers: int) -> None:
    from webdataset import TarWriter  # takes two seconds to import

    made = tqdm(_made(jobs, workers), total=total, desc="drawing scenes", unit=" pictures", disable=None)
    for (part, shard), samples in groupby(made, key=lambda pair: (pair[0].part, pair[0].index // SHARD)):
        (folder / part.name).mkdir(parents=True, exist_ok=True)
        path = folder / part.name / f"{shard}.tar"
        with TarWriter(str(path), encoder=False, user="drc", group="drc", mode=0o644, mtime=0) as tar:
            for _, sample in samples:
                tar.write(sample)


def _write_descriptions(folder: Path, parts: list[SetSplit]) -> None:
    """The small text files beside the tars."""
    for part in parts:
        top = folder / part.folder
        (top / part.split).mkdir(parents=True, exist_ok=True)  # a part of no samples is still a part
        (top / part.split / "nshards.txt").write_text(f"{-(-part.count // SHARD)}\n")
        (top / "dataset_type.txt").write_text("retrieval\n" if part.classes is None else "classification\n")
        if part.classes is not None:
            (top / "classnames.txt").write_text("\n".join(part.classes) + "\n")
            (top / "zeroshot_classification_templates.txt").write_text("\n".join(TEMPLATES) + "\n")
    (folder / "fine" / "families.json").write_text(json.dumps(families(), indent=1) + "\n")
