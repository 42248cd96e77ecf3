"""Aligns two frozen towers by small trained heads (`--recipe aligned`): the model of a few thousand own photos.

    pixels ─ image tower (frozen) ─ summary ─ head ─ v ─┐
                                 └─ dense tokens ─ fusion ─ v + α ⊙ u          and the same for captions

`start` is where training begins. "names" puts the starter's embedding (class_name_bridge.py, the sentence vector)
beside the head's, each of length one: a similarity is the mean of what the starter says and what the heads learned.
Added to each other, a few hundred pairs would undo the starter. "random" is a head alone. The fusion is the paper's,
over the towers' own tokens. Towers never change: `own_state` leaves them out, and a model folder names them.

Shapes: B items, S image side, T text tokens, D embedding width, C' width of a summary; rows as in towers.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.models.class_name_bridge import IMAGENET_CLASSES, class_name_embedding
from dinorankclip.models.fusion import Fusion
from dinorankclip.models.fusion_variants import build_fusion
from dinorankclip.models.joint import Details, Encoded, FusionDesign, Students, details_of
from dinorankclip.models.towers import ImageTower, RowLayout, TextTower, TowerDesign, TowerTokenizer
from dinorankclip.models.trunk import SIGMOID_START
from dinorankclip.seeds import drawing_from
from dinorankclip.types import Embeddings, ImageSpec, TextSpec

LEAST_SPREAD = 1e-3  # share of the mean spread that is added to each channel's
START_SCALE = 1 / 0.07  # CLIP's initial inverse temperature
TOWERS = ("image_tower.", "text_tower.")  # prefixes of parameter names


@dataclass(frozen=True)
class AlignedDesign:
    """Describes an aligned model. `fused` names the branches with a fusion: "", "image", "text" or "image+text".

    `head_dim` 0 leaves the heads out: the starter alone.
    """

    image: TowerDesign
    text: TowerDesign
    head_dim: int = 256
    hidden: int = 1024
    start: str = "random"  # or "names"
    head_weight: float = 1.0  # length of the learned half beside the starter's half of length one
    fusion: FusionDesign = dataclasses.field(default_factory=FusionDesign)
    fused: str = ""
    token_width: int = 256  # r, of both towers; at most the width of their tokens
    text_places: int = 32  # tokens of a caption that the fusion reads
    biased: bool = False  # a logit bias, for the sigmoid loss

    def fuses(self, branch: str) -> bool:
        return self.fusion.variant != "none" and branch in self.fused.split("+")


class Head(nn.Module):
    """Maps summaries [B, C'] to [B, D]: W₂·dropout(gelu(W₁·x̂ + b₁)) + b₂, x̂ the summary standardised by `set_scale`."""

    mean: Tensor
    spread: Tensor

    def __init__(self, summary: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(summary, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(0.0)
        # Mean and spread of the training data's summaries: channels of a tower differ in size by factors of ten.
        self.register_buffer("mean", torch.zeros(summary))
        self.register_buffer("spread", torch.ones(summary))

    def set_scale(self, rows: Tensor) -> None:
        """Take mean and spread of each channel of training rows [N, C']; a channel that hardly varies stays small."""
        spread = rows.std(0, correction=0)
        self.mean.copy_(rows.mean(0))
        self.spread.copy_(spread + LEAST_SPREAD * spread.mean().clamp_min(1e-6))

    def forward(self, summary: Tensor) -> Tensor:
        x = (summary - self.mean) / self.spread
        return self.fc2(self.dropout(F.gelu(self.fc1(x))))


class NameBridge(nn.Module):
    """Holds the closed form of class_name_bridge.py: a classifier and the directions of its classes. Nothing learns.

    starter.py fills the buffers; a model folder holds them.
    """

    weight: Tensor
    bias: Tensor
    directions: Tensor

    def __init__(self, features: int, dim: int, classes: int = IMAGENET_CLASSES) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(classes, features))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("directions", torch.zeros(classes, dim))

    def image(self, summary: Tensor) -> Tensor:
        """Map image summaries [B, C'] to unit-norm embeddings in caption space [B, D]."""
        features = summary[:, : self.weight.shape[1]]  # a tower puts its own summary first
        return class_name_embedding(F.linear(features, self.weight, self.bias), self.directions)

    def text(self, summary: Tensor) -> Tensor:
        """Map text summaries [B, C'] to their sentence vectors, of length one [B, D]."""
        return F.normalize(summary[:, : self.directions.shape[1]], dim=-1)


class AlignedModel(nn.Module):
    """Encodes pixels and ids through the towers, or stored rows of the towers. Has the interface of `JointModel`."""

    pixel_scale: Tensor
    pixel_shift: Tensor
    image_basis: Tensor
    text_basis: Tensor
    image_head: Head
    text_head: Head
    image_fusion: Fusion | None
    text_fusion: Fusion | None
    image_student = text_student = None
    students = Students()

    def __init__(
        self, design: AlignedDesign, image_tower: ImageTower, text_tower: TextTower, seed: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.design, self.fusion = design, design.fusion
        self.image_tower, self.text_tower = image_tower, text_tower
        self.requires_grad_(False)
        self.layouts = {
            "image": self._layout("image", image_tower, image_tower.places),
            "text": self._layout("text", text_tower, design.text_places),
        }
        named = design.start == "names"
        self.bridge = NameBridge(image_tower.width, text_tower.own_summary) if named else None
        for branch, tower in (("image", image_tower), ("text", text_tower)):
            if design.head_dim:
                with drawing_from(seed, "head", branch):
                    setattr(self, f"{branch}_head", Head(tower.summary, design.hidden, design.head_dim))
            setattr(self, f"{branch}_fusion", self._build_fusion(branch, seed))
            basis = torch.eye(self.layouts[branch].width, tower.width)
            self.register_buffer(f"{branch}_basis", basis if design.fuses(branch) else torch.zeros(0, tower.width))
        self.set_dropout(dropout)
        self.gives_summaries = False
        scale = SIGMOID_START["init_logit_scale"] if design.biased else math.log(START_SCALE)
        self.logit_scale = nn.Parameter(torch.tensor(scale))
        bias = torch.tensor(SIGMOID_START["init_logit_bias"])
        self.logit_bias = nn.Parameter(bias) if design.biased else None
        spec = image_tower.image_spec
        mean, std = torch.tensor(spec.mean).view(3, 1, 1), torch.tensor(spec.std).view(3, 1, 1)
        self.register_buffer("pixel_scale", 1.0 / (255.0 * std), persistent=False)
        self.register_buffer("pixel_shift", -mean / std, persistent=False)

    def _layout(self, branch: str, tower: ImageTower | TextTower, places: int) -> RowLayout:
        if not self.design.fuses(branch):
            return RowLayout(tower.summary)
        width = min(self.design.token_width, tower.width)
        return RowLayout(tower.summary, places, width, counted=branch == "text")

    def _build_fusion(self, branch: str, seed: int) -> Fusion | None:
        if not self.design.fuses(branch):
            return None
        fusion, width = self.fusion, self.layouts[branch].width
        start, bias = fusion.start, fusion.gate_bias
        return build_fusion(
            fusion.variant, fusion.gate, self.design.head_dim, width, branch, seed, start=start, gate_bias=bias
        )

    def set_dropout(self, share: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def train(self, mode: bool = True) -> AlignedModel:
        """Set the mode of heads and fusions; towers stay as they are used."""
        super().train(mode)
        self.image_tower.eval()
        self.text_tower.eval()
        return self

    def own_state(self) -> dict[str, Tensor]:
        """Return the weights without the towers."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(TOWERS)}

    # --- features of the towers

    def image_rows(self, pixels: Tensor) -> Tensor:
        """Map normalised pixels [B, 3, S, S] to rows."""
        tokens, summary = self.image_tower(pixels)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return self.layouts["image"].pack(summary, tokens @ self.image_basis.T, mask)

    def text_rows(self, ids: Tensor) -> Tensor:
        """Map ids [B, T] to rows."""
        tokens, summary, mask = self.text_tower(ids)
        return self.layouts["text"].pack(summary, tokens @ self.text_basis.T, mask)

    # --- embeddings

    def forward(self, images: Tensor, texts: Tensor, second_texts: Tensor | None = None) -> Embeddings:
        """Map rows, or uint8 images and ids, to raw embeddings [B, D] by name.

        With `gives_summaries`, `image_summary` and `text_summary` [B, C'] are the towers' own summaries, as a teacher
        of the loss: those of a distillation cache have the same names.
        """
        if self.gives_summaries:
            images = images if images.ndim == 2 else self.image_rows(self.normalised(images))
            texts = texts if texts.is_floating_point() else self.text_rows(texts)
        named = {"image": self.image_side(images).raw, "text": self.text_side(texts).raw}
        if second_texts is not None:
            named["second_text"] = self.text_side(second_texts).raw
        if self.gives_summaries:  # a tower puts its own summary first
            named["image_summary"] = images[:, : self.image_tower.own_summary]
            named["text_summary"] = texts[:, : self.text_tower.own_summary]
        return Embeddings(named)

    def image_side(self, images: Tensor) -> Encoded:
        """Encode uint8 images [B, 3, S, S], or their rows [B, F]."""
        return self._embed("image", images) if images.ndim == 2 else self.see(self.normalised(images))

    def text_side(self, texts: Tensor) -> Encoded:
        """Encode ids [B, T], or rows of captions [B, G]."""
        return self._embed("text", texts) if texts.is_floating_point() else self.read(texts)

    def see(self, pixels: Tensor) -> Encoded:
        """Encode normalised pixels [B, 3, S, S]."""
        return self._embed("image", self.image_rows(pixels))

    def read(self, texts: Tensor) -> Encoded:
        """Encode ids [B, T]."""
        return self._embed("text", self.text_rows(texts))

    def _embed(self, branch: str, rows: Tensor) -> Encoded:
        summary, features = self.layouts[branch].unpack(rows)
        v = getattr(self, f"{branch}_head")(summary) if self.design.head_dim else summary[:, :0]
        fusion: Callable[..., Any] | None = getattr(self, f"{branch}_fusion")
        fused = None if fusion is None or features is None else fusion(v, features)
        learned = v if fused is None else fused.embedding
        return Encoded(self._beside_starter(branch, summary, learned), v, features, fused)

    def _beside_starter(self, branch: str, summary: Tensor, learned: Tensor) -> Tensor:
        """Join the starter's embedding, of length one, and the learned one, of length `head_weight`.

        Without a starter, return the learned embedding as it is.
        """
        if self.bridge is None:
            return learned
        known = self.bridge.image(summary) if branch == "image" else self.bridge.text(summary)
        if not learned.shape[1]:
            return known
        return torch.cat([known, self.design.head_weight * F.normalize(learned, dim=-1)], 1)

    @torch.inference_mode()
    def encode_image(self, images: Tensor, normalize: bool = True) -> Tensor:
        rows = self.image_side(images.to(self.device)).raw.float()
        return F.normalize(rows, dim=-1) if normalize else rows

    @torch.inference_mode()
    def encode_text(self, texts: Tensor, normalize: bool = True) -> Tensor:
        rows = self.text_side(texts.to(self.device)).raw.float()
        return F.normalize(rows, dim=-1) if normalize else rows

    def normalised(self, images: Tensor) -> Tensor:
        """Normalise uint8 images, as the image tower expects them."""
        return torch.addcmul(self.pixel_shift, images.float(), self.pixel_scale)

    def pooled_image_features(self, pixels: Tensor) -> Tensor:
        """Return the image tower's summary [B, C'], for probes."""
        return self.image_tower(pixels)[1]

    def image_details(self, pixels: Tensor) -> Details:
        """Return embeddings, dense tokens of the tower, gates and angles of normalised pixels."""
        details = details_of(self.see(pixels))
        grid = self.image_tower.grid
        tokens = details.tokens.unflatten(1, grid) if details.tokens is not None else None
        return dataclasses.replace(
            details, tokens=tokens, mask=None, trunk_tokens=self.image_tower(pixels)[0].unflatten(1, grid).float()
        )

    def scale(self) -> Tensor:
        """Return s = exp(logit_scale), the inverse temperature, with gradient."""
        return self.logit_scale.exp()

    def bias(self) -> Tensor | None:
        """Return the logit bias, with gradient; None unless the model was made for the sigmoid loss."""
        return self.logit_bias

    @property
    def dim(self) -> int:
        return self.design.head_dim + (self.text_tower.own_summary if self.bridge is not None else 0)

    @property
    def device(self) -> torch.device:
        return self.pixel_scale.device

    @property
    def image_spec(self) -> ImageSpec:
        return self.image_tower.image_spec

    @property
    def text_spec(self) -> TextSpec:
        return self.text_tower.tokenizer.spec

    def tokenizer(self) -> TowerTokenizer:
        return self.text_tower.tokenizer
