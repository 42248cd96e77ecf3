"""Write a classification set in the clip-benchmark layout from a folder with one subfolder of images a class.

Subfolders in their natural order are the classes 0, 1, …; where all of them are numbers, the number is the class index
(ImageNetV2 is published like that), and names come from another set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from dinorankclip.data.damage import Damage
from dinorankclip.data.images import decode, read_header
from dinorankclip.data.labelled import CLASS_NAMES, TEMPLATES, read_class_names, read_templates
from dinorankclip.data.packing import kind_of
from dinorankclip.data.tars import IMAGE_KINDS
from dinorankclip.types import UserError
from dinorankclip.whole_files import whole_folder


def class_folders(folder: Path, names: Sequence[str] | None = None) -> dict[str, int]:
    """Subfolder → class index. `names`: of the set this one shares its classes with."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    shown = (child for child in folder.iterdir() if not child.name.startswith("."))
    inside = sorted((child.name for child in shown if child.is_dir()), key=_natural)
    if not inside:
        raise UserError(f"{folder} has no subfolders: one for each class is expected")
    if all(name.isdigit() for name in inside):
        if names is None:
            raise UserError(f"the subfolders of {folder} are numbers, not names: give --like SET, a set with the names")
        indices = {name: int(name) for name in inside}
    elif names is not None:
        places = {name: place for place, name in enumerate(names)}
        strangers = [name for name in inside if class_name(name) not in places]
        if strangers:
            raise UserError(f"{folder / strangers[0]} is none of the {len(names)} classes of the other set")
        times = Counter(names)
        if twins := [name for name in inside if times[class_name(name)] > 1]:
            raise UserError(
                f"{folder / twins[0]} is the name of {times[class_name(twins[0])]} classes of the other set: "
                "name the subfolders by class index instead"
            )
        indices = {name: places[class_name(name)] for name in inside}
    else:
        return {name: index for index, name in enumerate(inside)}
    if max(indices.values()) >= len(names):
        raise UserError(f"{folder} has a class {max(indices.values())}, the other set only {len(names)} classes")
    return indices


def class_name(folder: str) -> str:
    """`001.Black_footed_Albatross` → `Black footed Albatross`."""
    return re.sub(r"^\d+[._-]", "", folder).replace("_", " ").strip() or folder


def pack_classes(
    folder: Path,
    out: Path,
    split: str = "test",
    *,
    listed: Sequence[str] | None = None,
    like: Path | None = None,
    templates: Sequence[str] = (),
    shard_size: int = 1000,
) -> tuple[int, int]:
    """Write one part; returns its numbers of images and classes. A damaged image is an error.

    `listed` are the images of this part, as paths inside `folder`; by default all of them. `like` is a set whose class
    names and templates are taken over. Further parts can be added to `out`, if their classes are the same.
    """
    if (out / split).exists():
        raise UserError(f"{out / split} exists already; remove it or choose another --split")
    names = read_class_names(like) if like is not None else None
    indices = class_folders(folder, names)
    names = names or tuple(class_name(name) for name in indices)
    if (out / CLASS_NAMES).is_file() and read_class_names(out) != tuple(names):
        raise UserError(f"{out} has other classes than {folder}")
    prompts = tuple(templates) or (read_templates(like)[0] if like is not None else read_templates(out)[0])
    out.mkdir(parents=True, exist_ok=True)
    with whole_folder(out / split) as aside:
        count = _write_shards(aside, _labelled_files(folder, indices, listed), shard_size)
        if not count:
            raise UserError(f"no images in the class folders of {folder}")
        (out / CLASS_NAMES).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        (out / TEMPLATES).write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
        (out / "dataset_type.txt").write_text("classification\n")
    return count, len(names)


def _is_image(path: Path) -> bool:
    return path.suffix[1:].lower() in IMAGE_KINDS and not path.name.startswith(".")


def _labelled_files(folder: Path, indices: dict[str, int], listed: Sequence[str] | None) -> Iterator[tuple[Path, int]]:
    if listed is None:
        for name, index in indices.items():
            files = sorted(path for path in (folder / name).rglob("*") if _is_image(path))
            yield from ((path, index) for path in files)
        return
    for line in listed:
        path = folder / line
        if not path.is_file():
            raise UserError(f"{path} is listed but is not there")
        if (name := Path(line).parts[0]) not in indices:
            raise UserError(f"{path} is listed but is in none of the class folders")
        yield path, indices[name]


def _write_shards(folder: Path, files: Iterable[tuple[Path, int]], shard_size: int) -> int:
    from tqdm import tqdm
    from webdataset import TarWriter

    numbered = enumerate(tqdm(files, "packing", unit="image", leave=False, disable=None))
    count = shards = 0
    while some := list(islice(numbered, shard_size)):
        with TarWriter(str(folder / f"{shards}.tar"), encoder=False, mtime=0, user="", group="") as tar:
            for number, (path, label) in some:
                image = _whole(path)
                tar.write({"__key__": f"s{number:07d}", kind_of(image): image, "cls": str(label).encode()})
        count += len(some)
        shards += 1
    (folder / "nshards.txt").write_text(f"{shards}\n")
    return count


def _whole(path: Path) -> bytes:
    image = path.read_bytes()
    try:
        decode(image, read_header(image))
    except Damage as damage:
        raise UserError(f"{path} cannot be used: {damage}") from None
    return image


def _natural(name: str) -> list[tuple[int, int, str]]:
    pieces = (piece for piece in re.split(r"(\d+)", name) if piece)
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece.lower()) for piece in pieces]
