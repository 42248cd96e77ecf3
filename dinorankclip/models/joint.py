"""Wires trunk, students and fusion to one model. Methods are settings of these parts and of the objective.

    pixels ─ trunk ─────────────── v ─┐
         └── student ─ tokens, class ─ fusion ─ embedding          and the same for captions, with weights of its own

Without fusion the embedding is v; without students there is the trunk alone, whose own dense tokens may stand in the
place of a student's. The teacher is no part of the model: students, or the trunk itself, learn from cached features,
which only the objective sees.

Shapes: B images or captions, S image side, L tokens, D embedding width, h×w a grid of patches, C width of a student,
W width of the trunk's image tower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dinorankclip.data.own_vocabulary import Vocabulary, VocabularyTokenizer
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.fusion import Fused, Fusion, fused_angle
from dinorankclip.models.fusion_variants import build_fusion
from dinorankclip.models.lora import merged_state
from dinorankclip.models.own_tokens import KINDS, LAST, PENULTIMATE, OwnTokens
from dinorankclip.models.students import StudentFeatures, image_student, text_student, token_table
from dinorankclip.models.trunk import Trunk
from dinorankclip.types import Embeddings, ImageSpec, TextSpec, UserError

if TYPE_CHECKING:
    from dinorankclip.models.students import ImageStudent, TextStudent


@dataclass(frozen=True)
class Students:
    """Names the students of a model (students.py)."""

    image: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class FusionDesign:
    """Names one of `fusion_variants.VARIANTS`, or "none". It reads students, or the trunk's own tokens (`source`).

    Models of older versions lack the later entries: they are what the defaults say.
    """

    variant: str = "none"
    gate: bool = True
    start: str = "closed"  # one of `fusion.GATE_STARTS`; it also decides the form of the residual
    gate_bias: float | None = None  # None: by `start`
    source: str = "student"  # each branch that has a student is fused; "trunk": each of `branches`
    branches: str = "image+text"

    def reads_trunk(self, branch: str) -> bool:
        """Return whether the fusion of a branch reads the trunk's own tokens."""
        return self.variant != "none" and self.source == "trunk" and branch in self.branches.split("+")


def fusion_start_words(fusion: FusionDesign) -> str:
    """Return how a fusion started and what it reads where that differs from the default, for messages and cards."""
    words = "" if fusion.start == "closed" else f", start {fusion.start}"
    words += "" if fusion.gate_bias is None else f", gate bias {fusion.gate_bias:g}"
    return words if fusion.source == "student" else f"{words}, of the trunk's own tokens ({fusion.branches})"


@dataclass
class Encoded:
    """Holds the model's output for a batch of images or captions."""

    raw: Tensor  # [B, D], the embedding before normalisation
    contrastive: Tensor  # [B, D], the trunk's own output; the same tensor when nothing is fused
    features: StudentFeatures | None = None
    fused: Fused | None = None


class JointModel(nn.Module):
    pixel_scale: Tensor
    pixel_shift: Tensor

    def __init__(
        self,
        trunk_config: dict[str, Any],
        seed: int = 0,
        students: Students | None = None,
        fusion: FusionDesign | None = None,
        vocabulary: Vocabulary | None = None,
    ):
        super().__init__()
        self.vocabulary = vocabulary  # of captions; None: CLIP's own
        self.trunk = Trunk(trunk_config, seed)
        self.students, self.fusion = Students(), FusionDesign()
        self.image_student: ImageStudent | None = None
        self.text_student: TextStudent | None = None
        self.image_fusion: Fusion | None = None
        self.text_fusion: Fusion | None = None
        self.students_only = False  # distil-only training leaves the trunk alone
        # Branches whose trunk learns from the teacher in a student's stead: set for training, stored nowhere.
        self.own_tokens: dict[str, OwnTokens] = {}
        self.fused_tokens: dict[str, OwnTokens] = {}  # branches whose fusion reads the trunk's own tokens
        self.set_parts(students or Students(), fusion or FusionDesign(), seed)
        spec = self.image_spec
        # Pixels arrive as uint8; (p/255 - mean)/std becomes one multiply and one add.
        mean, std = torch.tensor(spec.mean).view(3, 1, 1), torch.tensor(spec.std).view(3, 1, 1)
        self.register_buffer("pixel_scale", 1.0 / (255.0 * std), persistent=False)
        self.register_buffer("pixel_shift", -mean / std, persistent=False)

    def train(self, mode: bool = True) -> JointModel:
        """Set the mode as in every module, but batch norms with frozen weights keep their statistics, too."""
        super().train(mode)
        for module in self.modules():
            own = list(module.parameters(recurse=False))
            if isinstance(module, _BatchNorm) and own and not any(parameter.requires_grad for parameter in own):
                module.eval()
        return self

    def set_parts(self, students: Students, fusion: FusionDesign, seed: int = 0) -> None:
        """Add or drop students and fusion; a student or fusion of the same name keeps its weights."""
        if fusion.source == "trunk" and fusion.variant != "none" and students != Students():
            raise UserError("a fusion of the trunk's own tokens reads no students: use a model that has none")
        new_image = students.image != self.students.image
        new_text = students.text != self.students.text
        if new_image:
            size = self.trunk.image_spec.size
            self.image_student = image_student(students.image, size, seed) if students.image else None
        if new_text and students.text and self.vocabulary is not None:
            raise UserError("a text student reads CLIP's own vocabulary: add --distil.branches image")
        if new_text:
            context, width = self.trunk.text_spec.context_length, token_table(self.trunk.towers).shape[1]
            self.text_student = text_student(students.text, context, width, seed) if students.text else None
        self.fused_tokens = {
            branch: kind(self.trunk, PENULTIMATE, "--fusion.source trunk")
            for branch, kind in KINDS.items()
            if fusion.reads_trunk(branch)
        }
        if new_image or fusion != self.fusion:
            self.image_fusion = self._fusion_for(self.image_student, fusion, "image", seed)
        if new_text or fusion != self.fusion:
            self.text_fusion = self._fusion_for(self.text_student, fusion, "text", seed)
        self.students, self.fusion = students, fusion

    def _fusion_for(
        self, student: ImageStudent | TextStudent | None, fusion: FusionDesign, branch: str, seed: int
    ) -> Fusion | None:
        read = self.fused_tokens.get(branch) if fusion.source == "trunk" else student
        if read is None or fusion.variant == "none":
            return None
        start, bias = fusion.start, fusion.gate_bias
        return build_fusion(
            fusion.variant, fusion.gate, self.dim, read.width, branch, seed, start=start, gate_bias=bias
        )

    def teach_trunk(self, *branches: str, tokens: str = LAST) -> None:
        """Make `forward` return the trunk's own tokens, "last" or "penultimate", in place of a student's."""
        if tokens != PENULTIMATE and self.fused_tokens:
            raise UserError("a fusion of the trunk's own tokens reads the penultimate: add --distil.tokens penultimate")
        self.own_tokens = {branch: KINDS[branch](self.trunk, tokens) for branch in branches}

    @property
    def learners(self) -> dict[str, Any]:
        """Map each branch to the learner of its teacher: a student, or the trunk through its own tokens.

        Each learner has a `width`, the learner of images also a `grid`.
        """
        students = {"image": self.image_student, "text": self.text_student}
        return {branch: student for branch, student in students.items() if student is not None} | self.own_tokens

    @property
    def dim(self) -> int:
        return self.trunk.dim

    @property
    def image_spec(self) -> ImageSpec:
        return self.trunk.image_spec

    @property
    def text_spec(self) -> TextSpec:
        return self.trunk.text_spec

    @property
    def logit_scale(self) -> nn.Parameter:
        return self.trunk.logit_scale

    def tokenizer(self) -> Tokenizer:
        return (
            Tokenizer(self.text_spec)
            if self.vocabulary is None
            else VocabularyTokenizer(self.text_spec, self.vocabulary)
        )

    def own_state(self) -> dict[str, Tensor]:
        """Return the weights that belong into a model folder: all of them, low-rank corrections merged."""
        return merged_state(self)

    @property
    def device(self) -> torch.device:
        return self.pixel_scale.device

    def forward(self, images: Tensor, texts: Tensor, second_texts: Tensor | None = None) -> Embeddings:
        """Map uint8 images [B, 3, S, S] and token ids [B, L] to raw (unnormalised) embeddings [B, D] by name.

        Images of a frozen tower come as its embeddings, float [B, D]. Students add `image_student_tokens`
        [B, h·w, C] row by row of the student's grid, `text_student_tokens` [B, L, C] at the places of the ids, and
        `image_student_class`, `text_student_class` [B, C]; so does the trunk where it is taught itself.
        """
        image = Encoded(images, images) if images.ndim == 2 else self._encode("image", self.normalised(images))
        text = self._encode("text", texts)
        named: dict[str, Tensor] = {}
        if not self.students_only:
            named |= {"image": image.raw, "text": text.raw}
            if second_texts is not None:
                named["second_text"] = self.read(second_texts).raw
        for branch, encoded in (("image", image), ("text", text)):
            if encoded.features is not None and branch in self.learners:
                named[f"{branch}_student_tokens"] = encoded.features.tokens
                named[f"{branch}_student_class"] = encoded.features.summary
        return Embeddings(named)

    def _encode(self, branch: str, items: Tensor) -> Encoded:
        if branch not in self.own_tokens or branch in self.fused_tokens:
            return self.see(items) if branch == "image" else self.read(items)
        embedding, features = self.own_tokens[branch](items)
        return Encoded(embedding, embedding, features)

    def learnt(self, branch: str, items: Tensor) -> StudentFeatures:
        """Return the features of normalised pixels, or of token ids, that are compared with the teacher's."""
        if branch in self.own_tokens:
            return self.own_tokens[branch].compared(items)
        student = self.learners[branch]
        return student(items) if branch == "image" else student(items, token_table(self.trunk.towers))

    def see(self, pixels: Tensor) -> Encoded:
        """Encode normalised pixels [B, 3, S, S]."""
        if "image" in self.fused_tokens:
            return self._fuse_own("image", pixels, self.image_fusion)
        features = self.image_student(pixels) if self.image_student is not None else None
        return self._fuse(self.trunk.encode_image, pixels, features, self.image_fusion)

    def read(self, texts: Tensor) -> Encoded:
        """Encode token ids [B, L]."""
        if "text" in self.fused_tokens:
            return self._fuse_own("text", texts, self.text_fusion)
        features = None
        if self.text_student is not None:
            features = self.text_student(texts, token_table(self.trunk.towers))
        return self._fuse(self.trunk.encode_text, texts, features, self.text_fusion)

    def image_side(self, images: Tensor) -> Encoded:
        """Encode uint8 images [B, 3, S, S]."""
        return self.see(self.normalised(images))

    def text_side(self, texts: Tensor) -> Encoded:
        """Encode token ids [B, L]."""
        return self.read(texts)

    def _fuse_own(self, branch: str, items: Tensor, fusion: Fusion | None) -> Encoded:
        """Fuse the trunk's embedding with the trunk's own tokens, which the same pass gives."""
        assert fusion is not None, "built with the tokens that it reads"
        contrastive, features = self.fused_tokens[branch](items)
        fused = fusion(contrastive, features)
        return Encoded(fused.embedding, contrastive, features, fused)

    def _fuse(
        self, encode: Callable[[Tensor], Tensor], items: Tensor, features: StudentFeatures | None, fusion: Fusion | None
    ) -> Encoded:
        if self.students_only:
            nothing = items.new_empty(len(items), 0)
            return Encoded(nothing, nothing, features)
        contrastive = encode(items)
        if fusion is None or features is None:
            return Encoded(contrastive, contrastive, features)
        fused = fusion(contrastive, features)
        return Encoded(fused.embedding, contrastive, features, fused)

    def scale(self) -> Tensor:
        """Return s = exp(logit_scale), the inverse temperature, with gradient."""
        return self.logit_scale.exp()

    def bias(self) -> Tensor | None:
        """Return b, the bias of logits, with gradient; None in a model that was never trained with the sigmoid loss."""
        return self.trunk.logit_bias

    @torch.inference_mode()
    def encode_image(self, images: Tensor, normalize: bool = True) -> Tensor:
        """Map uint8 images [B, 3, S, S], or raw embeddings of a frozen image side [B, D], to embeddings [B, D]."""
        images = images.to(self.device)
        rows = (images if images.ndim == 2 else self.see(self.normalised(images)).raw).float()
        return F.normalize(rows, dim=-1) if normalize else rows

    @torch.inference_mode()
    def encode_text(self, texts: Tensor, normalize: bool = True) -> Tensor:
        rows = self.read(texts.to(self.device)).raw.float()
        return F.normalize(rows, dim=-1) if normalize else rows

    def normalised(self, images: Tensor) -> Tensor:
        """Normalise uint8 images, as trunk and students expect them."""
        pixels = images.float()
        return torch.addcmul(self.pixel_shift, pixels, self.pixel_scale, out=pixels)  # in place: no gradient

    def pooled_image_features(self, pixels: Tensor) -> Tensor:
        """Map normalised pixels [B, 3, S, S] to the trunk's features before projection [B, W], for probes.

        A fused model adds its student's class token: [B, W + C].
        """
        pooled = pooled_features(self.trunk.towers.visual, pixels)
        if self.image_fusion is None or self.image_student is None:
            return pooled
        return torch.cat([pooled, self.image_student(pixels).summary], -1)

    def image_details(self, pixels: Tensor) -> Details:
        """Return the details of normalised pixels [B, 3, S, S]."""
        details = details_of(self.see(pixels))
        if details.tokens is not None:
            read: Any = self.fused_tokens["image"] if self.image_student is None else self.image_student
            details = replace(details, tokens=details.tokens.unflatten(1, read.grid))
        return replace(details, trunk_tokens=_patch_map(self.trunk.towers.visual, pixels).float())


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters of each part."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        if part == "trunk":
            part = "trunk image" if ".visual." in name else "trunk text"
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def pooled_features(visual: Any, pixels: Tensor) -> Tensor:
    """Map normalised pixels [B, 3, S, S] to [B, W], the trunk's features before its projection, for probes.

    open_clip's three kinds of image towers (its ViT, a timm model, its ResNet) share no interface for these features.
    """
    if hasattr(visual, "_embeds"):  # open_clip's VisionTransformer
        pooled, _tokens = visual._pool(visual.transformer(visual._embeds(pixels)))
        return pooled
    if hasattr(visual, "trunk"):  # a timm model, whose head is the projection
        pooled = visual.trunk(pixels)
        return pooled.flatten(2).mean(-1) if pooled.ndim == 4 else pooled
    # A ResNet pools by attention into the joint space at once: the mean of its last map stands for the features before.
    return _patch_map(visual, pixels).flatten(1, 2).mean(1)


def _patch_map(visual: Any, pixels: Tensor) -> Tensor:
    """Map normalised pixels [B, 3, S, S] to dense features [B, h, w, W] of the last block, after the final norm."""
    normed = getattr(visual, "attn_pool", None) is None  # else the norm belongs to the pooled width
    out = visual.forward_intermediates(
        pixels, indices=1, normalize_intermediates=normed, intermediates_only=True, output_fmt="NCHW"
    )
    return out["image_intermediates"][-1].permute(0, 2, 3, 1)


@dataclass(frozen=True)
class Details:
    """Holds embeddings of images or captions and the values inside the model behind them.

    `gate` and `angle` are None where nothing is fused, `tokens` where there is no student.
    """

    embedding: Tensor  # [B, D], of length 1
    contrastive: Tensor  # [B, D], the trunk's own, of length 1
    trunk_tokens: Tensor | None = None  # [B, h, w, W], the last block of the trunk's image tower; images only
    tokens: Tensor | None = (
        None  # of a student, or of the trunk as fused: [B, h, w, C] of images, [B, L, C] of captions
    )
    mask: Tensor | None = None  # bool [B, L], True at tokens of the caption (the start token included); captions only
    gate: Tensor | None = None  # [B, D], α of the fusion
    angle: Tensor | None = None  # [B], degrees between the fused and the trunk's embedding


def details_of(encoded: Encoded) -> Details:
    raw, contrastive, fused = encoded.raw.float(), encoded.contrastive.float(), encoded.fused
    return Details(
        embedding=F.normalize(raw, dim=-1),
        contrastive=F.normalize(contrastive, dim=-1),
        tokens=None if encoded.features is None else encoded.features.tokens.float(),
        mask=None if encoded.features is None else encoded.features.mask,
        gate=None if fused is None else fused.gate.float(),
        angle=None if fused is None else fused_angle(fused.embedding.float(), contrastive),
    )
