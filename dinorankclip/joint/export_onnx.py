"""Both encoders as ONNX graphs, checked against PyTorch before they are handed out.

    image.onnx   uint8 pixels [B, 3, S, S] → unit-norm embeddings [B, D]; the normalisation of pixels is inside
    text.onnx    int64 ids [B, context length], padded with 0 → unit-norm embeddings [B, D]

B is free. Graphs hold whatever the model has: trunk, students, fusion.
"""

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

from dinorankclip.joint.card import card
from dinorankclip.joint.export_folder import CARD, write_companions
from dinorankclip.joint.loaded import LoadedModel
from dinorankclip.joint.trial_pairs import trial_pairs
from dinorankclip.types import UserError, first_line

IMAGE, TEXT, DESCRIPTION = "image.onnx", "text.onnx", "onnx.json"
TOLERANCE = 1e-3
TRIALS = 7
_BATCHES = (1, 2, TRIALS)  # a graph whose batch size was frozen by mistake fails at one of them
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
    pictures, captions = trial_pairs(TRIALS)
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
