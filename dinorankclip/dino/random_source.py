"""Teachers that know nothing: random weights from a seed. For tests, and as the control row of a study.

What a student gains from one of these it owes to the architecture's prior and to regularisation, not to knowledge.
"""

from __future__ import annotations

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.seeds import drawing_from
from dinorankclip.torchvision_ops import declare_missing

from . import vits, weights
from .dinotxt import HEAD_WIDTH, TextTower, clip_reader
from .teacher import Card, Preprocessing, Teacher, TextTeacher
from .timm_source import PatchTokens

NOTE = "random weights: a control"
PATCH, WIDTH, DEPTH = 16, 192, 12  # ViT-Tiny
TEXT_WIDTH, TEXT_DEPTH, CONTEXT = 3 * HEAD_WIDTH, 4, 77
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_teacher(seed: int = 0, input_size: int | None = None) -> Teacher:
    """ViT-Tiny with patches of 16 pixels and timm's initial weights."""
    declare_missing()
    from timm.models.vision_transformer import VisionTransformer

    source = f"random-vit:{seed}"
    size = input_size or vits.USUAL_SIZE
    grid = vits.grid_of(size, PATCH, source)
    with drawing_from(seed, "random-vit"):
        vit = VisionTransformer(
            img_size=size, patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=WIDTH // 64, num_classes=0
        )
    preprocessing = Preprocessing(size, _MEAN, _STD)
    return Teacher(Card(source, "none", NOTE), PatchTokens(vit), weights.hash_of(vit.state_dict()), preprocessing, grid)


def random_text_teacher(seed: int = 0) -> TextTeacher:
    """A small causal transformer over CLIP's byte pairs."""
    with drawing_from(seed, "random-text"):
        tower = TextTower(Tokenizer().vocabulary, CONTEXT, TEXT_WIDTH, TEXT_DEPTH, 4 * TEXT_WIDTH, TEXT_WIDTH)
    card = Card(f"random-text:{seed}", "none", NOTE)
    return TextTeacher(card, tower, weights.hash_of(tower.state_dict()), clip_reader(CONTEXT))
