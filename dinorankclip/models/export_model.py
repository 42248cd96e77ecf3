"""Exports a model: loads what a user names, writes each format, puts the folder in its place.

    folder      a model folder that `load_model` reads
    open-clip   the trunk alone, for open_clip.create_model_and_transforms("local-dir:FOLDER")
    onnx        graphs of both encoders with students and fusion, checked against PyTorch; B is free:
        image.onnx   uint8 pixels [B, 3, S, S] → unit-norm embeddings [B, D]; pixels are normalised inside
        text.onnx    int64 ids [B, context length], padded with 0 → unit-norm embeddings [B, D]

Preprocessing, vocabulary, provenance and card lie beside the weights of every format.
The folder is new or takes the place of an older export, never of anything else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from dinorankclip.checksums import seal_folder
from dinorankclip.io import whole_folder
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import RECORD, card, provenance
from dinorankclip.models.folder import OPEN_CLIP_CONFIG, TOWERS, find_model, save_model, write_vocabulary
from dinorankclip.models.foreign import is_foreign
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import LoadedModel, load_model, trial_pairs, try_out
from dinorankclip.models.open_clip_weights import RESIZING
from dinorankclip.models.starter import STARTER
from dinorankclip.models.weights_file import skip_init, write_weights
from dinorankclip.teachers.portable import write_copy
from dinorankclip.types import UserError, first_line

FORMATS = {"folder": "", "open-clip": "open_clip", "onnx": "onnx"}  # format → subfolder if there are several formats
PREPROCESSING = "preprocess.json"
CARD = "README.md"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"  # the name that open_clip prefers
IMAGE, TEXT, DESCRIPTION = "image.onnx", "text.onnx", "onnx.json"
ANGLE_TRIALS = 32  # scenes on which fused embeddings are compared with the trunk's
TOLERANCE = 1e-3  # largest accepted difference between an ONNX graph and PyTorch
BATCHES = (1, 2, 7)  # a graph with a frozen batch size fails at one of these sizes
_LARGEST_FILE = 1_500_000_000  # bytes; protobuf ends at 2 GB, above it weights lie beside the graph
LOADING_OURS = """\
from dinorankclip import load_model
model = load_model("{name}")
model.encode_image(model.preprocess("photo.jpg")[None]) @ model.encode_text(["a red mug"]).T"""
LOADING_OPEN_CLIP = """\
import open_clip
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:{name}")
tokenizer = open_clip.get_tokenizer("local-dir:{name}")"""
LOADING_ONNX = """\
import onnxruntime
image, text = (onnxruntime.InferenceSession(f"{name}/{{part}}.onnx") for part in ("image", "text"))
similarity = image.run(None, {{"images": pixels}})[0] @ text.run(None, {{"ids": ids}})[0].T  # uint8, int64"""


@dataclass
class Written:
    """Describes a finished export."""

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
    where: str,
    out: Path,
    formats: Sequence[str],
    data_note: str = "",
    licence: str = "",
    replace: bool = False,
    towers: str = "inside",
) -> Written:
    """Export the model a user calls `where` to the folder `out` in all `formats`.

    `towers` says where the frozen towers of an aligned model are: "inside" the folder, or "named" in it.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise UserError(f"no format is called '{', '.join(unknown)}'; there are {', '.join(FORMATS)}")
    if "onnx" in formats:
        demand_onnx()
    with export_place(out, replace, RECORD) as aside:
        # This is looked up once: a run that goes on training may soon have another last checkpoint.
        origin = None if where == STARTER or is_foreign(where) else find_model(where)
        model = load_model(origin or where, device="cpu", precision="fp32")
        try_out(model)
        known = provenance(origin, where, data_note)
        written = Written(out, model.identity)
        # The model folder last: it is the top of the others, and the hashes at the top leave out what has its own.
        for kind in sorted(dict.fromkeys(formats), key=lambda kind: kind == "folder"):
            inside = FORMATS[kind] if len(set(formats)) > 1 else ""
            folder, name = aside / inside, f"{out.name}/{inside}" if inside else out.name
            folder.mkdir(exist_ok=True)
            if kind == "folder":
                write_model_folder(model, folder, known, name, licence, towers)
            elif kind == "open-clip":
                warning = write_open_clip_folder(model, folder, known, name, licence)
                written.remarks += [f"note: {warning}"] if warning else []
            else:
                differences = write_onnx_folder(model, folder, known, name, licence)
                written.remarks += [
                    f"{file}: differs from PyTorch by at most {worst:.1e} (allowed: {TOLERANCE:g})"
                    for file, worst in differences.items()
                ]
            seal_folder(folder)
        if not (aside / RECORD).exists():  # all formats lie in subfolders; the mark of an export is at its top
            _write_json(aside / RECORD, known)
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


def write_model_folder(
    model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = "", towers: str = "inside"
) -> None:
    """Write everything needed to use the model into an empty folder that will be called `name`."""
    save_model(model.parts, folder, seal=True)
    if isinstance(model.parts, AlignedModel) and towers == "inside":
        write_towers(model.parts, folder)
    _write_side_files(model, folder, known, LOADING_OURS.format(name=name), licence)


def _write_side_files(
    model: LoadedModel, folder: Path, known: dict[str, Any], loading: str, licence: str, warning: str = ""
) -> None:
    """Write preprocessing, vocabulary, provenance and card."""
    (folder / CARD).write_text(card(model, known, loading, warning, licence))
    if isinstance(model.parts, AlignedModel):
        write_tower_vocabulary(model.parts, folder)
    else:
        write_vocabulary(folder, model.text_spec)
    _write_json(folder / RECORD, known)
    spec = model.image_spec
    preprocessing = {  # in words and numbers that another program can follow
        "upright": "EXIF orientation applied; transparency laid on white; RGB",
        "resize": f"the shorter side to {spec.size}, the longer one in proportion, rounded down",
        "crop": f"the centre, {spec.size} by {spec.size}, after resizing",
        "interpolation": "bicubic, antialiased",
        "mean": list(spec.mean),
        "std": list(spec.std),
        "normalise": "(pixel/255 - mean)/std",
    }
    _write_json(folder / PREPROCESSING, preprocessing)


def write_towers(model: AlignedModel, folder: Path) -> None:
    """Copy both frozen towers into the folder of an aligned model, which then needs no other package."""
    for side, tower in (("image", model.image_tower), ("text", model.text_tower)):
        place = folder / TOWERS / side
        place.mkdir(parents=True)
        write_copy(tower.design.spec, tower.teacher, place)


def write_tower_vocabulary(model: AlignedModel, folder: Path) -> None:
    """Copy the word pieces of a sentence encoder, for programs that make ids for text.onnx."""
    source = model.text_tower.teacher.source
    if source is not None and (source / "tokenizer.json").is_file() and not (folder / TOWERS).exists():
        shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_open_clip_folder(
    model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = ""
) -> str:
    """Write the trunk into an empty folder that will be called `name`. Return a note on omitted parts, or ""."""
    if isinstance(model.parts, AlignedModel):
        raise UserError("an aligned model has no trunk for open_clip: export it as folder or onnx")
    warning = _fusion_left_out(model)
    if warning:
        known = known | {"scores": None, "set_scores": None}  # scores are of the whole model
    with skip_init():
        alone = JointModel(model.parts.trunk.config)
    trunk = alone.trunk = model.parts.trunk
    model = LoadedModel(alone, model.name, model.placement)
    spec = model.image_spec
    # Not for open_clip's constructors: preprocess_cfg has a place of its own, a captioning head is never built here.
    towers = {key: value for key, value in trunk.config.items() if key not in ("preprocess_cfg", "multimodal_cfg")}
    images = {"mean": list(spec.mean), "std": list(spec.std), **RESIZING}
    _write_json(folder / OPEN_CLIP_CONFIG, {"model_cfg": towers, "preprocess_cfg": images})
    write_weights(trunk.towers.state_dict(), folder / OPEN_CLIP_WEIGHTS)
    _write_side_files(model, folder, known, LOADING_OPEN_CLIP.format(name=name), licence, warning)
    return warning


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


class _UnitRows(nn.Module):
    """Wraps one encoder as a module of one input, for the exporter. `model` registers the weights."""

    def __init__(self, model: nn.Module, encode: Callable[[Tensor], Tensor]):
        super().__init__()
        self.model = model
        self.encode = encode

    def forward(self, inputs: Tensor) -> Tensor:
        return F.normalize(self.encode(inputs), dim=-1)


def write_onnx_folder(
    model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = ""
) -> dict[str, float]:
    """Write graphs into an empty folder that will be called `name`. Return each graph's largest difference to PyTorch.

    The graphs are compared with the model on drawn pairs, at several batch sizes.
    """
    demand_onnx()
    parts, size = model.parts, model.image_spec.size
    pictures, captions = trial_pairs(max(BATCHES))
    images = torch.stack([model.preprocess(picture) for picture in pictures])
    ids = model.tokenizer(captions, full=True)
    look = _UnitRows(parts, lambda pixels: parts.see(parts.normalised(pixels)).raw)
    read = _UnitRows(parts, lambda texts: parts.read(texts).raw)
    graphs = {
        IMAGE: (look, "images", images, model.encode_image(images), f"uint8 [B, 3, {size}, {size}]"),
        TEXT: (read, "ids", ids, model.encode_text(ids), f"int64 [B, {model.text_spec.context_length}]"),
    }
    described: dict[str, dict[str, Any]] = {}
    bar = tqdm(graphs.items(), desc="ONNX", unit="graph", leave=False)
    for file, (module, input_name, inputs, expected, shape) in bar:
        _trace(module, inputs, input_name, folder / file)
        described[file] = {
            "input": f"{input_name}: {shape}",
            "output": f"embeddings: float32 [B, {model.dim}], unit norm",
            "difference": _difference(folder / file, input_name, inputs, expected),
        }
    _write_json(folder / DESCRIPTION, described)
    _write_side_files(model, folder, known, LOADING_ONNX.format(name=name), licence)
    return {file: about["difference"] for file, about in described.items()}


def demand_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        install = "pip install 'dinorankclip[onnx]'"
        raise UserError(f"ONNX needs packages that are not installed ({error.name}): {install}") from error


def _trace(module: nn.Module, example: Tensor, input_name: str, path: Path) -> None:
    module.eval()
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the exporter's internals
            torch.onnx.export(
                module,
                (example,),
                path,
                dynamo=True,
                input_names=[input_name],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=size > _LARGEST_FILE,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"PyTorch cannot write this model as ONNX: {first_line(error)}") from error
    finally:
        logger.setLevel(before)


def _difference(path: Path, input_name: str, inputs: Tensor, expected: Tensor) -> float:
    """Return the largest difference between the graph and PyTorch; raise an error above the tolerance."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = (torch.from_numpy(session.run(None, {input_name: inputs[:batch].numpy()})[0]) for batch in BATCHES)
    differences = torch.stack([(rows - expected[: len(rows)].cpu()).abs().max() for rows in outputs])
    worst = float(differences.max())  # NaN if any row holds NaN
    if not worst <= TOLERANCE:
        raise UserError(
            f"{path.name} differs from PyTorch by {worst:.1e}, more than {TOLERANCE}: nothing was written. Please "
            "report it with the trunk's name"
        )
    return worst
