"""Scores of exported models, each embedded by the library that opens it, beside those of the model itself:

    python -m bench.exported_scores --model runs/mine --data data/flickr8k --formats onnx-int8 sentence-transformers
    python -m bench.exported_scores --model transformers:FOLDER --data data/flickr8k --formats transformers

Every format embeds all images and captions of the test part: onnxruntime, `SentenceTransformer.encode`, or transformers
with its own processor and tokenizer. The model's own rows are those of `load_model`. Recall is computed by the same
function for all. A `transformers:` model is not exported: its folder is opened by transformers as it is.
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from bench.harness import in_words, machine_now, today, write_dated
from dinorankclip.data.open_data import open_stored
from dinorankclip.evaluate.retrieval import retrieval_scores
from dinorankclip.models.export_model import write_export
from dinorankclip.models.loaded import LoadedModel, load_model

BATCH = 64
FOREIGN = "transformers:"
Rows = tuple[Tensor, Tensor]  # images [n, D] and captions [T, D], of length 1
Embedder = Callable[[LoadedModel, Path, Sequence[bytes], Sequence[str]], Rows]


def own_rows(model: LoadedModel, photos: Sequence[bytes], texts: Sequence[str]) -> Rows:
    images = [model.encode_image(torch.stack([model.preprocess(photo) for photo in part])) for part in _parts(photos)]
    return torch.cat(images), torch.cat([model.encode_text(part) for part in _parts(texts)])


def onnx_rows(model: LoadedModel, folder: Path, photos: Sequence[bytes], texts: Sequence[str]) -> Rows:
    """Embed by onnxruntime; pixels and ids are made as for the model."""
    import onnxruntime

    sessions = {
        name: onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("image", "text")
    }
    images = [
        sessions["image"].run(None, {"images": torch.stack([model.preprocess(photo) for photo in part]).numpy()})[0]
        for part in _parts(photos)
    ]
    captions = [
        sessions["text"].run(None, {"ids": model.tokenizer(list(part), full=True).numpy()})[0] for part in _parts(texts)
    ]
    return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(captions))


def sentence_rows(model: LoadedModel, folder: Path, photos: Sequence[bytes], texts: Sequence[str]) -> Rows:
    from sentence_transformers import SentenceTransformer

    opened = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    encode = lambda items: F.normalize(  # noqa: E731
        opened.encode(list(items), batch_size=BATCH, convert_to_tensor=True).float(), dim=1
    )
    return encode(_pictures(photos)), encode(texts)


def transformers_rows(model: LoadedModel, folder: Path, photos: Sequence[bytes], texts: Sequence[str]) -> Rows:
    """Embed by `AutoModel`, its image processor and its tokenizer. Our own adapter has no `text_config`."""
    from transformers import AutoImageProcessor, AutoModel, PreTrainedTokenizerFast

    trust: Any = {"trust_remote_code": not model.name.startswith(FOREIGN)}
    opened: Any = AutoModel.from_pretrained(folder, **trust).eval()
    processor = AutoImageProcessor.from_pretrained(folder, **trust)
    length = getattr(getattr(opened.config, "text_config", None), "max_position_embeddings", None)
    padding: Any = True if length is None else "max_length"
    read = ("input_ids", "attention_mask") if length is None else ("input_ids",)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    images, captions = [], []
    with torch.inference_mode():
        for part in _parts(photos):
            pixels = processor(_pictures(part), return_tensors="pt")["pixel_values"]
            images.append(_pooled(opened.get_image_features(pixel_values=pixels)))
        for words in _parts(texts):
            ids = tokenizer(list(words), padding=padding, truncation=True, max_length=length, return_tensors="pt")
            captions.append(_pooled(opened.get_text_features(**{name: ids[name] for name in read})))
    return F.normalize(torch.cat(images), dim=1), F.normalize(torch.cat(captions), dim=1)


# name → (embedder, format of `export`, precision)
FORMATS: dict[str, tuple[Embedder, str, str]] = {
    "onnx-fp32": (onnx_rows, "onnx", "fp32"),
    "onnx-fp16": (onnx_rows, "onnx", "fp16"),
    "onnx-int8": (onnx_rows, "onnx", "int8"),
    "sentence-transformers": (sentence_rows, "sentence-transformers", "fp32"),
    "transformers": (transformers_rows, "transformers", "fp32"),
}


def _pooled(output: Any) -> Tensor:
    return getattr(output, "pooler_output", output)


def _pictures(photos: Sequence[bytes]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(photo)).convert("RGB") for photo in photos]


def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def row_of(name: str, rows: Rows, own: Rows, captions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return recalls in per cent, and the smallest cosine to the model's own rows."""
    recalls = {score.name: round(100 * score.value, 2) for score in retrieval_scores(*rows, captions)}
    cosines = [float((a * b).sum(1).min()) for a, b in zip(rows, own)]
    return {"format": name, "images": cosines[0], "captions": cosines[1], "recalls": recalls}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--label", help="name of the model in the record; by default --model")
    parser.add_argument("--data", required=True, help="pairs with a test part")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["onnx-int8", "sentence-transformers"])
    parser.add_argument("--most", type=int, help="test images; by default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    about = machine_now(options.threads)
    source = open_stored(options.data, split="test")
    samples = [source.read(index) for index in range(len(source))][: options.most]
    captions = [sample.captions for sample in samples]
    photos, texts = [sample.image for sample in samples], [text for group in captions for text in group]
    model = load_model(options.model, device="cpu")
    own = own_rows(model, photos, texts)
    table = [row_of("load_model", own, own, captions)]
    with tempfile.TemporaryDirectory(prefix="exported-") as scratch:
        for name in options.formats:
            embed, kind, precision = FORMATS[name]
            folder = Path(options.model.removeprefix(FOREIGN)) if options.model.startswith(FOREIGN) else None
            if folder is None:
                folder = Path(scratch) / name
                write_export(options.model, folder, [kind], licence="mit", precision=precision)  # type: ignore[arg-type]
            table.append(row_of(name, embed(model, folder, photos, texts), own, captions))
            print(table[-1], flush=True)
    label = options.label or options.model
    lines = [f"# Exported scores: {label}", "", f"{len(photos)} test images, {len(texts)} captions.", ""]
    lines += ["| opened by | R@1 i→t | R@1 t→i | mean R@1 | smallest cosine, images | captions |"]
    lines += ["| --- | --: | --: | --: | --: | --: |"]
    for row in table:
        recalls = row["recalls"]
        lines.append(
            f"| {row['format']} | {recalls['i2t R@1']} | {recalls['t2i R@1']} | {recalls['mean R@1']} | "
            f"{row['images']:.7f} | {row['captions']:.7f} |"
        )
    record = {"bench": "exported-scores", "machine": about, "model": label, "images": len(photos), "rows": table}
    slug = re.sub(r"\W+", "-", label)
    lines += ["", f"Machine: {in_words(about)}."]
    write_dated(options.out, f"exported-scores-{slug}", today(), record, "\n".join(lines))


if __name__ == "__main__":
    main()
