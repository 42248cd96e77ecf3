"""CLIP and SigLIP folders in transformers' true layout: small, random weights, vocabularies of their own."""

import json
from pathlib import Path

import torch

WORDS = ["[UNK]", "<s>", "<pad>", "</s>", "a", "red", "mug", "dog", "boat", "two", "run"]
TEXTS = ["a red mug", "Two dog", "", "a boat " * 20]


def _tokenizer(folder: Path, template: str, pad: str) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = [("<s>", 1), ("</s>", 3)]
    pieces.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    pieces.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": pad}))


def clip_folder(folder: Path, activation: str = "quick_gelu"):
    """Write a CLIP folder; return transformers' model."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    torch.manual_seed(1)
    tower = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": activation}
    ids = {"vocab_size": 40, "max_position_embeddings": 20, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 2}
    text = tower | ids | {"hidden_size": 32, "intermediate_size": 96}
    image = tower | {"hidden_size": 48, "intermediate_size": 192, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=24)).eval()
    model.save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    _tokenizer(folder, "<s> $A </s>", "<pad>")
    return model


def siglip_folder(folder: Path):
    """Write a SigLIP folder; return transformers' model."""
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    torch.manual_seed(2)
    tower = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 48}
    ids = {"vocab_size": 40, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 3}
    image = tower | {"intermediate_size": 100, "image_size": 32, "patch_size": 8}
    config = SiglipConfig(text_config=tower | ids | {"intermediate_size": 96}, vision_config=image)
    model = SiglipModel(config).eval()
    model.save_pretrained(folder)
    SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    _tokenizer(folder, "$A </s>", "</s>")
    return model


def rows_of(output):
    return getattr(output, "pooler_output", output)
