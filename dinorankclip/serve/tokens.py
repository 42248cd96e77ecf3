"""Shows one image from inside: patch tokens of trunk, student and teacher, their cosines, and the fusion's gate.

Sources of tokens are `trunk` (of an aligned model its image tower), `student` (without students, what the fusion reads
in their place) and `teacher`.

Every source of tokens has a grid of its own; maps are given on one common grid, to which coarser ones are enlarged by
the nearest patch. A teacher's features come from the cache that the run learnt from; of a cached Gram G = T·Tᵀ tokens
with the same cosines are taken: T = U·√S of G = U·S·Uᵀ.

Shapes: h×w grid of a source, H×W common grid, P = H·W patches, C width of a token, D embedding width.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.class_name_bridge import class_name_embedding
from dinorankclip.models.fusion import alignment_bound, alignment_ratio
from dinorankclip.models.joint import Details, Encoded
from dinorankclip.models.own_tokens import LAST, OwnImageTokens
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.served_model import ServedModel
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.types import UserError, View

if TYPE_CHECKING:
    from dinorankclip.serve.state import ServedState

KEPT_IMAGES = 16
BINS, LARGEST = 20, 12  # of the histogram of gate values; dimensions that are named
OPEN = 0.5  # a dimension counts as open where its gate value is above this
NO_WORDS = (
    "words cannot be compared with patches: this model has no projection of single patches into the space of captions"
)


@dataclass
class Looked:
    """Holds what is known of one image: tokens [h, w, C] by source, gate and angle, and sentences on what lacks."""

    sources: dict[str, Tensor]
    details: Details
    encoded: Encoded
    patches: Tensor | None  # [h, w, D], patches of the trunk in the space of captions, of length 1
    lacks: list[str] = field(default_factory=list)

    @property
    def grid(self) -> tuple[int, int]:
        """Return the common grid (H, W), the finest of all sources."""
        return max(t.shape[0] for t in self.sources.values()), max(t.shape[1] for t in self.sources.values())


class Inside:
    """Looks at images of the set with the served models, and remembers the last few."""

    def __init__(self, state: ServedState) -> None:
        self._state, self._lock = state, threading.Lock()
        self._known: OrderedDict[tuple[str, int], Looked] = OrderedDict()
        self._caches: dict[str, TeacherCache | str] = {}

    def about(self, id: str, image: int) -> dict[str, Any]:
        """Return PCA colours of every source, and the gate."""
        looked = self._looked(id, image)
        grid = looked.grid
        pca = {name: enlarged(torch.from_numpy(colours(t)), grid).tolist() for name, t in looked.sources.items()}
        gate = None if looked.encoded.fused is None else gate_report(looked.encoded, looked.details)
        return {"grid": grid, "sources": list(looked.sources), "pca": pca, "gate": gate, "lacks": looked.lacks}

    def patch(self, id: str, image: int, source: str, patch: int) -> dict[str, Any]:
        """Return the cosines of one patch, counted on the common grid, with all patches of a source."""
        looked = self._looked(id, image)
        if source not in looked.sources:
            raise Refused(409, f"there are no tokens of '{source}' here, only {', '.join(looked.sources)}")
        height, width = looked.grid
        if not 0 <= patch < height * width:
            raise Refused(404, f"there is no patch {patch}: this image has patches 0 to {height * width - 1}")
        tokens = looked.sources[source]
        row, column = divmod(patch, width)
        h, w = tokens.shape[:2]
        own = tokens[row * h // height, column * w // width]
        cosines = F.cosine_similarity(tokens, own, dim=-1).clamp(-1, 1)
        return {"map": enlarged(cosines, looked.grid).tolist()}

    def words(self, id: str, image: int, words: str) -> dict[str, Any]:
        """Return the cosine of words with every patch of the trunk."""
        looked = self._looked(id, image)
        if looked.patches is None:
            raise Refused(409, NO_WORDS)
        model = self._state.model(id)
        with model.lock:
            text = text_beside_patches(model, words)
        return {"map": enlarged((looked.patches @ text).clamp(-1, 1), looked.grid).tolist(), "source": "trunk"}

    def _looked(self, id: str, image: int) -> Looked:
        model, place = self._state.model(id), self._state.collection.place(image)
        with self._lock:
            if (id, place) in self._known:
                self._known.move_to_end((id, place))
                return self._known[id, place]
        try:
            data = self._state.collection.source.image(place)
            pixels = model.loaded.preprocess(data)[None]
        except Damage as damage:
            raise Refused(409, f"image {image} cannot be read: {CAUSES[damage.cause]}") from None
        except UserError as error:
            raise Refused(409, f"image {image} cannot be read: {error}") from None
        with model.lock:
            looked = look(model, pixels)
        if isinstance(teacher := self._teacher_tokens(model, place), str):
            looked.lacks.append(teacher)
        else:
            looked.sources["teacher"] = teacher
        with self._lock:
            self._known[id, place] = looked
            while len(self._known) > KEPT_IMAGES:
                self._known.popitem(last=False)
        return looked

    def _teacher_tokens(self, model: ServedModel, place: int) -> Tensor | str:
        """Return the teacher's tokens of an image [h, w, C], or a sentence on why there are none."""
        if model.teacher_cache is None:
            return "No teacher: no cache of one is at hand for this model."
        key = self._state.collection.source.key(place)
        try:
            if model.id not in self._caches:
                self._caches[model.id] = _whole_cache(model, self._state.collection.split)
            cache = self._caches[model.id]
            return cache if isinstance(cache, str) else cached_tokens(cache, key)
        except (UserError, KeyError, OSError):
            return f"No teacher: this image is not in the cache {model.teacher_cache.name}."


def look(model: ServedModel, pixels: Tensor) -> Looked:
    """Run a model on one image, uint8 [1, 3, S, S]."""
    loaded, parts = model.loaded, model.loaded.parts
    details = loaded.look(pixels)
    with torch.inference_mode(), loaded.placement.autocast():
        normalised = parts.normalised(pixels.to(loaded.device))
        encoded = parts.see(normalised)
        patches = patches_among_captions(model, normalised)
    assert details.trunk_tokens is not None, "images have them"
    sources = {"trunk": details.trunk_tokens[0].float().cpu()}
    lacks = [sentence for sentence in model.lacks() if "teacher" not in sentence and "lists" not in sentence]
    if details.tokens is not None:
        sources["student"] = details.tokens[0].float().cpu()
    if patches is None:
        lacks.append(f"No words on patches: {NO_WORDS}.")
    return Looked(sources, details, encoded, patches, lacks)


def patches_among_captions(model: ServedModel, normalised: Tensor) -> Tensor | None:
    """Return the patches of normalised pixels [1, 3, S, S] in the space of captions, [h, w, D] of length 1.

    A ViT projects each patch as it projects its class token. Aligned towers that name classes place a patch by the
    classes that it shows (models/class_name_bridge.py). None: the model has neither.
    """
    parts = model.loaded.parts
    if isinstance(parts, AlignedModel):
        tokens = parts.image_tower(normalised)[0]
        if parts.bridge is None or tokens.shape[-1] != parts.bridge.weight.shape[1]:
            return None
        bridge = parts.bridge
        rows = class_name_embedding(F.linear(tokens, bridge.weight, bridge.bias), bridge.directions)
        return rows[0].float().unflatten(0, parts.image_tower.grid).cpu()
    if not parts.trunk.has_class_token:
        return None
    own = OwnImageTokens(parts.trunk, LAST)
    projected = parts.trunk.projected_image(own(normalised)[1].tokens)
    return F.normalize(projected[0].float(), dim=-1).unflatten(0, own.grid).cpu()


def text_beside_patches(model: ServedModel, words: str) -> Tensor:
    """Return the row of words [D], of length 1, that `patches_among_captions` is compared with: the trunk's own."""
    parts = model.loaded.parts
    if isinstance(parts, AlignedModel):
        assert parts.bridge is not None, "patches are placed by it"
        with torch.inference_mode():
            ids = parts.tokenizer()([words]).to(parts.device)
            return parts.bridge.text(parts.layouts["text"].unpack(parts.text_rows(ids))[0])[0].float().cpu()
    return model.loaded.read([words]).contrastive[0].float().cpu()


def gate_report(encoded: Encoded, details: Details) -> dict[str, Any]:
    """Describe gate values and the angle by which the fusion turns the trunk's embedding, of one image."""
    assert encoded.fused is not None and details.gate is not None and details.angle is not None, "fused"
    values = details.gate[0].float().cpu().numpy()
    counts, edges = np.histogram(values, BINS, (0.0, 1.0))
    ratio = alignment_ratio(encoded.fused.gate, encoded.fused.residual, encoded.contrastive)
    largest = np.argsort(-values, kind="stable")[:LARGEST]
    return {
        "values_histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "open": int((values > OPEN).sum()),
        "dimensions": len(values),
        "mean": float(values.mean()),
        "angle": float(details.angle[0]),
        "angle_bound": float(alignment_bound(ratio)[0]),
        "largest": [{"dimension": int(at), "value": float(values[at])} for at in largest],
    }


def colours(tokens: Tensor) -> np.ndarray:
    """Return the first three principal components of tokens [h, w, C] as colours, uint8 [h, w, 3].

    Each component is stretched from its lowest to its highest value; the largest entry of an axis is positive.
    """
    rows = tokens.flatten(0, 1).double()
    centred = rows - rows.mean(0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:3]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    components = centred @ (axes * torch.where(largest < 0, -1.0, 1.0)).T
    low, high = components.amin(0), components.amax(0)
    spread = torch.where(sizes[: len(axes)] > 1e-9, high - low, torch.inf)
    stretched = F.pad((components - low) / spread, (0, 3 - components.shape[1]))
    return (255 * stretched).round().to(torch.uint8).unflatten(0, tokens.shape[:2]).numpy()


def enlarged(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return a map [h, w, …] on the common grid, row by row: [P, …], each patch the value of the one it lies in."""
    h, w = values.shape[:2]
    rows, columns = torch.arange(grid[0]) * h // grid[0], torch.arange(grid[1]) * w // grid[1]
    return values[rows][:, columns].flatten(0, 1)


def _whole_cache(model: ServedModel, split: str) -> TeacherCache | str:
    """Open a teacher's cache at its full grid; a sentence if it holds neither tokens nor Gram matrices."""
    assert model.teacher_cache is not None, "asked before"
    grid = TeacherCache(model.teacher_cache, split).grid
    cache = TeacherCache(model.teacher_cache, split, compare_grid=min(grid))
    if not cache.fields & {"gram", "tokens"}:
        return "No teacher: its cache holds summaries alone."
    return cache


def cached_tokens(cache: TeacherCache, key: str) -> Tensor:
    """Return tokens of a whole image [g, g, K] with the cosines of the teacher's."""
    features = cache.images([key], [View()])
    tokens = features.get("image_tokens")
    rows = tokens[0].float() if tokens is not None else tokens_of_gram(features["image_gram"][0])
    return rows.unflatten(0, cache.compare_grid)


def tokens_of_gram(gram: Tensor) -> Tensor:
    """Return tokens T [L, L] with T·Tᵀ = gram [L, L], which is positive semidefinite up to rounding."""
    values, vectors = torch.linalg.eigh(gram.double())
    return (vectors * values.clamp_min(0).sqrt()).float()
