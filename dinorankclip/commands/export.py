"""`dinorankclip export`: write a model to give away, as our own folder, in open_clip's format, or as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

Format = Literal["folder", "open-clip", "onnx"]


def export(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    to: tuple[Format, ...] = ("folder",),
    data_note: str = "",
    licence: str = "",
    replace: bool = False,
    towers: Literal["inside", "named"] = "inside",
) -> None:
    """Write a model as a folder that works anywhere, without a network, with a card that says how it was made.

    Examples:
      dinorankclip export runs/first --out exported/first
      dinorankclip export runs/first --out exported/first --to folder open-clip onnx --replace

    Args:
        model: A run, a checkpoint, an exported folder, open_clip:NAME:FILE or starter.
        out: The folder to make.
        to: folder (for load_model; the default), open-clip (the trunk alone, for open_clip's local-dir:), onnx (both
            encoders, checked with onnxruntime; needs the extra onnx). With several, the model folder is OUT itself
            and the others lie in it as open_clip/ and onnx/.
        data_note: A sentence about the training data for the card, such as its source and terms.
        licence: The licence of the model, for the card; left open by default.
        replace: Replace an earlier export of that name.
        towers: Aligned models only. inside: the folder holds its frozen towers and needs no other package. named: it
            names them, and whoever loads it must have them installed.
    """
    from dinorankclip.models.export_model import write_export

    print(write_export(model, out, to, data_note, licence, replace, towers).summary())
