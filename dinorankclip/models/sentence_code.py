"""The model in this folder for `SentenceTransformer`. Exports have a copy of this file, sentence_dinorankclip.py.

    model = SentenceTransformer(FOLDER, trust_remote_code=True)
    model.encode([Image.open("photo.jpg")]) @ model.encode(["a red mug"]).T

One module maps photos (Pillow images) and captions to unit-norm embeddings of the same space. The package
dinorankclip (pip install dinorankclip) loads the model and prepares its inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from dinorankclip import load_model


class DinoRankCLIPEncoder(InputModule):
    tokenizer: Any

    def __init__(self, folder: Any) -> None:
        super().__init__()
        model = load_model(folder, device="cpu", precision="fp32")
        self.parts, self.show, self.tokenizer = model.parts, model.preprocess, model.tokenizer

    @property
    def modalities(self) -> list[Any]:
        return ["text", "image"]

    def preprocess(self, inputs: Any, prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Turn captions (strings) into ids, or photos into pixels. One call holds one kind."""
        if all(isinstance(item, str) for item in inputs):
            return {"ids": self.tokenizer([(prompt or "") + text for text in inputs])}
        return {"pixels": torch.stack([self.show(item) for item in inputs])}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding` [B, D]."""
        rows: Tensor
        if "pixels" in features:
            rows = self.parts.see(self.parts.normalised(features["pixels"])).raw
        else:
            rows = self.parts.read(features["ids"]).raw
        return features | {"sentence_embedding": F.normalize(rows.float(), dim=-1)}

    def get_embedding_dimension(self) -> int:
        return self.parts.dim

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Refuse: the folder that was loaded is the model."""
        raise NotImplementedError("copy the exported folder: this adapter holds no weights of its own")

    @classmethod
    def load(cls, model_name_or_path: str, *_: Any, **options: Any) -> DinoRankCLIPEncoder:
        folder = Path(model_name_or_path)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            given = {name: options[name] for name in ("revision", "token") if options.get(name)}
            offline = bool(options.get("local_files_only"))
            cache = options.get("cache_folder")
            folder = Path(snapshot_download(model_name_or_path, cache_dir=cache, local_files_only=offline, **given))
        return cls(folder)
