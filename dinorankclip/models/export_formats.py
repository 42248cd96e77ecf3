"""An export that `load_model` reads: model folder, preprocessing, vocabulary, origin and card in one place."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from dinorankclip.models.card import RECORD, card
from dinorankclip.models.folder import OPEN_CLIP_CONFIG, save_model, write_vocabulary
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import LoadedModel, trial_pairs
from dinorankclip.models.weights_file import Undrawn, write_weights
from dinorankclip.types import ImageSpec, UserError, first_line

PREPROCESSING = "preprocess.json"
CARD = "README.md"
LOADING_OURS = """\
from dinorankclip import load_model
model = load_model("{name}")
model.encode_image(model.preprocess("photo.jpg")[None]) @ model.encode_text(["a red mug"]).T"""


def write_model_folder(model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = "") -> None:
    """Everything that is needed to use the model, into an empty folder that will be called `name`."""
    save_model(model.parts, folder, seal=True)
    write_companions(model, folder, known)
    (folder / CARD).write_text(card(model, known, LOADING_OURS.format(name=name), licence=licence))


def write_companions(model: LoadedModel, folder: Path, known: dict[str, Any]) -> None:
    """What every format has beside its weights: preprocessing, vocabulary, origin."""
    (folder / PREPROCESSING).write_text(json.dumps(preprocessing(model.image_spec), indent=2) + "\n")
    write_vocabulary(folder, model.text_spec)
    write_record(folder, known)


def write_record(folder: Path, known: dict[str, Any]) -> None:
    (folder / RECORD).write_text(json.dumps(known, indent=2) + "\n")


def preprocessing(spec: ImageSpec) -> dict[str, Any]:
    """How an image becomes pixels, in words and numbers that another program can follow."""
    return {
        "upright": "EXIF orientation applied; transparency laid on white; RGB",
        "resize": f"the shorter side to {spec.size}, the longer one in proportion, rounded down",
        "crop": f"the centre, {spec.size} by {spec.size}, after resizing",
        "interpolation": "bicubic, antialiased",
        "mean": list(spec.mean),
        "std": list(spec.std),
        "normalise": "(pixel/255 - mean)/std",
    }


# -------- export_open_clip
# The trunk alone in open_clip's folder format: `open_clip.create_model_and_transforms("local-dir:FOLDER")`.

WEIGHTS = "open_clip_model.safetensors"  # the name that open_clip prefers
TRIALS = 32
LOADING_OPEN_CLIP = """\
import open_clip
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:{name}")
tokenizer = open_clip.get_tokenizer("local-dir:{name}")"""
# Not for open_clip's constructors: preprocess_cfg has a place of its own, a captioning head is never built here.
_NOT_OF_THE_TOWERS = ("preprocess_cfg", "multimodal_cfg")


def write_open_clip_folder(
    model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = ""
) -> str:
    """Into an empty folder that will be called `name`. Returns what the trunk alone leaves out ("" if nothing)."""
    warning = what_is_left_out(model)
    if warning:
        known = known | {"scores": None, "set_scores": None}  # they are of the whole model
    model = _trunk_alone(model)
    trunk, spec = model.parts.trunk, model.image_spec
    config = {
        "model_cfg": {key: value for key, value in trunk.config.items() if key not in _NOT_OF_THE_TOWERS},
        "preprocess_cfg": {
            "mean": list(spec.mean),
            "std": list(spec.std),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }
    (folder / OPEN_CLIP_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    write_weights(trunk.towers.state_dict(), folder / WEIGHTS)
    write_companions(model, folder, known)
    (folder / CARD).write_text(card(model, known, LOADING_OPEN_CLIP.format(name=name), warning, licence))
    return warning


def what_is_left_out(model: LoadedModel) -> str:
    """For a fused model: how far its embeddings are from the trunk's own, in words."""
    parts = model.parts
    if parts.image_fusion is None and parts.text_fusion is None:
        return ""
    pictures, captions = trial_pairs(TRIALS)
    seen = model.look(torch.stack([model.preprocess(picture) for picture in pictures]))
    read = model.read(captions)
    turns = [
        f"{side} embeddings by {float(angle.mean()):.1f}° on average ({float(angle.max()):.1f}° at most)"
        for side, angle in (("image", seen.angle), ("text", read.angle))
        if angle is not None
    ]
    return (
        f"This is the trunk alone, not the whole model: students and fusion, which are left out, turn "
        f"{' and '.join(turns)}, measured on {TRIALS} built-in scenes. Scores of the whole model do not hold for it."
    )


def _trunk_alone(model: LoadedModel) -> LoadedModel:
    with Undrawn():
        parts = JointModel(model.parts.trunk.config)
    parts.trunk = model.parts.trunk
    return LoadedModel(parts, model.name, model.placement)


# -------- export_onnx
# Both encoders as ONNX graphs, checked against PyTorch before they are handed out.
#
#     image.onnx   uint8 pixels [B, 3, S, S] → unit-norm embeddings [B, D]; the normalisation of pixels is inside
#     text.onnx    int64 ids [B, context length], padded with 0 → unit-norm embeddings [B, D]
#
# B is free. Graphs hold whatever the model has: trunk, students, fusion.

IMAGE, TEXT, DESCRIPTION = "image.onnx", "text.onnx", "onnx.json"
TOLERANCE = 1e-3
ONNX_TRIALS = 7
_BATCHES = (1, 2, ONNX_TRIALS)  # a graph whose batch size was frozen by mistake fails at one of them
_LARGEST_FILE = 1_500_000_000  # bytes; protobuf ends at 2 GB, above it weights lie beside the graph
INSTALL = "pip install 'dinorankclip[onnx]'"
LOADING = """\
import onnxruntime
image, text = (onnxruntime.InferenceSession(f"{name}/{{part}}.onnx") for part in ("image", "text"))
similarity = image.run(None, {{"images": pixels}})[0] @ text.run(None, {{"ids": ids}})[0].T  # uint8, int64"""


class _Image(nn.Module):
    def __init__(self, model: LoadedModel):
        super().__init__()
        self.parts = model.parts

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.parts.see(self.parts.normalised(images)).raw, dim=-1)


class _Text(nn.Module):
    def __init__(self, model: LoadedModel):
        super().__init__()
        self.parts = model.parts

    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(self.parts.read(ids).raw, dim=-1)


def write_onnx_folder(
    model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = ""
) -> dict[str, float]:
    """Into an empty folder that will be called `name`. Returns the largest difference to PyTorch of each graph."""
    demand_packages()
    pictures, captions = trial_pairs(ONNX_TRIALS)
    images = torch.stack([model.preprocess(picture) for picture in pictures])
    ids = model.tokenizer(captions, full=True)
    graphs = {
        IMAGE: (_Image(model), "images", images, model.encode_image(images)),
        TEXT: (_Text(model), "ids", ids, model.encode_text(ids)),
    }
    differences = {}
    for file, (module, input_name, inputs, expected) in tqdm(graphs.items(), desc="ONNX", unit="graph", leave=False):
        _trace(module, inputs, input_name, folder / file)
        differences[file] = _difference(folder / file, input_name, inputs, expected)
    described: dict[str, dict[str, Any]] = {
        IMAGE: {"input": f"images: uint8 [B, 3, {model.image_spec.size}, {model.image_spec.size}]"},
        TEXT: {"input": f"ids: int64 [B, {model.text_spec.context_length}]"},
    }
    for file, difference in differences.items():
        described[file] |= {"output": f"embeddings: float32 [B, {model.dim}], unit norm", "difference": difference}
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=2) + "\n")
    write_companions(model, folder, known)
    (folder / CARD).write_text(card(model, known, LOADING.format(name=name), licence=licence))
    return differences


def demand_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX needs packages that are not installed ({error.name}): {INSTALL}") from error


def _trace(module: nn.Module, example: Tensor, input_name: str, path: Path) -> None:
    module.eval()
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    quiet = logging.getLogger("torch.onnx")
    before = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter talks about its own insides
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
        quiet.setLevel(before)


def _difference(path: Path, input_name: str, inputs: Tensor, expected: Tensor) -> float:
    """The largest difference between the graph and PyTorch, at several batch sizes; too large a one is an error."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in _BATCHES:
        found = torch.from_numpy(session.run(None, {input_name: inputs[:batch].numpy()})[0])
        worst = max(worst, float((found - expected[:batch].cpu()).abs().max()))
    if not worst <= TOLERANCE:
        raise UserError(
            f"{path.name} differs from PyTorch by {worst:.1e}, more than {TOLERANCE}: nothing was written. Please "
            "report it with the trunk's name"
        )
    return worst
