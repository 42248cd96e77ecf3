"""Opens text teachers (the text tower of dino.txt, a random control) and finds the words of their tokens.

Teacher and student cut a caption into different pieces. Both are pooled to the words of the caption, so that rows
correspond (D20). A word is a piece between spaces, after the cleaning of CLIP's tokenizer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.data.tokens import Tokenizer, cleaned
from dinorankclip.losses.resampling import word_matrix
from dinorankclip.seeds import drawing_from
from dinorankclip.teachers import weights_files
from dinorankclip.teachers.frozen_teacher import CaptionReader, TeacherCard, TextTeacher, control_card
from dinorankclip.types import TextSpec, UserError

# --- words of a caption


def caption_words(caption: str) -> list[str]:
    """Mend broken Unicode, resolve HTML entities, lower the case and split at white space."""
    return cleaned(caption).split()


def bpe_word_ids(tokenizer: Tokenizer, captions: Sequence[str], length: int | None = None) -> Tensor:
    """Return int64 [B, T]: the word of each of the ids of `tokenizer(captions)`, -1 for none.

    `length` is T, by default that of the longest caption. CLIP's byte-pair encoding never joins two words, so the ids
    of a caption are those of its words, one after the other. A word whose last pieces were cut off has no tokens.
    """
    rows = [_word_ids(tokenizer, caption) for caption in captions]
    length = max(map(len, rows), default=1) if length is None else length
    return torch.tensor([row[:length] + [-1] * (length - len(row)) for row in rows]).reshape(len(rows), length)


def _word_ids(tokenizer: Tokenizer, caption: str) -> list[int]:
    whole = tokenizer.encode(caption)
    row = [-1]
    pieces: list[int] = []
    for number, word in enumerate(caption_words(caption)):
        ids = tokenizer.encode(word)[1:-1]
        if len(pieces) + len(ids) > len(whole) - 2:  # this word did not fit
            break
        pieces += ids
        row += [number] * len(ids)
    if pieces != whole[1 : 1 + len(pieces)]:
        # Nested HTML entities: a word cleaned on its own differs from the cleaned caption, and the pieces cannot be
        # assigned. Such a caption counts as a caption without words.
        return [-1] * len(whole)
    return row + [-1] * (len(whole) - len(row))


def pool_words(tokens: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean token of each word [B, W, C] and a mask of the words that have tokens [B, W].

    A mean divides a sum, whereas `losses.resampling.word_pooling` adds quotients. The last bit of words of three pieces
    differs, and the bytes of a cache depend on it: one in a million changes.
    """
    words = int(word_ids.max()) + 1 if word_ids.numel() else 0
    averaging, exists = word_matrix(word_ids, words)
    belongs = averaging > 0
    tokens = tokens.float().masked_fill((word_ids < 0)[..., None], 0.0)
    return belongs.float() @ tokens / belongs.sum(-1).clamp_min(1)[..., None], exists


# --- dino.txt (ViT-L variant): `dinotxt:FILE`
#
# The file is Meta's `dinov3_vitl16_dinotxt_vision_head_and_text_encoder-….pth`. Its tensors that matter here:
#     text_model.backbone.{token_embedding.weight, positional_embedding, ln_final.*}
#     text_model.backbone.blocks.N.{attention_norm, attention.qkv, attention.proj, ffn_norm, feed_forward.fc1, .fc2}.*
#     text_model.head.linear_projection.weight
# The tower is a causal pre-norm transformer over CLIP's byte pairs: 24 layers of width 1280 with heads of 64, 77
# positions. Token features are those of the backbone after its final norm. The summary is the aligned text embedding:
# the projected end-of-text token. Since the tower is causal, a batch can be cut to its longest caption.

PREFIX = "text_model."
HEAD_WIDTH = 64
_FILE = "dinov3_vitl16_dinotxt_vision_head_and_text_encoder-a442d8f5.pth"


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, -1, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = _Attention(width)
        self.ffn_norm = nn.LayerNorm(width)
        layers = {"fc1": nn.Linear(width, hidden), "gelu": nn.GELU(), "fc2": nn.Linear(hidden, width)}
        self.feed_forward = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class _Backbone(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int, layers: int, hidden: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(_Layer(width, hidden) for _ in range(layers))
        self.ln_final = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embedding(ids) + self.positional_embedding[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_final(x)


class TextTower(nn.Module):
    """Maps ids [B, T] to (tokens [B, T, width], aligned embedding [B, out]). Names are those of the checkpoint."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, hidden: int, out: int) -> None:
        super().__init__()
        self.backbone = _Backbone(vocabulary, context, width, layers, hidden)
        self.head = nn.ModuleDict({"linear_projection": nn.Linear(width, out, bias=False)})

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.backbone(ids)
        end = ids.argmax(-1)  # end-of-text is the largest id
        return tokens, self.head["linear_projection"](tokens[torch.arange(len(ids), device=ids.device), end])


def tower_for(tensors: Mapping[str, Tensor]) -> TextTower:
    """Return an empty tower of the shape that these tensors (without prefix) have."""
    vocabulary, width = tensors["backbone.token_embedding.weight"].shape
    layers = {name.split(".")[2] for name in tensors if name.startswith("backbone.blocks.")}
    hidden = tensors["backbone.blocks.0.feed_forward.fc1.weight"].shape[0]
    out = tensors["head.linear_projection.weight"].shape[0]
    context = tensors["backbone.positional_embedding"].shape[0]
    with torch.device("meta"):
        return TextTower(vocabulary, context, width, len(layers), hidden, out)


def clip_reader(context: int) -> CaptionReader:
    """Return a reader of captions: CLIP's byte-pair ids, mask and words, cut to the longest caption."""
    tokenizer = Tokenizer(TextSpec(context))

    def read(captions: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        ids = tokenizer(captions)
        # Padding is 0, and so is "!": only what comes after the end-of-text token is padding.
        mask = torch.arange(ids.shape[1]) <= ids.argmax(-1, keepdim=True)
        return ids, mask, bpe_word_ids(tokenizer, captions, ids.shape[1])

    return read


def dinotxt_teacher(file: str) -> TextTeacher:
    source = f"dinotxt:{file}"
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(
            f"{source}: there is no such file. Meta's {_FILE} is gated: ask for it at {weights_files.ASK_META}. "
            f"{weights_files.INSTEAD_TEXT}"
        )
    stored = weights_files.read_tensors(path)
    tensors = {name.removeprefix(PREFIX): value for name, value in stored.items() if name.startswith(PREFIX)}
    try:
        tower = tower_for(tensors)
        tower.load_state_dict(tensors, assign=True)
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} does not hold the text tower of dino.txt: {weights_files.complaint(error)}") from error
    vocabulary, width = tower.backbone.token_embedding.weight.shape
    reader_vocabulary = Tokenizer().vocabulary
    if vocabulary != reader_vocabulary or width % HEAD_WIDTH:
        raise UserError(f"{path}: {vocabulary} tokens of width {width}; dino.txt has {reader_vocabulary} of width 1280")
    card = TeacherCard("dinotxt", "DINOv3 licence (gated weights)")
    reader = clip_reader(tower.backbone.positional_embedding.shape[0])
    return TextTeacher(card, tower, weights_files.hash_of(tensors), reader, source=path)


def random_text_teacher(argument: str = "") -> TextTeacher:
    """Open a small causal transformer over CLIP's byte pairs; `argument` is the seed."""
    seed, card = control_card("random-text", argument)
    width = 3 * HEAD_WIDTH
    with drawing_from(seed, "random-text"):
        tower = TextTower(Tokenizer().vocabulary, 77, width, 4, 4 * width, width)
    return TextTeacher(card, tower, weights_files.hash_of(tower.state_dict()), clip_reader(77))
