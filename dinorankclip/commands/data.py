"""`dinorankclip data make|pack|pack-classes|families|show|check`: make, convert and look at pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dinorankclip.commands.data_check import check
from dinorankclip.commands.shared import call_verb, check_at_least, did_you_mean
from dinorankclip.config import FindingSettings
from dinorankclip.io import home
from dinorankclip.types import UserError


def make(
    what: Annotated[Literal["scenes"], tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")] = home() / "scenes",  # noqa: B008 (a path)
    seed: int = 0,
    train: int = 8000,
    val: int = 1000,
    test: int = 2000,
    size: int = 64,
    workers: int | None = None,
) -> None:
    """Make the built-in pairs: drawn scenes with captions.

    Examples:
      dinorankclip data make scenes built/scenes --train 8000 --size 64

    Args:
        what: The kind of data; scenes is the only one.
        out: The folder to write.
        seed: Another seed gives other scenes.
        train: Training scenes.
        val: Validation scenes.
        test: Test scenes.
        size: Side of the images in pixels.
        workers: Processes that draw; by default one per core.
    """
    from dinorankclip.data.scenes.make import make_scenes

    check_at_least(0, seed=seed, train=train, val=val, test=test)
    check_at_least(1, size=size, workers=workers)
    folder = make_scenes(out, seed=seed, train=train, val=val, test=test, size=size, workers=workers)
    print(f"{train} + {val} + {test} scenes in {folder}; look at them: dinorankclip data show {folder / 'pairs'}")


def pack(
    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: Literal["shards", "table", "folder"] = "shards",
    shard_size: int = 1000,
    split: Literal["train", "val", "test"] | None = None,
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Convert pairs, keeping the bytes of the images; damaged pairs are left out and counted.

    Examples:
      dinorankclip data pack photos/pairs.csv packed --to shards --reading.caption-column title

    Args:
        where: Anything that --data of train takes: shards, table, folder, scenes, pipe:.
        out: The new folder.
        to: Shards in the clip-benchmark layout, a CSV with images, or a folder of images with .txt files.
        shard_size: Pairs in a shard.
        split: Only this part (carved if the data has no such part); by default all parts.
        reading: How the pairs are found.
    """
    from dinorankclip.data.damage import DamageCount
    from dinorankclip.data.open_data import open_pairs, splits_of
    from dinorankclip.data.pack import Writer, good_pairs, new_folder

    check_at_least(1, shard_size=shard_size)
    if where.startswith("pipe:"):  # packing has no epochs, and undivided data is packed whole
        reading = dataclasses.replace(reading, epoch_samples=reading.epoch_samples or 1)
    damage = DamageCount(max_damaged=1.0)
    counts: dict[str, int] = {}
    with new_folder(out) as folder:
        writer = Writer(folder, to, shard_size)
        for part in (split,) if split else splits_of(where, reading):
            source = open_pairs(where, reading, part)
            name = "" if part == "all" else part
            counts[part] = writer.write(name, good_pairs(source, reading.max_pixels, damage, name or "pairs"))
    packed = ", ".join(f"{part} {count}" if part != "all" else f"{count}" for part, count in counts.items())
    print(f"{packed} pairs in {out}")
    if damage.keys:
        print(f"{len(damage.keys)} damaged pair{'s' * (len(damage.keys) > 1)} left out:\n{damage.summary()}")


def pack_classes(
    where: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    split: Literal["train", "val", "test"] = "test",
    listed: Path | None = None,
    like: Path | None = None,
    template: tuple[str, ...] = (),
    shard_size: int = 1000,
) -> None:
    """Pack a folder with a subfolder of images for each class as an evaluation set for `score`.

    Examples:
      dinorankclip data pack-classes photos-by-class sets/mine --template 'a photo of a {c}.'

    Args:
        where: The folder of class folders.
        out: The set; a second call adds another part to it.
        split: The part to write.
        listed: A text file with the images of this part, one path inside IN per line; by default all images.
        like: A set with the same classes, whose names and prompts are copied.
        template: Prompts with {c} for the class name.
        shard_size: Images in a shard.
    """
    from dinorankclip.data import pack
    from dinorankclip.data.open_data import listed_paths

    check_at_least(1, shard_size=shard_size)
    if listed is not None and not listed.is_file():
        raise UserError(f"--listed {listed}: there is no such file")
    names = listed_paths(listed) if listed else None
    count, classes = pack.pack_classes(
        where, out, split, listed=names, like=like, templates=template, shard_size=shard_size
    )
    print(f"{count} images of {classes} classes in {out / split}")


def families(
    where: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SET")],
    by: Literal["first-word", "last-word"] | None = None,
    table: Path | None = None,
    labels: tuple[Path, Path] | None = None,
    out: Path | None = None,
) -> None:
    """Write the families of a set's classes, so that `score` says which errors of its probe stay in the family.

    Examples:
      dinorankclip data families sets/cub200 --by last-word
      dinorankclip data families sets/cars --by first-word
      dinorankclip data families sets/fgvc_aircraft --labels images_variant_test.txt images_manufacturer_test.txt

    Args:
        where: A classification set.
        by: Group the names of the classes by this word: the last of birds (… Tanager), the first of cars (Audi …).
        table: A .csv or .tsv file with the columns class and family, such as a taxonomy.
        labels: Two files of lines KEY LABEL: classes of images, and their families. FGVC-Aircraft has such files.
        out: The file to write; by default families.json in SET.
    """
    from dinorankclip.data.benchmark_sets import FAMILIES, read_class_names
    from dinorankclip.data.families import families_by_labels, families_by_table, families_by_word
    from dinorankclip.io import write_json

    if sum(way is not None for way in (by, table, labels)) != 1:
        raise UserError("families come from one place: --by first-word, --by last-word, --table FILE or --labels A B")
    names = read_class_names(where)
    if by is not None:
        found = families_by_word(names, "first" if by == "first-word" else "last")
    elif table is not None:
        found = families_by_table(names, table)
    else:
        assert labels is not None, "one of the three was given"
        found = families_by_labels(names, *labels)
    if not found:
        raise UserError(f"no two classes of {where} share a family")
    out = out or where / FAMILIES
    write_json(out, found)
    joined = sum(map(len, found.values()))
    largest = max(found, key=lambda family: len(found[family]))
    print(f"{len(found)} families of {joined} classes in {out}; {len(names) - joined} classes stand alone")
    print(f"the largest: {largest} ({len(found[largest])}): {', '.join(found[largest][:5])}")


def show(
    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")] = "scenes",
    out: Path = Path("contact-sheet.png"),
    n: int = 24,
    split: Literal["train", "val", "test", "all"] | None = None,
    seed: int = 0,
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Write a contact sheet: random pairs with their captions.

    Examples:
      dinorankclip data show scenes --split val --n 24 --out scenes.html

    Args:
        where: Anything that --data of train takes: shards, table, folder, scenes.
        out: A .png picture, or an .html page, which shows every script and all captions.
        n: Number of pairs.
        split: The part to show; by default the first.
        seed: Another seed gives other pairs.
        reading: How the pairs are found.
    """
    from dinorankclip.data import inspect
    from dinorankclip.data.open_data import open_pairs, splits_of
    from dinorankclip.data.streams import is_stream, read_into_memory

    check_at_least(0, seed=seed)
    check_at_least(1, n=n)
    if out.suffix.lower() not in (".png", ".html"):
        raise UserError(f"--out must end in .png or .html, not {out.suffix or 'nothing'!r}")
    if where.startswith("pipe:"):
        reading = dataclasses.replace(reading, epoch_samples=reading.epoch_samples or 1)
    part = split or splits_of(where, reading)[0]
    source = open_pairs(where, reading, part)
    if is_stream(source):
        source = read_into_memory(source.shards, n)
    shown, damage = inspect.choose(source, n, seed, reading.max_pixels)
    if not shown:
        raise UserError(f"no pair of {where} can be shown:\n{damage.summary()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".png":
        inspect.as_png(shown, out)
    else:
        from dinorankclip.report.html import write_contact_sheet

        write_contact_sheet(out, shown, f"{where}, {part}: {len(shown)} of {len(source)} pairs")
    print(f"{len(shown)} of {len(source)} pairs in {out}")
    if damage.keys:
        print(f"damaged pairs met on the way:\n{damage.summary()}")


VERBS: dict[str, Callable[..., None]] = {
    "make": make,
    "pack": pack,
    "pack-classes": pack_classes,
    "families": families,
    "show": show,
    "check": check,
}


def help_text() -> str:
    docs = {name: [line.strip() for line in (verb.__doc__ or "").splitlines()] for name, verb in VERBS.items()}
    lines = [f"usage: dinorankclip data {'|'.join(VERBS)} …", ""]
    lines += [f"  {name:<12}  {doc[0]}" for name, doc in docs.items()]
    lines += ["", "Examples:", *(f"  {doc[doc.index('Examples:') + 1]}" for doc in docs.values())]
    return "\n".join([*lines, "", "dinorankclip data make --help describes the flags of make, and so on."])


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text())
    elif argv[0] in VERBS:
        call_verb(VERBS[argv[0]], f"data {argv[0]}", argv[1:])
    else:
        raise UserError(f"data has no '{argv[0]}': {did_you_mean(argv[0], VERBS, cutoff=0.4)}")
