"""Data of `bench.finetune`: real sets as tables of pairs, and the two mixtures on which the starting models learn.

Sets of names get the caption "a photo of a NAME". Every fourth photo of a test part is held out as validation where a
set has none. Photos are unpacked once below the folder of caches; tables name them.
"""

from __future__ import annotations

import csv
import tarfile
from collections.abc import Iterator
from pathlib import Path

from dinorankclip.io import home

BUILT = home() / "finetune"
PARTS = ("train", "val", "test")
NAMES = ("caltech101", "cub100", "pacs-photo", "flowers5")
TASKS = {"flickr8k": 2, "cub100": 2, "caltech101": 1}  # every n-th held-out photo of a set is scored
MIXTURES = {"captions": ("flickr8k", "pacs-photo", "flowers5"), "names": NAMES}


def held_out(mixture: str) -> str:
    """Name the general set of a start: a third of its held-out photos, every second one of them for validation."""
    return f"{mixture}-held-out"


def task_of(name: str) -> str:
    """Name the data of a task: all training photos of a set, and some of the held-out ones, which are scored often."""
    return f"{name}-task"


def _every(step: int, rows: list[tuple[str, str]], first: int = 0) -> list[tuple[str, str]]:
    photos = list(dict.fromkeys(photo for photo, _ in rows))[first::step]
    kept = set(photos)
    return [row for row in rows if row[0] in kept]


def pairs_of(folder: Path, part: str, out: Path) -> Iterator[tuple[str, str]]:
    """Unpack a part of a set in the clip-benchmark layout; yield path and caption of each pair."""
    names = (folder / "classnames.txt").read_text().splitlines() if (folder / "classnames.txt").is_file() else []
    for shard in sorted((folder / part).glob("*.tar")):
        with tarfile.open(shard) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
        for name in sorted(name for name in files if name.endswith(".jpg")):
            key = name.removesuffix(".jpg")
            photo = out / f"{folder.name}-{part}-{shard.stem}-{key.replace('/', '-')}.jpg"
            if not photo.is_file():
                photo.write_bytes(files[name])
            if names:
                yield photo.name, f"a photo of a {names[int(files[f'{key}.cls'])]}"
            else:
                yield from ((photo.name, caption) for caption in files[f"{key}.txt"].decode().splitlines() if caption)


def prepare(data: Path) -> dict[str, Path]:
    """Return a folder with train.csv, val.csv and test.csv for each set and mixture; make those that are missing."""
    photos = BUILT / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, list[tuple[str, str]]]] = {}
    names = ("flickr8k", *NAMES, *MIXTURES, *map(held_out, MIXTURES), *map(task_of, TASKS))
    folders = {name: BUILT / "data" / name for name in names}
    if all((folder / "test.csv").is_file() for folder in folders.values()):
        return folders
    for name in ("flickr8k", *NAMES):
        rows[name] = {
            part: list(pairs_of(data / name, part, photos)) for part in PARTS if (data / name / part).is_dir()
        }
        if "val" not in rows[name]:
            test = rows[name]["test"]
            rows[name] |= {"val": test[::4], "test": [row for at, row in enumerate(test) if at % 4]}
    for mixture, sets in MIXTURES.items():
        rows[mixture] = {part: [row for name in sets for row in rows[name][part]] for part in PARTS}
        # Both parts are drawn from the same photos: a floor that holds on one says something of the other.
        held = rows[mixture]["val"] + rows[mixture]["test"]
        rows[held_out(mixture)] = {"val": _every(6, held), "test": _every(6, held, first=3)}
    for name, step in TASKS.items():
        rows[task_of(name)] = rows[name] | {part: _every(step, rows[name][part]) for part in ("val", "test")}
    for name, folder in folders.items():
        if (folder / "test.csv").is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for part in rows[name]:
            with open(folder / f"{part}.csv", "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(("image", "caption"))
                writer.writerows((f"../../photos/{photo}", caption) for photo, caption in rows[name][part])
    return folders
