"""Writes a page that searches photos in a browser: a pair of ONNX graphs, onnxruntime-web, and some JavaScript.

    index.html page.js page.css tokens.js pixels.js    the page (web/ of this room); it loads nothing from elsewhere
    image.onnx text.onnx                               the encoders (export_onnx.py)
    page.json tokens.json                              sizes and photos; the vocabulary
    photos.f32 photos/                                 with --images: embeddings fp32 [N, D], and small copies to show
    runtime/                                           with --runtime: three files of the npm package onnxruntime-web

The runtime has 14 MB of WebAssembly and is no part of this package: `npm install onnxruntime-web` brings it, and
--runtime names its folder. Without it the page says what to copy. Any file server serves the folder:
`python -m http.server --directory FOLDER`.
"""

from __future__ import annotations

import html.entities
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from dinorankclip.checked_files import parsed_json
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode
from dinorankclip.data.open_data import open_images
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import CardHead
from dinorankclip.models.export_files import Export, tower_pieces, write_json, write_side_files
from dinorankclip.models.export_onnx import write_graphs
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.types import UserError

PAGE = ("index.html", "page.js", "page.css", "tokens.js", "pixels.js")
RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")  # of onnxruntime-web
SHOWN_SIDE = 320  # pixels of the longer side of a copy that the page shows
MOST_PHOTOS = 20_000
BATCH = 32
LOADING = """\
import http.server
from functools import partial
handler = partial(http.server.SimpleHTTPRequestHandler, directory="{name}")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler)  # then server.serve_forever()"""
_HERE = Path(__file__).parent / "web"


def demand_runtime(folder: Path) -> None:
    """Refuse a folder that does not hold onnxruntime-web."""
    _runtime_files(folder)


def _runtime_files(folder: Path) -> list[Path]:
    for place in (
        folder,
        folder / "dist",
        folder / "onnxruntime-web/dist",
        folder / "node_modules/onnxruntime-web/dist",
    ):
        files = [place / name for name in RUNTIME]
        if all(file.is_file() for file in files):
            return files
    raise UserError(
        f"--runtime {folder} has no {', '.join(RUNTIME)}: give the folder in which you called npm install "
        "onnxruntime-web"
    )


def write_web_folder(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    """Write the page into an empty folder. Return remarks."""
    tokens = vocabulary(model)
    remarks = write_graphs(model, folder, export.precision)
    spec = model.image_spec
    about: dict[str, Any] = {
        "size": spec.size,
        "resize": spec.resize,
        "interpolation": spec.interpolation,
        "context_length": model.text_spec.context_length,
        "dim": model.dim,
        "photos": _write_photos(model, folder, export.images) if export.images else [],
    }
    write_side_files(model, folder, export, LOADING.format(name=export.name), head=CardHead("onnx"))
    write_json(folder / "page.json", about)
    write_json(folder / "tokens.json", tokens)
    for name in PAGE:
        shutil.copyfile(_HERE / name, folder / name)
    if export.runtime is None:
        remarks.append(
            f"note: the page needs {', '.join(RUNTIME)} of the npm package onnxruntime-web in runtime/: copy them, or "
            "export again with --runtime FOLDER"
        )
    else:
        (folder / "runtime").mkdir()
        for file in _runtime_files(export.runtime):
            shutil.copyfile(file, folder / "runtime" / file.name)
    photos = f"{len(about['photos'])} photos" if about["photos"] else "no photos (--images adds them)"
    return [*remarks, f"page with {photos}: python -m http.server --directory {export.name}, then open 127.0.0.1:8000"]


def vocabulary(model: LoadedModel) -> dict[str, Any]:
    """Return the vocabulary for tokens.js: CLIP's byte pairs, or the word pieces of a sentence encoder."""
    entities = {"entities": dict(html.entities.html5)}
    parts = model.parts
    pieces = tower_pieces(parts) if isinstance(parts, AlignedModel) else None
    if pieces is not None:
        return _word_pieces(parsed_json(pieces.read_bytes()), pieces) | entities
    if not isinstance(parts, AlignedModel) and parts.vocabulary is not None:
        raise UserError(
            "the page reads CLIP's byte pairs and BERT's word pieces; this model has a vocabulary of its own"
        )
    ranks = Tokenizer(model.text_spec).load()._bpe.bpe_ranks
    merges = [" ".join(pair) for pair in sorted(ranks, key=ranks.__getitem__)]
    return {"kind": "byte pairs", "merges": merges} | entities


def _word_pieces(described: dict[str, Any], path: Path) -> dict[str, Any]:
    words, cleaning = described.get("model") or {}, described.get("normalizer") or {}
    kinds = (words.get("type"), cleaning.get("type"), (described.get("pre_tokenizer") or {}).get("type"))
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer"):
        raise UserError(f"{path} holds no word pieces of BERT, which are all that the page can read: {kinds}")
    ids = words["vocab"]
    lower = bool(cleaning.get("lowercase", True))
    strips = cleaning.get("strip_accents")
    return {
        "kind": "word pieces",
        "pieces": sorted(ids, key=ids.__getitem__),
        "longest": words.get("max_input_chars_per_word", 100),
        "lower": lower,
        "accents": not (lower if strips is None else strips),
    }


def _write_photos(model: LoadedModel, folder: Path, images: Path) -> list[str]:
    """Embed the photos of a folder and write small copies; return their names. Damaged photos are left out."""
    source = open_images(images)
    if len(source) > MOST_PHOTOS:
        raise UserError(f"{images} has {len(source):,} photos; a page holds at most {MOST_PHOTOS:,}")
    (folder / "photos").mkdir()
    names: list[str] = []
    rows: list[torch.Tensor] = []
    waiting: list[torch.Tensor] = []
    for index in tqdm(range(len(source)), desc="photos", unit="photo", leave=False):
        try:
            pixels = decode(source.image(index))
        except Damage:
            continue
        waiting.append(model.preprocess(pixels))
        copy = Image.fromarray(pixels)
        copy.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
        packed = io.BytesIO()
        copy.save(packed, "JPEG", quality=80)  # without the photo's own metadata, such as its place
        (folder / "photos" / f"{len(names)}.jpg").write_bytes(packed.getvalue())
        names.append(Path(source.key(index)).name)
        if len(waiting) == BATCH:
            rows.append(model.encode_image(torch.stack(waiting)))
            waiting = []
    if waiting:
        rows.append(model.encode_image(torch.stack(waiting)))
    if not names:
        raise UserError(f"{images} has no photo that can be read")
    (folder / "photos.f32").write_bytes(torch.cat(rows).cpu().numpy().astype(np.float32).tobytes())
    return names
