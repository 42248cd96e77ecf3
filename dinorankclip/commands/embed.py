"""`dinorankclip embed`: write embeddings of images and captions with their keys, as NumPy and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dinorankclip.commands.shared import load_quietly
from dinorankclip.config import FindingSettings
from dinorankclip.types import CaptionSource, ImageSource, UserError

if TYPE_CHECKING:
    from dinorankclip.search.embed_collection import EmbeddingFolder


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
) -> None:
    """Embed images, captions or both: rows with their keys. The same command again resumes.

    Rows of images that search, serve, score or explore have stored of the same model are not computed again.

    Examples:
      dinorankclip embed runs/first --images photos --out embedded/photos
      dinorankclip embed runs/first --data scenes --split test --out embedded/scenes

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
    """
    from dinorankclip.data.open_data import open_captions, open_images, open_stored
    from dinorankclip.io import one_at_a_time
    from dinorankclip.models.loaded import try_out
    from dinorankclip.search.embed_collection import EmbeddingFolder, embed_captions, embed_images, known_rows, plan_of

    if data is None and images is None and captions is None:
        raise UserError("nothing to embed: give --images, --captions, or --data for pairs")
    if data is not None and (images is not None or captions is not None):
        raise UserError("--data brings its own images and captions; leave out --images and --captions")
    if data is not None and data.startswith("pipe:"):
        raise UserError("embedding resumes where it stopped, which pipe: shards cannot; store them first")
    pairs = open_stored(data, reading, split) if data is not None else None
    pictures: ImageSource | None = open_images(images, reading) if images is not None else pairs
    texts: CaptionSource | None = open_captions(captions, reading, split) if captions is not None else pairs
    loaded = load_quietly(model, device)
    try_out(loaded)  # before a folder is made, because a broken model must leave none
    print(f"{model}: {loaded.dim} numbers a row, {loaded.reason}")
    part = split if data or captions else None
    about = {"model": model, "images": images or data, "captions": captions or data, "split": part}
    with one_at_a_time(".embedding", folder=out):
        plan = plan_of(loaded, pictures, texts, max_pixels=reading.max_pixels)
        folder = EmbeddingFolder(out, plan, about, loaded.dim, half)
        if folder.complete:
            print(f"{out} is complete already: {_counts(folder)}")
            return
        if pictures is not None:
            photos = Path(images) if images is not None else None
            known = known_rows(loaded, pictures, photos, pairs, reading.max_pixels)
            if known is not None:
                print("images were embedded before, by another command: their rows are taken as they are")
            embed_images(folder, loaded, pictures, max_pixels=reading.max_pixels, known=known)
        if texts is not None:
            embed_captions(folder, loaded, texts)
        with_parquet = folder.finish()
    print(f"{out}: {_counts(folder)}")
    if not with_parquet:
        print("no Parquet files, which need pyarrow: pip install 'dinorankclip[parquet]'")


def _counts(folder: EmbeddingFolder) -> str:
    rows = folder.manifest["rows"]
    size = sum(folder.manifest["bytes"].values())
    text = ", ".join(f"{count} {kind}" for kind, count in rows.items()) + f", {size / 1e6:.1f} MB"
    if folder.damaged:
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(folder.damaged.items()))
        text += f"; left out as damaged (damaged.tsv): {causes}"
    return text
