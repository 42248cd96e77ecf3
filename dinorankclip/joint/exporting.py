"""From what a user names to a finished export: load, write each format, put the folder in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dinorankclip.joint.export_folder import write_model_folder, write_record
from dinorankclip.joint.export_onnx import TOLERANCE, demand_packages, write_onnx_folder
from dinorankclip.joint.export_open_clip import write_open_clip_folder
from dinorankclip.joint.export_place import export_place
from dinorankclip.joint.finite_rows import try_out
from dinorankclip.joint.folder import find_model
from dinorankclip.joint.loaded import load_model
from dinorankclip.joint.open_clip_source import PREFIX
from dinorankclip.joint.provenance import RECORD, provenance
from dinorankclip.types import UserError

FORMATS = {"folder": "", "open-clip": "open_clip", "onnx": "onnx"}  # and where each lies when there are several


@dataclass
class Written:
    """What an export came to."""

    folder: Path
    identity: str
    remarks: list[str] = field(default_factory=list)

    def summary(self) -> str:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.folder)) for path in files]
        width = max(map(len, names))
        counts = [path.stat().st_size for path in files]
        sizes = [f"  {name:<{width}}{_size(count):>10}" for name, count in zip(names, counts)]
        total = _size(sum(counts))
        return "\n".join([f"{self.folder}: {total}, made from model {self.identity}", *sizes, *self.remarks])


def write_export(
    where: str, out: Path, formats: Sequence[str], data_note: str = "", licence: str = "", replace: bool = False
) -> Written:
    """Export the model a user calls `where` to the folder `out` in all `formats`."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UserError(f"no format is called '{', '.join(unknown)}'; there are {', '.join(FORMATS)}")
    if "onnx" in formats:
        demand_packages()
    name = out.name
    with export_place(out, replace, RECORD) as aside:
        # Found once: a run that goes on training may have another last checkpoint in a moment.
        origin = None if where.startswith(PREFIX) else find_model(where)
        model = load_model(origin or where, device="cpu", precision="fp32")
        try_out(model)
        known = provenance(origin, where, data_note)
        written = Written(out, model.identity)
        for kind in dict.fromkeys(formats):
            inside = FORMATS[kind] if len(set(formats)) > 1 else ""
            folder, called = aside / inside, f"{name}/{inside}" if inside else name
            folder.mkdir(exist_ok=True)
            if kind == "folder":
                write_model_folder(model, folder, known, called, licence)
            elif kind == "open-clip":
                warning = write_open_clip_folder(model, folder, known, called, licence)
                written.remarks += [f"mind: {warning}"] if warning else []
            else:
                found = write_onnx_folder(model, folder, known, called, licence)
                written.remarks += [
                    f"{file}: differs from PyTorch by at most {worst:.1e} (allowed: {TOLERANCE:g})"
                    for file, worst in found.items()
                ]
        if not (aside / RECORD).exists():  # formats in subfolders alone; the mark of an export is at its top
            write_record(aside, known)
    if not licence:
        written.remarks.append("the licence in README.md is open: fill it in before you publish the folder")
    return written


def _size(count: int) -> str:
    for unit, worth in (("MB", 1e6), ("kB", 1e3)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return f"{count} B"
