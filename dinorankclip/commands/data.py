"""`dinorankclip data make|pack|pack-classes|show`: make the built-in pairs, convert data, look at pairs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dinorankclip.commands.shared import check_at_least
from dinorankclip.config import FindingSettings
from dinorankclip.types import RawSample, Source, UserError

if TYPE_CHECKING:
    from dinorankclip.data.damage import DamageCount
    from dinorankclip.data.streams import PipeSource

EXAMPLES = {
    "make": "dinorankclip data make scenes built/scenes --train 8000 --size 64",
    "pack": "dinorankclip data pack photos/pairs.csv packed --to shards --reading.caption-column title",
    "pack-classes": "dinorankclip data pack-classes photos-by-class sets/mine --template 'a photo of a {c}.'",
    "show": "dinorankclip data show scenes --split val --n 24 --out scenes.html",
}


def make(
    what: Annotated[Literal["scenes"], tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")] = Path("built/scenes"),
    seed: int = 0,
    train: int = 8000,
    val: int = 1000,
    test: int = 2000,
    size: int = 64,
    workers: int | None = None,
) -> None:
    """Make the built-in pairs: drawn scenes with captions.

    Args:
        what: The kind of data; so far there are scenes.
        out: The folder to write.
        seed: Another seed, other scenes.
        train: Training scenes.
        val: Validation scenes.
        test: Test scenes.
        size: Side of the images in pixels.
        workers: Processes that draw; by default one for each core.
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

    Args:
        where: Anything that --data of train takes: shards, table, folder, scenes, pipe:.
        out: The new folder.
        to: Shards in the clip-benchmark layout, a CSV with images, or a folder of images with .txt files.
        shard_size: Pairs in a shard.
        split: Only this part (carved if the data has no such part); by default all parts that there are.
        reading: How the pairs are found.
    """
    from dinorankclip.data.damage import DamageCount
    from dinorankclip.data.open_data import open_pairs, splits_of
    from dinorankclip.data.pack import Writer, new_folder
    from dinorankclip.data.streams import PipeSource

    check_at_least(1, shard_size=shard_size)
    if where.startswith("pipe:"):  # packing has no epochs, and what is not divided is packed whole
        reading = dataclasses.replace(reading, epoch_samples=reading.epoch_samples or 1)
    damage = DamageCount(max_damaged=1.0)
    counts: dict[str, int] = {}
    with new_folder(out) as folder:
        writer = Writer(folder, to, shard_size)
        for part in (split,) if split else splits_of(where, reading):
            source = open_pairs(where, reading, part)
            total = None if isinstance(source, PipeSource) else len(source)
            name = "" if part == "all" else part
            counts[part] = writer.write(name, _good_pairs(source, total, name, reading, damage))
    told = ", ".join(f"{part} {count}" if part != "all" else f"{count}" for part, count in counts.items())
    print(f"{told} pairs in {out}")
    if damage.keys:
        print(f"{len(damage.keys)} damaged pair{'s' * (len(damage.keys) > 1)} left out:\n{damage.summary()}")


def _good_pairs(
    source: Source | PipeSource, total: int | None, name: str, reading: FindingSettings, damage: DamageCount
) -> Iterator[RawSample]:
    from tqdm import tqdm

    from dinorankclip.data.pack import checked_pairs

    for found in tqdm(checked_pairs(source, reading.max_pixels), name or "pairs", total, unit="pair", file=sys.stderr):
        if isinstance(found, RawSample):
            damage.add(1)
            yield found
        else:
            damage.add(0, [(found[0], found[1].cause)])


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

    Args:
        where: The folder of class folders.
        out: The set; a second call adds another part to it.
        split: The part to write.
        listed: A text file with the images of this part, one path inside IN a line; by default all of them.
        like: A set with the same classes, whose names and prompts are taken over.
        template: Prompts with {c} for the class name.
        shard_size: Images in a shard.
    """
    from dinorankclip.data import pack
    from dinorankclip.data.unpaired import listed_paths

    check_at_least(1, shard_size=shard_size)
    if listed is not None and not listed.is_file():
        raise UserError(f"--listed {listed}: there is no such file")
    names = listed_paths(listed) if listed else None
    count, classes = pack.pack_classes(
        where, out, split, listed=names, like=like, templates=template, shard_size=shard_size
    )
    print(f"{count} images of {classes} classes in {out / split}")


def show(
    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")] = "scenes",
    out: Path = Path("contact-sheet.png"),
    n: int = 24,
    split: Literal["train", "val", "test", "all"] | None = None,
    seed: int = 0,
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Write a contact sheet: random pairs with their captions.

    Args:
        where: Anything that --data of train takes: shards, table, folder, scenes.
        out: A .png picture, or an .html page, which shows every script and all captions.
        n: How many pairs.
        split: Which part; by default the first there is.
        seed: Another seed, other pairs.
        reading: How the pairs are found.
    """
    from dinorankclip.data import inspect
    from dinorankclip.data.open_data import open_pairs, splits_of
    from dinorankclip.data.streams import PipeSource, read_into_memory

    check_at_least(0, seed=seed)
    check_at_least(1, n=n)
    if out.suffix.lower() not in (".png", ".html"):
        raise UserError(f"--out must end in .png or .html, not {out.suffix or 'nothing'!r}")
    if where.startswith("pipe:"):
        reading = dataclasses.replace(reading, epoch_samples=reading.epoch_samples or 1)
    part = split or splits_of(where, reading)[0]
    source = open_pairs(where, reading, part)
    if isinstance(source, PipeSource):
        source = read_into_memory(source.shards, n)
    shown, damage = inspect.choose(source, n, seed, reading.max_pixels)
    if not shown:
        raise UserError(f"no pair of {where} can be shown:\n{damage.summary()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".png":
        inspect.as_png(shown, out)
    else:
        inspect.as_html(shown, out, f"{where}, {part}: {len(shown)} of {len(source)} pairs")
    print(f"{len(shown)} of {len(source)} pairs in {out}")
    if damage.keys:
        print(f"damaged ones met on the way:\n{damage.summary()}")


def main(argv: list[str]) -> None:
    verbs: dict[str, Callable[..., None]] = {"make": make, "pack": pack, "pack-classes": pack_classes, "show": show}
    if argv and argv[0] in verbs:
        name = argv[0]
        tyro.cli(
            verbs[name],
            prog=f"dinorankclip data {name}",
            args=argv[1:],
            description=f"{(verbs[name].__doc__ or '').splitlines()[0]}\n\nExamples:\n  {EXAMPLES[name]}",
        )
        return
    lines = ["usage: dinorankclip data make|pack|pack-classes|show …", ""]
    lines += [f"  {name:<12}  {(function.__doc__ or '').splitlines()[0]}" for name, function in verbs.items()]
    lines += ["", "Examples:", *(f"  {example}" for example in EXAMPLES.values())]
    if not argv or argv[0] in ("-h", "--help"):
        print("\n".join([*lines, "", "dinorankclip data make --help tells the options, and so on."]))
        return
    import difflib

    near = difflib.get_close_matches(argv[0], verbs, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(verbs)}"
    raise UserError(f"data has no '{argv[0]}': {hint}")
