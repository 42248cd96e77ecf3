"""Writes a model for the library transformers, and for sentence-transformers on top of it.

A plain trunk becomes what it is: a `CLIPModel` (or `SiglipModel`) with processor and tokenizer, which needs nothing of
this package. Students, a fusion, frozen towers and other networks are no model of transformers: these folders hold our
own model folder and a small adapter (hub_code.py, sentence_code.py), so opening them needs `trust_remote_code=True` and
the package dinorankclip. Command, card and docs say so.

Every folder is opened by the library and compared with the model before it takes its place.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dinorankclip.data.own_vocabulary import opened
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.extras import naming_extras
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import CardHead
from dinorankclip.models.export_files import (
    Export,
    demand_agreement,
    least_cosine,
    tower_pieces,
    trial_photos,
    write_json,
    write_side_files,
    write_towers,
)
from dinorankclip.models.folder import save_model
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.models.transformers_layout import CLIP, kind_of, to_theirs, transformers_config
from dinorankclip.models.weights_file import write_weights
from dinorankclip.types import TextSpec

WEIGHTS, CONFIG = "model.safetensors", "config.json"
CODE, SENTENCE_CODE = "modeling_dinorankclip.py", "sentence_dinorankclip.py"
_HERE = Path(__file__).parent
_FILTERS = {"bicubic": 3, "bilinear": 2}  # Pillow's numbers
LOADING_CLIP = """\
from PIL import Image
from transformers import {kind}Model, {kind}Processor
model, processor = {kind}Model.from_pretrained("{name}"), {kind}Processor.from_pretrained("{name}")
inputs = processor(text=["a red mug"], images=Image.open("photo.jpg"), return_tensors="pt", **{how})
outputs = model(**inputs)
print(outputs.image_embeds @ outputs.text_embeds.T)"""
LOADING_AUTO = """\
from PIL import Image
from transformers import AutoModel, AutoProcessor
model = AutoModel.from_pretrained("{name}", trust_remote_code=True)  # needs: pip install dinorankclip
processor = AutoProcessor.from_pretrained("{name}", trust_remote_code=True)
photo, how = Image.open("photo.jpg"), {{"padding": True, "truncation": True}}
inputs = processor(text=["a red mug"], images=photo, return_tensors="pt", **how)
outputs = model(**inputs)
print(outputs.image_embeds @ outputs.text_embeds.T)"""
LOADING_SENTENCE = """\
from PIL import Image
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("{name}"{trust})
print(model.encode([Image.open("photo.jpg")]) @ model.encode(["a red mug"]).T)"""
NEEDS_CODE = (
    "This model is no plain CLIP model of {library}: it has {parts}. The folder holds an adapter in Python, so opening "
    "it needs `trust_remote_code=True`, and the package dinorankclip (`pip install dinorankclip`)."
)
_BIAS_LEFT_OUT = "note: CLIPModel has no logit bias; cosines are the same, logits lack the bias {bias:.3f}"


def demand_transformers() -> None:
    with naming_extras("export --to transformers"):
        import tokenizers  # noqa: F401
        import transformers  # noqa: F401


def demand_sentence_transformers() -> None:
    demand_transformers()
    with naming_extras("export --to sentence-transformers"):
        import sentence_transformers  # noqa: F401


def native_kind(model: LoadedModel) -> str | None:
    """Return the kind of transformers' model that holds all of this model, "clip" or "siglip"; None if none does."""
    parts = model.parts
    if isinstance(parts, AlignedModel) or parts.image_fusion is not None or parts.text_fusion is not None:
        return None
    return kind_of(parts.trunk.config, set(parts.trunk.towers.state_dict()))


def write_transformers_folder(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    """Write a folder for `CLIPModel`, `SiglipModel` or `AutoModel`. Return remarks."""
    demand_transformers()
    quiet()
    kind = native_kind(model)
    if kind is None:
        remarks = _write_adapter(model, folder, export)
        from transformers import AutoModel, AutoProcessor

        library, trust = "AutoModel", {"trust_remote_code": True}
        opened_model: Any = AutoModel.from_pretrained(folder, **trust)
        processor: Any = AutoProcessor.from_pretrained(folder, **trust)  # otherwise it asks the user
    else:
        remarks = _write_native(model, folder, export, kind)
        import transformers

        library = "CLIPModel" if kind == CLIP else "SiglipModel"
        opened_model = getattr(transformers, library).from_pretrained(folder)
        processor = getattr(transformers, library.replace("Model", "Processor")).from_pretrained(folder)
    photos, captions = trial_photos()
    padding: Any = (
        {"padding": "max_length", "truncation": True} if kind == "siglip" else {"padding": True, "truncation": True}
    )
    with torch.no_grad():
        pixels = processor(images=photos, return_tensors="pt")
        texts = dict(processor(text=captions, return_tensors="pt", **padding))
        if kind == "siglip":
            texts.pop("attention_mask", None)
        images, words = opened_model.get_image_features(**pixels), opened_model.get_text_features(**texts)
    images, words = (getattr(each, "pooler_output", each) for each in (images, words))
    return [demand_agreement(least_cosine(model, images, words, photos, captions), library), *remarks]


def quiet() -> None:
    """Switch off progress bars and advice of transformers, which would tear a command's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _write_native(model: LoadedModel, folder: Path, export: Export, kind: str) -> list[str]:
    parts: Any = model.parts  # a JointModel, of which the trunk is all
    trunk, vocabulary = parts.trunk, parts.vocabulary
    tokenizer = write_processor(model, folder)
    end, padding = model.tokenizer.end_of_text, tokenizer.pad_token_id
    write_json(folder / CONFIG, transformers_config(kind, trunk.config, end, padding))
    write_weights(to_theirs(kind, trunk.config, trunk.towers.state_dict()), folder / WEIGHTS)
    names = {"kind": "CLIP" if kind == CLIP else "Siglip", "name": export.name}
    how = '{"padding": True, "truncation": True}'
    if kind != CLIP:
        how = '{"padding": "max_length", "truncation": True, "return_attention_mask": False}'
    head = CardHead("transformers")
    write_side_files(model, folder, export, LOADING_CLIP.format(**names, how=how), head=head)
    if vocabulary is not None:
        tokenizer.save_pretrained(folder)  # with the ids of its special tokens
    bias = parts.bias()
    return [_BIAS_LEFT_OUT.format(bias=bias.item())] if kind == CLIP and bias is not None else []


def _write_adapter(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    warning = write_adapter_files(model, folder, export, "transformers")
    head = CardHead("transformers", ("custom_code",))
    write_side_files(model, folder, export, LOADING_AUTO.format(name=export.name), warning, head)
    write_processor(model, folder)
    return [f"note: {warning}"]


def write_adapter_files(model: LoadedModel, folder: Path, export: Export, library: str) -> str:
    """Write our own model folder with the adapter for `AutoModel`. Return what to say about it."""
    save_model(model.parts, folder, seal=True)
    if isinstance(model.parts, AlignedModel) and export.towers == "inside":
        write_towers(model.parts, folder)
    shutil.copyfile(_HERE / "hub_code.py", folder / CODE)
    config = {
        "model_type": "dinorankclip",
        "architectures": ["DinoRankCLIPModel"],
        "auto_map": {
            "AutoConfig": f"{Path(CODE).stem}.DinoRankCLIPConfig",
            "AutoModel": f"{Path(CODE).stem}.DinoRankCLIPModel",
        },
        "projection_dim": model.dim,
        "dtype": "float32",
    }
    write_json(folder / CONFIG, config)
    return NEEDS_CODE.format(library=library, parts=_parts_in_words(model))


def _parts_in_words(model: LoadedModel) -> str:
    parts = model.parts
    if isinstance(parts, AlignedModel):
        return "frozen towers with trained heads"
    if parts.image_fusion is None and parts.text_fusion is None:
        return "towers that the library does not have"
    return "students and a fusion" if parts.fusion.source == "student" else "a fusion of the trunk's own tokens"


def write_processor(model: LoadedModel, folder: Path) -> Any:
    """Write the files of a processor: how images are shown, and the vocabulary. Return the tokenizer."""
    from transformers import CLIPImageProcessor, CLIPProcessor, SiglipImageProcessor, SiglipProcessor
    from transformers import VisionTextDualEncoderProcessor as AnyProcessor

    spec, native = model.image_spec, native_kind(model)
    shown: dict[str, Any] = {
        "image_mean": list(spec.mean),
        "image_std": list(spec.std),
        "resample": _FILTERS[spec.interpolation],
    }
    square = {"height": spec.size, "width": spec.size}
    if native == "siglip":
        images: Any = SiglipImageProcessor(size=square, **shown)
        if spec.resize != "squash":
            images = CLIPImageProcessor(size={"shortest_edge": spec.size}, crop_size=square, **shown)
    elif spec.resize == "squash":
        images = CLIPImageProcessor(size=square, do_center_crop=False, **shown)
    else:
        images = CLIPImageProcessor(size={"shortest_edge": spec.size}, crop_size=square, **shown)
    tokenizer = fast_tokenizer(model)
    both = {"clip": CLIPProcessor, "siglip": SiglipProcessor}.get(native or "", AnyProcessor)
    both(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return tokenizer


def fast_tokenizer(model: LoadedModel) -> Any:
    """Return transformers' tokenizer for the captions of a model."""
    from transformers import CLIPTokenizer, PreTrainedTokenizerFast

    parts, longest = model.parts, model.text_spec.context_length
    pieces = tower_pieces(parts) if isinstance(parts, AlignedModel) else None
    if pieces is not None:
        words = opened(pieces.read_text(encoding="utf-8"), str(pieces))
        words.no_truncation()
        special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=longest, **special)
    if not isinstance(parts, AlignedModel) and parts.vocabulary is not None:
        words = opened(parts.vocabulary.text, "the model's tokenizer.json")
        words.no_truncation()
        named = {
            "eos_token": words.id_to_token(parts.vocabulary.end),
            "pad_token": words.id_to_token(parts.vocabulary.padding),
        }
        return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=longest, **named)
    byte_pairs = Tokenizer(TextSpec(longest)).load()._bpe
    special_names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {special_names.get(token, token): number for token, number in byte_pairs.encoder.items()}
    merges = sorted(byte_pairs.bpe_ranks, key=byte_pairs.bpe_ranks.__getitem__)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=longest)


# --- sentence-transformers


def write_sentence_folder(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    """Write a folder for `SentenceTransformer`, which encodes photos and captions. Return remarks."""
    demand_sentence_transformers()
    quiet()
    from sentence_transformers import SentenceTransformer

    native = native_kind(model) == CLIP
    loading = LOADING_SENTENCE.format(name=export.name, trust="" if native else ", trust_remote_code=True")
    if native:
        write_transformers_folder(model, folder, export)
        remarks, head = [], CardHead("sentence-transformers", ("feature-extraction",))
        write_side_files(model, folder, export, loading, head=head)
        module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.CLIPModel"}
        write_json(folder / "modules.json", [module])
    else:
        warning = write_adapter_files(model, folder, export, "sentence-transformers")
        shutil.copyfile(_HERE / "sentence_code.py", folder / SENTENCE_CODE)
        head = CardHead("sentence-transformers", ("feature-extraction", "custom_code"))
        write_side_files(model, folder, export, loading, warning, head)
        kind = f"{Path(SENTENCE_CODE).stem}.DinoRankCLIPEncoder"
        write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
        remarks = [f"note: {warning}"]
    about = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", about)
    photos, captions = trial_photos()
    encoder = SentenceTransformer(str(folder), device="cpu", trust_remote_code=not native)
    images, texts = (np.asarray(encoder.encode(items, show_progress_bar=False)) for items in (photos, captions))
    least = least_cosine(model, images, texts, photos, captions)
    return [demand_agreement(least, "SentenceTransformer"), *remarks]
