"""Copies the weights of a teacher into a folder, so that a model which has it as a tower can be given away.

A copy lies in a folder of its own: `weights.safetensors`, or the three files of a sentence encoder. `local_spec`
returns the spec that opens the copy.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dinorankclip.teachers import weights_files
from dinorankclip.teachers.frozen_teacher import Teacher, TextTeacher
from dinorankclip.teachers.minilm import FILES, MINILM
from dinorankclip.types import UserError

WEIGHTS = "weights.safetensors"
DRAWN = ("random-vit", "random-text")  # teachers whose seed is all that there is to copy
NAMED = ("timm",)  # kinds whose spec names an architecture before the file


def write_copy(spec: str, teacher: Teacher | TextTeacher, folder: Path) -> None:
    """Write the weights of the teacher that `spec` opened into an existing, empty folder."""
    kind = spec.partition(":")[0]
    if kind in DRAWN:
        return
    if teacher.source is None or kind == "hf":
        raise UserError(f"the tower {spec} cannot be copied into the export: export with --towers named")
    if kind == MINILM:
        for name in FILES:
            shutil.copyfile(teacher.source / name, folder / name)
        return
    from safetensors.torch import save_file

    tensors = weights_files.read_tensors(teacher.source)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)


def local_spec(spec: str, folder: Path) -> str:
    """Return the spec that opens the copy of a teacher in `folder`."""
    kind, _, argument = spec.partition(":")
    if kind in DRAWN:
        return spec
    if kind == MINILM:
        return f"{kind}:{folder}"
    architecture = f"{argument.partition(':')[0]}:" if kind in NAMED else ""
    return f"{kind}:{architecture}{folder / WEIGHTS}"


def without_path(spec: str) -> str:
    """Return the spec without its file or folder, for a model folder that tells nothing about this machine."""
    kind, _, argument = spec.partition(":")
    if kind in DRAWN:
        return spec
    return f"{kind}:{argument.partition(':')[0]}" if kind in NAMED else kind
