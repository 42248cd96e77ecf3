"""The model in this folder for transformers' `AutoModel`. Exports have a copy of this file, modeling_dinorankclip.py.

A DinoRankCLIP model with students, a fusion or frozen towers is no model of the library transformers. `AutoModel` opens
it through this file, after the user allowed code of the folder:

    model = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

The file holds an adapter alone: model and weights are loaded by the package dinorankclip (pip install dinorankclip),
which checks the folder as it checks every model.

Shapes: B images or captions, S image side, L ids, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from dinorankclip.models.folder import load_folder


class DinoRankCLIPConfig(PretrainedConfig):
    model_type = "dinorankclip"


@dataclass
class DinoRankCLIPOutput(ModelOutput):
    """Holds unit-norm embeddings [B, D] and the logits of all pairs, with the names that CLIP's output has."""

    logits_per_image: Tensor | None = None
    logits_per_text: Tensor | None = None
    text_embeds: Tensor | None = None
    image_embeds: Tensor | None = None


class DinoRankCLIPModel(PreTrainedModel):
    """Has the methods of transformers' `CLIPModel`. Features are not normalised, the embeddings of `forward` are."""

    config_class = DinoRankCLIPConfig
    all_tied_weights_keys: dict[str, str] = {}  # noqa: RUF012 (transformers' name and type)

    def __init__(self, config: DinoRankCLIPConfig, parts: Any) -> None:
        super().__init__(config)
        self.parts = parts.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> DinoRankCLIPModel:
        """Load a folder, or a repository of the hub. The weights are fp32; `.to(…)` changes device and type."""
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            given = {name: options[name] for name in ("revision", "token", "cache_dir") if options.get(name)}
            offline = bool(options.get("local_files_only"))
            folder = Path(snapshot_download(str(pretrained_model_name_or_path), local_files_only=offline, **given))
        config = options.get("config") or DinoRankCLIPConfig.from_pretrained(folder)
        return cls(config, load_folder(folder))

    def get_image_features(self, pixel_values: Tensor, **_: Any) -> Tensor:
        """Map pixels of the processor [B, 3, S, S] to [B, D]."""
        return self.parts.see(pixel_values).raw

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Tensor:
        """Map ids of the processor [B, L] to [B, D]."""
        if attention_mask is not None:  # this model's own padding is 0
            input_ids = input_ids.masked_fill(attention_mask == 0, 0)
        return self.parts.read(input_ids).raw

    def forward(
        self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> DinoRankCLIPOutput:
        image = F.normalize(self.get_image_features(pixel_values), dim=-1)
        text = F.normalize(self.get_text_features(input_ids, attention_mask), dim=-1)
        bias = self.parts.bias()
        logits = self.parts.scale() * text @ image.T + (0.0 if bias is None else bias)
        return DinoRankCLIPOutput(logits.T, logits, text, image)

    @torch.no_grad()
    def _init_weights(self, module: Any) -> None:
        """Leave the weights alone: they were loaded with the model."""
