"""`write_export`: load the model that a user names, write each format, put the folder in its place.

The folder is new or takes the place of an older export, never of anything else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dinorankclip.io import whole_folder
from dinorankclip.models.card import RECORD, provenance
from dinorankclip.models.export_formats import (
    TOLERANCE,
    demand_onnx,
    write_model_folder,
    write_onnx_folder,
    write_open_clip_folder,
    write_record,
)
from dinorankclip.models.folder import find_model
from dinorankclip.models.loaded import load_model, try_out
from dinorankclip.models.open_clip_weights import PREFIX
from dinorankclip.types import UserError

FORMATS = {"folder": "", "open-clip": "open_clip", "onnx": "onnx"}  # subfolders, where there are several formats


@dataclass
class Written:
    """A finished export."""

    folder: Path
    identity: str
    remarks: list[str] = field(default_factory=list)

    def summary(self) -> str:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(self.folder)): path.stat().st_size for path in files}
        width = max(map(len, sizes))
        lines = [f"  {name:<{width}}{_readable_size(size):>10}" for name, size in sizes.items()]
        total = _readable_size(sum(sizes.values()))
        return "\n".join([f"{self.folder}: {total}, made from model {self.identity}", *lines, *self.remarks])


def _readable_size(count: int) -> str:
    for unit, worth in (("MB", 1e6), ("kB", 1e3)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return f"{count} B"


def write_export(
    where: str, out: Path, formats: Sequence[str], data_note: str = "", licence: str = "", replace: bool = False
) -> Written:
    """Export the model a user calls `where` to the folder `out` in all `formats`."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UserError(f"no format is called '{', '.join(unknown)}'; there are {', '.join(FORMATS)}")
    if "onnx" in formats:
        demand_onnx()
    with export_place(out, replace, RECORD) as aside:
        # Looked up once: a run that goes on training may have another last checkpoint in a moment.
        origin = None if where.startswith(PREFIX) else find_model(where)
        model = load_model(origin or where, device="cpu", precision="fp32")
        try_out(model)
        known = provenance(origin, where, data_note)
        written = Written(out, model.identity)
        for kind in dict.fromkeys(formats):
            inside = FORMATS[kind] if len(set(formats)) > 1 else ""
            folder, name = aside / inside, f"{out.name}/{inside}" if inside else out.name
            folder.mkdir(exist_ok=True)
            if kind == "folder":
                write_model_folder(model, folder, known, name, licence)
            elif kind == "open-clip":
                warning = write_open_clip_folder(model, folder, known, name, licence)
                written.remarks += [f"mind: {warning}"] if warning else []
            else:
                differences = write_onnx_folder(model, folder, known, name, licence)
                written.remarks += [
                    f"{file}: differs from PyTorch by at most {worst:.1e} (allowed: {TOLERANCE:g})"
                    for file, worst in differences.items()
                ]
        if not (aside / RECORD).exists():  # all formats lie in subfolders; the mark of an export is at its top
            write_record(aside, known)
    if not licence:
        written.remarks.append("the licence in README.md is open: fill it in before you publish the folder")
    return written


@contextlib.contextmanager
def export_place(out: Path, replace: bool, mark: str) -> Iterator[Path]:
    """Yields an empty folder; on success it becomes `out`, on any error it vanishes.

    An existing folder is refused, unless `replace` is set and it holds the file `mark`: other folders were not made
    by us and are not ours to delete.
    """
    named, out = out, out.resolve()  # messages name it as the user did
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not out.is_dir() or not (out / mark).is_file():
            raise UserError(f"{named} is there and is no exported model; choose another --out")
        if not replace:
            raise UserError(f"{named} is there; choose another --out, or --replace it")
    with contextlib.ExitStack() as old, contextlib.ExitStack() as new:
        try:
            aside = new.enter_context(whole_folder(out))
        except OSError as error:
            raise UserError(f"{named} cannot be written: {error.strerror}") from error
        yield aside
        if out.exists():  # moved away now; removed when the new folder is in its place, or back if that fails
            older = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
            old.push(lambda error, *_: _put_back(older, out) if error else shutil.rmtree(older))
            os.replace(out, older)


def _put_back(older: Path, out: Path) -> None:
    """Restore the older export; if another folder has taken its name meanwhile, leave the older one beside it."""
    if not out.exists():
        os.replace(older, out)
    else:
        with contextlib.suppress(OSError):
            older.rmdir()  # empty, if it was never moved
