"""Writes both encoders as ONNX graphs, with students and fusion, and compares them with the model. B is free.

    image.onnx   uint8 pixels [B, 3, S, S] → unit-norm embeddings [B, D]; pixels are normalised inside
    text.onnx    int64 ids [B, context length], padded → unit-norm embeddings [B, D]

`precision` is the type of the stored weights:
    fp32   as trained
    fp16   weights in 16 bits, computed in 32
    int8   matrix products by onnxruntime's dynamic quantisation, per channel; convolutions and token tables have
           weights in 8 bits and compute in 32
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from dinorankclip.data.own_vocabulary import Vocabulary
from dinorankclip.extras import naming_extras
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import CardHead
from dinorankclip.models.export_files import PIECES, Export, tower_pieces, write_json, write_side_files
from dinorankclip.models.loaded import LoadedModel, trial_pairs
from dinorankclip.models.onnx_weights import halved, quantised
from dinorankclip.types import UserError, first_line

IMAGE, TEXT, DESCRIPTION = "image.onnx", "text.onnx", "onnx.json"
PRECISIONS = ("fp32", "fp16", "int8")
TOLERANCE = 1e-3  # largest accepted difference between an fp32 graph and PyTorch
LEAST_COSINE = {"fp16": 0.999, "int8": 0.97}  # smallest accepted cosine of the smaller graphs
TRIALS = 16  # scenes and captions
BATCHES = (1, 2, 7)  # a graph with a frozen batch size fails at one of these sizes
_LARGEST_FILE = 1_500_000_000  # bytes; protobuf ends at 2 GB, above it weights lie beside the graph
LOADING_ONNX = """\
import numpy, onnxruntime
from PIL import Image, ImageOps
{imports}
photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
photo = {shown}
pixels = numpy.asarray(photo).transpose(2, 0, 1)[None]
ids = {ids}
image, text = (onnxruntime.InferenceSession(f"{name}/{{part}}.onnx") for part in ("image", "text"))
print(image.run(None, {{"images": pixels}})[0] @ text.run(None, {{"ids": ids}})[0].T)"""


def loading_lines(model: LoadedModel, name: str) -> str:
    """Return the lines of a card that run a pair of graphs with onnxruntime alone."""
    spec, longest = model.image_spec, model.text_spec.context_length
    size = f"({spec.size}, {spec.size}), Image.Resampling.{spec.interpolation.upper()}"
    shown = f"photo.resize({size})" if spec.resize == "squash" else f"ImageOps.fit(photo, {size})  # the centre"
    parts = model.parts
    padding = 0
    own: Any = tower_pieces(parts) if isinstance(parts, AlignedModel) else parts.vocabulary
    if isinstance(own, Vocabulary):
        padding = own.padding
    if own is None:
        imports, ids = (
            "from open_clip.tokenizer import SimpleTokenizer",
            f'SimpleTokenizer(context_length={longest})(["a red mug"]).numpy()',
        )
    else:
        imports = f'from tokenizers import Tokenizer\npieces = Tokenizer.from_file("{name}/{PIECES}")'
        imports += f"\npieces.enable_truncation({longest})\npieces.enable_padding(length={longest}, pad_id={padding})"
        ids = 'numpy.array([pieces.encode("a red mug").ids])'
    return LOADING_ONNX.format(name=name, imports=imports, shown=shown, ids=ids)


class _UnitRows(nn.Module):
    """Wraps one encoder as a module of one input, for the exporter. `model` registers the weights."""

    def __init__(self, model: nn.Module, encode: Callable[[Tensor], Tensor]):
        super().__init__()
        self.model = model
        self.encode = encode

    def forward(self, inputs: Tensor) -> Tensor:
        return F.normalize(self.encode(inputs), dim=-1)


def write_onnx_folder(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    """Write graphs into an empty folder. Return how far they are from PyTorch, and their sizes, in words."""
    remarks = write_graphs(model, folder, export.precision)
    write_side_files(model, folder, export, loading_lines(model, export.name), head=CardHead("onnx"))
    return remarks


def write_graphs(model: LoadedModel, folder: Path, precision: str) -> list[str]:
    """Write image.onnx and text.onnx, checked on drawn pairs at several batch sizes, and onnx.json about them."""
    demand_onnx()
    parts, size = model.parts, model.image_spec.size
    pictures, captions = trial_pairs(TRIALS)
    images = torch.stack([model.preprocess(picture) for picture in pictures])
    ids = model.tokenizer(captions, full=True)
    look = _UnitRows(parts, lambda pixels: parts.see(parts.normalised(pixels)).raw)
    read = _UnitRows(parts, lambda texts: parts.read(texts).raw)
    graphs = {
        IMAGE: (look, "images", images, model.encode_image(images), f"uint8 [B, 3, {size}, {size}]"),
        TEXT: (read, "ids", ids, model.encode_text(ids), f"int64 [B, {model.text_spec.context_length}]"),
    }
    described: dict[str, dict[str, Any]] = {}
    remarks = []
    bar = tqdm(graphs.items(), desc="ONNX", unit="graph", leave=False)
    for file, (module, input_name, inputs, expected, shape) in bar:
        path, few = folder / file, max(BATCHES)
        _trace(module, inputs[:few], input_name, path)
        about = {
            "input": f"{input_name}: {shape}",
            "output": f"embeddings: float32 [B, {model.dim}], unit norm",
            "precision": precision,
            "difference": _difference(path, input_name, inputs[:few], expected[:few]),
        }
        before = stored_bytes(path)
        if precision != "fp32":
            (halved if precision == "fp16" else quantised)(path)
            about["difference"] = None  # of the fp32 graph; the cosine tells about this one
        about["least_cosine"] = least = _least_cosine(path, input_name, inputs, expected, precision)
        described[file] = about
        remarks.append(
            f"{file}: differs from PyTorch by at most {about['difference']:.1e} (allowed: {TOLERANCE:g}), smallest "
            f"cosine {least:.7f}"
            if precision == "fp32"
            else f"{file}: {precision}, {readable_size(before)} → {readable_size(stored_bytes(path))}, smallest cosine "
            f"to PyTorch {least:.5f}"
        )
    write_json(folder / DESCRIPTION, described)
    return remarks


def stored_bytes(path: Path) -> int:
    """Return the size of a graph with the weights that lie beside it."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def readable_size(count: int) -> str:
    for unit, worth in (("MB", 1e6), ("kB", 1e3)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return f"{count} B"


def _least_cosine(path: Path, input_name: str, inputs: Tensor, expected: Tensor, precision: str) -> float:
    """Return the smallest cosine between rows of a graph and PyTorch's; refuse a graph that lost too much."""
    (rows,) = _rows(path, input_name, inputs, (len(inputs),))
    least = float(F.cosine_similarity(rows.float(), expected.cpu(), dim=-1).min())
    if precision in LEAST_COSINE and not least >= LEAST_COSINE[precision]:
        raise UserError(
            f"{path.name} in {precision} is too far from the model (smallest cosine {least:.4f}, at least "
            f"{LEAST_COSINE[precision]} is demanded): nothing was written; use --precision fp16 or fp32"
        )
    return least


def demand_onnx() -> None:
    with naming_extras("ONNX"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


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


def _rows(path: Path, input_name: str, inputs: Tensor, batches: tuple[int, ...]) -> list[Tensor]:
    """Return what a graph gives for the first inputs, at several batch sizes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(session.run(None, {input_name: inputs[:batch].numpy()})[0]) for batch in batches]


def _difference(path: Path, input_name: str, inputs: Tensor, expected: Tensor) -> float:
    """Return the largest difference between an fp32 graph and PyTorch; raise an error above the tolerance."""
    outputs = _rows(path, input_name, inputs, BATCHES)
    differences = torch.stack([(rows - expected[: len(rows)].cpu()).abs().max() for rows in outputs])
    worst = float(differences.max())  # NaN if any row holds NaN
    if not worst <= TOLERANCE:
        raise UserError(
            f"{path.name} differs from PyTorch by {worst:.1e}, more than {TOLERANCE}: nothing was written. Please "
            "report it with the trunk's name"
        )
    return worst
