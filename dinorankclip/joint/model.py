"""The model: what turns a batch into named embeddings. Methods are settings of the objective, not of this file.

The teacher is no part of it: students learn from cached features, which only the objective sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.encoders.students import image_student, text_student, token_table
from dinorankclip.encoders.trunk import Trunk
from dinorankclip.types import Embeddings


@dataclass(frozen=True)
class Students:
    """Names of the students a model has (`encoders.students`)."""

    image: str | None = None
    text: str | None = None


class JointModel(nn.Module):
    def __init__(self, trunk_config: dict[str, Any], seed: int = 0, students: Students | None = None):
        super().__init__()
        self.trunk = Trunk(trunk_config, seed)
        self.students = Students()
        self.image_student: nn.Module | None = None
        self.text_student: nn.Module | None = None
        self.students_only = False  # distil-only training leaves the trunk alone
        self.set_students(students or Students(), seed)
        spec = self.trunk.image_spec
        # Pixels arrive as uint8; (p/255 - mean)/std becomes one multiply and one add.
        mean, std = torch.tensor(spec.mean).view(3, 1, 1), torch.tensor(spec.std).view(3, 1, 1)
        self.register_buffer("pixel_scale", 1.0 / (255.0 * std), persistent=False)
        self.register_buffer("pixel_shift", -mean / std, persistent=False)

    def set_students(self, students: Students, seed: int = 0) -> None:
        """Add or drop students; one that is there under the same name keeps its weights."""
        if students.image != self.students.image:
            size = self.trunk.image_spec.size
            self.image_student = image_student(students.image, size, seed) if students.image else None
        if students.text != self.students.text:
            context, width = self.trunk.text_spec.context_length, token_table(self.trunk.towers).shape[1]
            self.text_student = text_student(students.text, context, width, seed) if students.text else None
        self.students = students

    @property
    def dim(self) -> int:
        return self.trunk.dim

    @property
    def device(self) -> torch.device:
        return self.pixel_scale.device

    def forward(self, images: Tensor, texts: Tensor, second_texts: Tensor | None = None) -> Embeddings:
        """uint8 images [B, 3, S, S] and token ids [B, L] → raw (unnormalised) embeddings [B, D] by name.

        Students add `image_student_tokens` [B, h·w, C] row by row of the student's grid, `text_student_tokens`
        [B, L, C] at the places of the ids, and `image_student_class`, `text_student_class` [B, C].
        """
        pixels = self.normalised(images)
        named: dict[str, Tensor] = {}
        if not self.students_only:
            named |= {"image": self.trunk.encode_image(pixels), "text": self.trunk.encode_text(texts)}
            if second_texts is not None:
                named["second_text"] = self.trunk.encode_text(second_texts)
        if self.image_student is not None:
            seen = self.image_student(pixels)
            named |= {"image_student_tokens": seen.tokens, "image_student_class": seen.summary}
        if self.text_student is not None:
            read = self.text_student(texts, token_table(self.trunk.towers))  # which detaches the table
            named |= {"text_student_tokens": read.tokens, "text_student_class": read.summary}
        return Embeddings(named)

    def scale(self) -> Tensor:
        """s = exp(logit_scale), the inverse temperature, with gradient."""
        return self.trunk.logit_scale.exp()

    @torch.inference_mode()
    def encode_image(self, images: Tensor, normalize: bool = True) -> Tensor:
        features = self.trunk.encode_image(self.normalised(images.to(self.device))).float()
        return F.normalize(features, dim=-1) if normalize else features

    @torch.inference_mode()
    def encode_text(self, texts: Tensor, normalize: bool = True) -> Tensor:
        features = self.trunk.encode_text(texts.to(self.device)).float()
        return F.normalize(features, dim=-1) if normalize else features

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 images → what trunk and students look at."""
        return torch.addcmul(self.pixel_shift, images.float(), self.pixel_scale)


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """How many parameters each part holds."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = (
            "trunk image" if ".visual." in name else "trunk text" if name.startswith("trunk.") else name.split(".")[0]
        )
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts
