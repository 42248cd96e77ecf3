"""`dinorankclip embed`: write embeddings of images and captions with their keys, as NumPy and Parquet."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dinorankclip.commands.shared import load_quietly
from dinorankclip.config import FindingSettings
from dinorankclip.pieces.contract import HERE, Where, Work
from dinorankclip.types import CaptionSource, ImageSource, UserError

if TYPE_CHECKING:
    from dinorankclip.search.embed_collection import EmbeddingFolder
    from dinorankclip.search.embed_pieces import EmbedPieces


def embed(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    images: str | None = None,
    captions: str | None = None,
    data: str | None = None,
    split: Literal["train", "val", "test", "all"] = "all",
    half: bool = False,
    device: str = "auto",
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
    where: Annotated[Where, tyro.conf.arg(name="")] = HERE,
) -> None:
    """Embed images, captions or both: rows with their keys. The same command again resumes, on any number of workers.

    Rows of images that search, serve, score or explore have stored of the same model are not computed again.

    Examples:
      dinorankclip embed runs/first --images photos --out embedded/photos
      dinorankclip embed runs/first --data scenes --split test --out embedded/scenes
      dinorankclip embed runs/first --data 'cc3m/*.tar' --out embedded/cc3m --on ray --ray.address head:6379

    Args:
        model: A run, a checkpoint, an exported folder, open_clip:NAME:FILE, transformers:FOLDER, or starter.
        out: The folder to write: images.npy, texts.npy (a row each), keys, Parquet, damaged.tsv, manifest.json.
        images: A folder of images (and all below it), a .txt list of paths, a CSV/TSV/Parquet table, or shards.
        captions: A .txt file with a caption on each line, the caption column of a table, or pairs.
        data: Pairs, as --data of train: images and captions at once, with the same keys.
        split: The part of --data, or of the pairs given as --captions.
        half: Write fp16 instead of fp32: half the bytes, three digits.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        reading: How images and captions are found.
        where: Who makes the parts.
    """
    from dinorankclip import distributed
    from dinorankclip.io import one_at_a_time
    from dinorankclip.models.loaded import try_out
    from dinorankclip.pieces.run import make_pieces
    from dinorankclip.search.embed_collection import PART
    from dinorankclip.search.embed_pieces import known_rows

    if data is None and images is None and captions is None:
        raise UserError("nothing to embed: give --images, --captions, or --data for pairs")
    if data is not None and (images is not None or captions is not None):
        raise UserError("--data brings its own images and captions; leave out --images and --captions")
    if data is not None and data.startswith("pipe:"):
        raise UserError("embedding resumes where it stopped, which pipe: shards cannot; store them first")
    world = distributed.join(device)
    settings = {
        "model": model, "out": str(out), "images": images, "captions": captions, "data": data, "split": split,
        "half": half, "device": device, "part": PART, "reading": asdict(reading),
    }  # fmt: skip
    pieces = open_work(settings)
    try_out(pieces.model)  # before a folder is made, because a broken model must leave none
    about = {"model": model, "images": images or data, "captions": captions or data}
    about["split"] = split if data or captions else None
    with one_at_a_time(".embedding", folder=out) if world.leads else contextlib.nullcontext():
        if world.leads:
            print(f"{model}: {pieces.model.dim} numbers a row, {pieces.model.reason}")
        distributed.leader_first(lambda: pieces.lead(about))
        if pieces.folder is not None and pieces.folder.complete:
            print(f"{out} is complete already: {_counts(pieces.folder)}")
        elif pieces.images is not None and where.on == "here":
            photos, pairs = Path(images) if images is not None else None, pieces.images if data is not None else None
            pieces.known = known_rows(pieces.model, pieces.images, photos, pairs, reading.max_pixels)  # type: ignore[arg-type]
            if pieces.known is not None and world.leads:
                print("images were embedded before, by another command: their rows are taken as they are")
        make_pieces(pieces, where, Work("dinorankclip.commands.embed:open_work", settings, device), out)
        if pieces.folder is not None and not pieces.folder.complete:
            with_parquet = pieces.folder.finish()
            print(f"{out}: {_counts(pieces.folder)}")
            if not with_parquet:
                print("no Parquet files, which need pyarrow: pip install 'dinorankclip[parquet]'")
    distributed.leave()


def open_work(settings: dict[str, Any]) -> EmbedPieces:
    """Open model and data in this process, or in a worker elsewhere."""
    from dinorankclip import distributed
    from dinorankclip.data.open_data import open_captions, open_images, open_stored
    from dinorankclip.search.embed_pieces import EmbedPieces

    images, captions, data, split, device = (
        settings[name] for name in ("images", "captions", "data", "split", "device")
    )
    reading = FindingSettings(**settings["reading"])
    pairs = open_stored(data, reading, split) if data is not None else None
    pictures: ImageSource | None = open_images(images, reading) if images is not None else pairs
    texts: CaptionSource | None = open_captions(captions, reading, split) if captions is not None else pairs
    loaded = load_quietly(settings["model"], distributed.own_device(device))
    out = Path(settings["out"])
    return EmbedPieces(out, loaded, pictures, texts, settings["half"], settings["part"], reading.max_pixels)


def _counts(folder: EmbeddingFolder) -> str:
    rows = folder.manifest["rows"]
    size = sum(folder.manifest["bytes"].values())
    text = ", ".join(f"{count} {kind}" for kind, count in rows.items()) + f", {size / 1e6:.1f} MB"
    if folder.damaged:
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(folder.damaged.items()))
        text += f"; left out as damaged (damaged.tsv): {causes}"
    return text
