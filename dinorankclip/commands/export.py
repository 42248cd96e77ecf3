"""`dinorankclip export`: write a model to give away, for this package and for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

Format = Literal["folder", "open-clip", "transformers", "sentence-transformers", "onnx", "web"]


def export(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    to: tuple[Format, ...] = ("folder",),
    data_note: str = "",
    licence: str = "",
    replace: bool = False,
    towers: Literal["inside", "named"] = "inside",
    precision: Literal["fp32", "fp16", "int8"] = "fp32",
    runtime: Path | None = None,
    images: Path | None = None,
) -> None:
    """Write a model as a folder that works anywhere, without a network, with a card that says how it was made.

    Examples:
      dinorankclip export runs/first --out exported/first
      dinorankclip export runs/first --out exported/first --to folder open-clip onnx --replace
      dinorankclip export runs/first --out exported/clip --to transformers
      dinorankclip export runs/first --out exported/small --to onnx --precision int8
      dinorankclip export runs/first --out exported/page --to web --images photos --runtime node_modules/onnxruntime-web

    Every format is opened and compared with the model before the folder takes its place; the smallest cosine is
    printed. Models with students, a fusion or frozen towers are no plain CLIP: for transformers and
    sentence-transformers their folders hold an adapter, and opening them needs trust_remote_code=True and this package.

    Args:
        model: A run, a checkpoint, an exported folder, open_clip:NAME:FILE, transformers:FOLDER or starter.
        out: The folder to make.
        to: folder (for load_model; the default), open-clip (the trunk alone, for open_clip's local-dir:), transformers
            (CLIPModel, or AutoModel with code in the folder), sentence-transformers, onnx (both encoders, checked with
            onnxruntime; needs the extra onnx), web (the same with a page that searches in a browser). With several, the
            model folder is OUT itself and the others lie in it as open_clip/, transformers/, …
        data_note: A sentence about the training data for the card, such as its source and terms.
        licence: The licence of the model, for the card; left open by default.
        replace: Replace an earlier export of that name.
        towers: Aligned models only. inside: the folder holds its frozen towers and needs no other package. named: it
            names them, and whoever loads it must have them installed.
        precision: Weights of ONNX graphs, for onnx and web: fp32, fp16 (half the bytes) or int8 (a quarter).
        runtime: For web: the folder with npm's onnxruntime-web; three files of it are copied beside the page.
        images: For web: photos to search, embedded now; the page holds small copies.
    """
    from dinorankclip.models.export_model import write_export

    written = write_export(model, out, to, data_note, licence, replace, towers, precision, runtime, images)
    print(written.summary())
