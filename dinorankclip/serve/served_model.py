"""Holds one served model: what it has and lacks in sentences, and embeddings of queries.

Shapes: D embedding width.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.methods import title_of_stored
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.models.starter import STARTER
from dinorankclip.models.trunk import trunk_name
from dinorankclip.run_files import inert_orders
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.ranking_loss import load_ranking_loss, order_of, run_of, settings_of
from dinorankclip.types import UserError

KEPT_QUERIES = 2000


@dataclass
class ServedModel:
    """Holds a model under the id by which requests name it: "a" or "b". `stamp` names its files when it was loaded."""

    id: str
    loaded: LoadedModel
    stamp: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # one request at a time uses the network
    _known: OrderedDict[str, np.ndarray] = field(default_factory=OrderedDict)

    @property
    def name(self) -> str:
        return self.loaded.name

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Return the stored settings of the run behind the model; empty if its origin is not known."""
        return settings_of(self.name)

    @functools.cached_property
    def order(self) -> int:
        """Return the order of the lists that the model learnt."""
        return order_of(self.settings)

    @functools.cached_property
    def ranking(self) -> RankingLoss | None:
        """Return the ranking loss of the model's checkpoint; of order 1 if its heads were not kept."""
        return load_ranking_loss(self.name, self.loaded.dim, self.settings)

    @functools.cached_property
    def inert(self) -> list[int]:
        """Return the orders whose corrections had no effect at the end of training, by the run's log."""
        run = run_of(self.name)
        return inert_orders(run) if run is not None else []

    @property
    def teacher_cache(self) -> Path | None:
        """Return the folder of the teacher's cached features that the run learnt from, if it is still there."""
        folder = self.settings.get("distil", {}).get("cache")
        return Path(folder) if folder and Path(folder).is_dir() else None

    # --- description

    def has(self) -> dict[str, bool]:
        parts = self.loaded.parts
        fusions = [fusion for fusion in (parts.image_fusion, parts.text_fusion) if fusion is not None]
        aligned = isinstance(parts, AlignedModel)
        return {
            "students": not aligned and (parts.image_student is not None or parts.text_student is not None),
            "fusion": bool(fusions),
            "gates": any(fusion.gate is not None for fusion in fusions),
            "dense": aligned or bool(parts.fused_tokens),
            "heads": self.ranking is not None and self.ranking.order >= 2,
            "teacher_cache": self.teacher_cache is not None,
        }

    def lacks(self) -> list[str]:
        """Return a sentence for everything that pages show and this model does not have."""
        has, said = self.has(), []
        if self.name == STARTER:
            said.append("It is the starter: the installed towers as they are, which have seen no pair.")
        elif not self.settings:
            said.append("Its training is not known: no settings of a run are stored with it.")
        if self.order == 0:
            said.append("It is of order 0: it learnt no lists, so lists show its similarities alone.")
        elif self.order == 1:
            said.append("It is of order 1: lists have utilities, and no transitions between items.")
        elif not has["heads"]:
            said.append(
                f"It learnt lists of order {self.order}, but its transition heads are not here: they lie beside the "
                "checkpoint of a run, and exports leave them out."
            )
        if not has["students"] and has["fusion"]:
            said.append("It has no students: its fusion reads the trunk's own dense tokens.")
        elif not has["students"]:
            said.append("It has no students: an image has the trunk's patch tokens alone.")
        if not has["fusion"]:
            said.append("It has no fusion, so there are no gates and no angle.")
        elif not has["gates"]:
            said.append("Its fusion has no gate: the residual is added whole.")
        if not has["teacher_cache"]:
            said.append("No cached teacher is at hand for it.")
        return said

    @functools.cached_property
    def trunk(self) -> str:
        """Return the name of the trunk, or of the two towers of an aligned model. Files of towers are not named."""
        parts = self.loaded.parts
        if isinstance(parts, AlignedModel):
            return f"{parts.image_tower.design.spec} + {parts.text_tower.design.spec}"
        return trunk_name(parts.trunk.config) or "without a name"

    def about(self, rows: int) -> dict[str, Any]:
        settings = self.settings
        return {
            "id": self.id,
            "name": self.name,
            "method": title_of_stored(settings) if settings else STARTER if self.name == STARTER else "unknown",
            "order": self.order,
            "trunk": self.trunk,
            "image_size": self.loaded.image_spec.size,
            "recipe": settings.get("recipe"),
            "dimensions": self.loaded.dim,
            "has": self.has(),
            "lacks": self.lacks(),
            "rows": rows,
        }

    # --- embeddings of queries

    def embed_words(self, words: str) -> np.ndarray:
        """Embed words: fp32 [D], of length 1. Recent queries are remembered."""
        return self._remembered(f"words {words}", lambda: self.loaded.encode_text([words])[0].cpu().numpy())

    def embed_photo(self, data: bytes) -> np.ndarray:
        """Embed an encoded image, whose size was checked: fp32 [D], of length 1."""

        def compute() -> np.ndarray:
            return self.loaded.encode_image(self.loaded.preprocess(data)[None])[0].cpu().numpy()

        try:
            return self._remembered("photo " + hashlib.blake2b(data, digest_size=16).hexdigest(), compute)
        except UserError as error:
            raise Refused(422, f"this photo cannot be read: {error}") from None

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        with self.lock:
            return self.loaded.encode_text(list(texts)).cpu().numpy()

    def _remembered(self, key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        with self.lock:
            if key not in self._known:
                self._known[key] = compute()
                while len(self._known) > KEPT_QUERIES:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return self._known[key]
