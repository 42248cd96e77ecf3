"""The model: what turns a batch into named embeddings. Methods are settings of the objective, not of this file."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.encoders.trunk import Trunk
from dinorankclip.types import Embeddings


class JointModel(nn.Module):
    def __init__(self, trunk_config: dict[str, Any], seed: int = 0):
        super().__init__()
        self.trunk = Trunk(trunk_config, seed)
        spec = self.trunk.image_spec
        # Pixels arrive as uint8; (p/255 - mean)/std becomes one multiply and one add.
        mean, std = torch.tensor(spec.mean).view(3, 1, 1), torch.tensor(spec.std).view(3, 1, 1)
        self.register_buffer("pixel_scale", 1.0 / (255.0 * std), persistent=False)
        self.register_buffer("pixel_shift", -mean / std, persistent=False)

    @property
    def dim(self) -> int:
        return self.trunk.dim

    @property
    def device(self) -> torch.device:
        return self.pixel_scale.device

    def forward(self, images: Tensor, texts: Tensor, second_texts: Tensor | None = None) -> Embeddings:
        """uint8 images [B, 3, S, S] and token ids [B, L] → raw (unnormalised) embeddings [B, D] by name."""
        named = {"image": self._image(images), "text": self.trunk.encode_text(texts)}
        if second_texts is not None:
            named["second_text"] = self.trunk.encode_text(second_texts)
        return Embeddings(named)

    def scale(self) -> Tensor:
        """s = exp(logit_scale), the inverse temperature, with gradient."""
        return self.trunk.logit_scale.exp()

    @torch.inference_mode()
    def encode_image(self, images: Tensor, normalize: bool = True) -> Tensor:
        features = self._image(images.to(self.device)).float()
        return F.normalize(features, dim=-1) if normalize else features

    @torch.inference_mode()
    def encode_text(self, texts: Tensor, normalize: bool = True) -> Tensor:
        features = self.trunk.encode_text(texts.to(self.device)).float()
        return F.normalize(features, dim=-1) if normalize else features

    def _image(self, images: Tensor) -> Tensor:
        return self.trunk.encode_image(torch.addcmul(self.pixel_shift, images.float(), self.pixel_scale))


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """How many parameters each part holds."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = (
            "trunk image" if ".visual." in name else "trunk text" if name.startswith("trunk.") else name.split(".")[0]
        )
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts
