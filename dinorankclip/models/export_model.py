"""Exports a model: loads what a user names, writes each format, puts the folder in its place.

    folder                 a model folder that `load_model` reads
    open-clip              the trunk alone, for open_clip.create_model_and_transforms("local-dir:FOLDER")
    transformers           a CLIPModel (or an adapter for AutoModel), export_transformers.py
    sentence-transformers  for SentenceTransformer(FOLDER), export_transformers.py
    onnx                   graphs of both encoders, fp32, fp16 or int8, export_onnx.py
    web                    the graphs with a page that searches in a browser, export_web.py

Preprocessing, vocabulary, provenance and card lie beside the weights of every format.
The folder is new or takes the place of an older export, never of anything else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from dinorankclip.checksums import seal_folder
from dinorankclip.io import whole_folder
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import RECORD, CardHead, provenance
from dinorankclip.models.export_files import Export, write_json, write_model_folder, write_side_files
from dinorankclip.models.export_onnx import PRECISIONS, demand_onnx, readable_size, write_onnx_folder
from dinorankclip.models.export_transformers import (
    demand_sentence_transformers,
    demand_transformers,
    write_sentence_folder,
    write_transformers_folder,
)
from dinorankclip.models.export_web import demand_runtime, write_web_folder
from dinorankclip.models.folder import OPEN_CLIP_CONFIG, find_model
from dinorankclip.models.foreign import is_foreign
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import LoadedModel, load_model, trial_pairs, try_out
from dinorankclip.models.map_tower import MAP
from dinorankclip.models.open_clip_weights import RESIZING
from dinorankclip.models.starter import STARTER
from dinorankclip.models.weights_file import skip_init, write_weights
from dinorankclip.types import UserError

OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"  # the name that open_clip prefers
MOST_LISTED = 60  # files that the summary names
ANGLE_TRIALS = 32  # scenes on which fused embeddings are compared with the trunk's
LOADING_OPEN_CLIP = """\
import open_clip
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:{name}")
tokenizer = open_clip.get_tokenizer("local-dir:{name}")"""


@dataclass
class Written:
    """Describes a finished export."""

    folder: Path
    identity: str
    remarks: list[str] = field(default_factory=list)

    def summary(self) -> str:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in files}
        width = max(map(len, sizes))
        lines = [f"  {name:<{width}}{readable_size(size):>10}" for name, size in sizes.items()]
        if len(lines) > MOST_LISTED:
            lines = [*lines[:MOST_LISTED], f"  … and {len(lines) - MOST_LISTED} more files"]
        total = readable_size(sum(sizes.values()))
        return "\n".join([f"{self.folder}: {total}, made from model {self.identity}", *lines, *self.remarks])


def write_export(
    where: str,
    out: Path,
    formats: Sequence[str],
    data_note: str = "",
    licence: str = "",
    replace: bool = False,
    towers: str = "inside",
    precision: str = "fp32",
    runtime: Path | None = None,
    images: Path | None = None,
) -> Written:
    """Export the model a user calls `where` to the folder `out` in all `formats`.

    `towers` says where the frozen towers of an aligned model are: "inside" the folder, or "named" in it. `precision` is
    that of ONNX graphs; `runtime` and `images` are for a page in the browser.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UserError(f"no format is called '{', '.join(unknown)}'; there are {', '.join(FORMATS)}")
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: there are {', '.join(PRECISIONS)}")
    if precision != "fp32" and not {"onnx", "web"} & set(formats):
        raise UserError(f"--precision {precision} is for --to onnx and --to web; other formats hold fp32 weights")
    if "web" not in formats and (runtime or images):
        raise UserError("--runtime and --images are for --to web")
    for name in formats:
        FORMATS[name].demand()
    if runtime is not None:
        demand_runtime(runtime)
    with export_place(out, replace, RECORD) as aside:
        # This is looked up once: a run that goes on training may soon have another last checkpoint.
        origin = None if where == STARTER or is_foreign(where) else find_model(where)
        model = load_model(origin or where, device="cpu", precision="fp32")
        try_out(model)
        known = provenance(origin, where, data_note)
        written = Written(out, model.identity)
        # The model folder last: it is the top of the others, and the hashes at the top leave out what has its own.
        for kind in sorted(dict.fromkeys(formats), key=lambda kind: kind == "folder"):
            inside = FORMATS[kind].inside if len(set(formats)) > 1 else ""
            folder, name = aside / inside, f"{out.name}/{inside}" if inside else out.name
            folder.mkdir(exist_ok=True)
            export = Export(known, name, licence, towers, precision, runtime, images)
            written.remarks += FORMATS[kind].write(model, folder, export)
            seal_folder(folder)
        if not (aside / RECORD).exists():  # all formats lie in subfolders; the mark of an export is at its top
            write_json(aside / RECORD, known)
            seal_folder(aside)
    if not licence:
        written.remarks.append("the licence in README.md is open: fill it in before you publish the folder")
    return written


@contextlib.contextmanager
def export_place(out: Path, replace: bool, mark: str) -> Iterator[Path]:
    """Yield an empty folder; on success it becomes `out`, on any error it vanishes.

    An existing folder is refused, unless `replace` is set and it holds the file `mark`: other folders were not made
    by us and are not ours to delete.
    """
    named, out = out, out.resolve()  # messages name the folder as the user did
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not out.is_dir() or not (out / mark).is_file():
            raise UserError(f"{named} is there and is no exported model; choose another --out")
        if not replace:
            raise UserError(f"{named} is there; choose another --out, or --replace it")
    with contextlib.ExitStack() as new:
        try:
            aside = new.enter_context(whole_folder(out, replace))
        except OSError as error:
            raise UserError(f"{named} cannot be written: {error.strerror}") from error
        yield aside


def write_open_clip_folder(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    """Write the trunk into an empty folder. Return a note on omitted parts, if any."""
    if isinstance(model.parts, AlignedModel):
        raise UserError("an aligned model has no trunk for open_clip: export it as folder, transformers or onnx")
    if model.parts.vocabulary is not None or model.parts.trunk.config["vision_cfg"].get("pool_type") == MAP:
        raise UserError(
            "this trunk came from transformers with a vocabulary or an image tower that open_clip cannot open from a "
            "folder: export it as folder, transformers or onnx"
        )
    warning = _fusion_left_out(model)
    if warning:  # scores are of the whole model
        export = replace(export, known=export.known | {"scores": None, "set_scores": None})
    with skip_init():
        alone = JointModel(model.parts.trunk.config)
    trunk = alone.trunk = model.parts.trunk
    model = LoadedModel(alone, model.name, model.placement)
    spec = model.image_spec
    # Not for open_clip's constructors: preprocess_cfg has a place of its own, a captioning head is never built here.
    towers = {key: value for key, value in trunk.config.items() if key not in ("preprocess_cfg", "multimodal_cfg")}
    images = {"mean": list(spec.mean), "std": list(spec.std), **RESIZING}
    images |= {"interpolation": spec.interpolation, "resize_mode": spec.resize}
    write_json(folder / OPEN_CLIP_CONFIG, {"model_cfg": towers, "preprocess_cfg": images})
    write_weights(trunk.towers.state_dict(), folder / OPEN_CLIP_WEIGHTS)
    loading = LOADING_OPEN_CLIP.format(name=export.name)
    write_side_files(model, folder, export, loading, warning, CardHead("open_clip"))
    return [f"note: {warning}"] if warning else []


def _fusion_left_out(model: LoadedModel) -> str:
    """Say in words how far the embeddings of a fused model are from those of its trunk."""
    if model.parts.image_fusion is None and model.parts.text_fusion is None:
        return ""
    pictures, captions = trial_pairs(ANGLE_TRIALS)
    images = model.look(torch.stack([model.preprocess(picture) for picture in pictures]))
    texts = model.read(captions)
    turns = [
        f"{side} embeddings by {float(angle.mean()):.1f}° on average ({float(angle.max()):.1f}° at most)"
        for side, angle in (("image", images.angle), ("text", texts.angle))
        if angle is not None
    ]
    left_out = "students and fusion, which are" if model.parts.fusion.source == "student" else "the fusion, which is"
    return (
        f"This is the trunk alone, not the whole model: {left_out} left out, turn"
        f"{'s' if left_out.endswith(' is') else ''} "
        f"{' and '.join(turns)}, measured on {ANGLE_TRIALS} built-in scenes. Scores of the whole model do not hold for "
        "it."
    )


@dataclass(frozen=True)
class Format:
    """Says how a format is written: its subfolder if there are several formats, its writer, what it needs installed."""

    inside: str
    write: Callable[[LoadedModel, Path, Export], list[str]]
    demand: Callable[[], None] = lambda: None


FORMATS = {
    "folder": Format("", write_model_folder),
    "open-clip": Format("open_clip", write_open_clip_folder),
    "transformers": Format("transformers", write_transformers_folder, demand_transformers),
    "sentence-transformers": Format("sentence_transformers", write_sentence_folder, demand_sentence_transformers),
    "onnx": Format("onnx", write_onnx_folder, demand_onnx),
    "web": Format("web", write_web_folder, demand_onnx),
}
