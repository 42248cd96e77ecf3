"""Places images in the space of captions without any pair: an image is the mean of the names of what it may show.

A classifier gives the probabilities of K named classes, and a sentence encoder embeds the names (ConSE). Four choices
were measured on photos that no test counts:

- The class embeddings are centred. Otherwise all images lie near the mean name, and a few captions answer everything.
- Some names hide that their photos show people ("lab coat", "tench"). `people_in_classes.json` describes what such
  photos show, by the index of the class. Without it, a centred image space has no place for a person.
- The probabilities are flattened (`SHARPNESS` below 1) and all classes count: captions mention more than one thing.
- Captions stay as the encoder gives them. Only images are centred.

Shapes: B images, K classes, P prompts, M descriptions, D width of a caption embedding.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.types import UserError

PROMPTS = ("{c}", "a photo of a {c}.", "a {c}")
DESCRIPTION_SHARE = 0.7
SHARPNESS = 0.6
IMAGENET_CLASSES = 1000
_PEOPLE = "people_in_classes.json"


def class_directions(
    names: Tensor, descriptions: Tensor, described: Tensor, share: float = DESCRIPTION_SHARE
) -> Tensor:
    """Combine the embeddings of a class's prompts and of its descriptions, and centre the result over the classes.

        e_c = unit( Σ_p unit(n_cp) )                                     the name
        m_c = (1 - share)·e_c + share·mean_{j: class of j is c} unit(s_j)    m_c = e_c where nothing describes c
        d_c = m_c - (1/K) Σ_k m_k

    names [K, P, D], descriptions [M, D], described int64 [M] (the class of each description) → [K, D].

    As loops:
        for c in classes:
            m[c] = unit(sum(unit(names[c, p]) for p in prompts))
            own = [unit(descriptions[j]) for j in range(M) if described[j] == c]
            if own:
                m[c] = (1 - share) * m[c] + share * sum(own) / len(own)
        d[c] = m[c] - sum(m) / K
    """
    middle = F.normalize(F.normalize(names, dim=-1).sum(1), dim=-1)
    counts = torch.bincount(described, minlength=len(names)).to(middle)[:, None]
    sums = torch.zeros_like(middle).index_add(0, described, F.normalize(descriptions, dim=-1))
    blended = (1 - share) * middle + share * sums / counts.clamp_min(1)
    middle = torch.where(counts > 0, blended, middle)
    return middle - middle.mean(0)


def class_name_embedding(logits: Tensor, directions: Tensor, sharpness: float = SHARPNESS) -> Tensor:
    """Compute unit-norm image embeddings in caption space from the logits of a classifier.

        v = unit( Σ_c p_c·d_c ),   p = softmax(sharpness·z)

    logits z [B, K], directions d [K, D] → [B, D].

    As loops:
        for i in images:
            weight = [exp(sharpness * z[i, c]) for c in classes]
            v[i] = unit(sum(weight[c] / sum(weight) * d[c] for c in classes))
    """
    return F.normalize((sharpness * logits).softmax(-1) @ directions, dim=-1)


def imagenet_directions(encode: Callable[[Sequence[str]], Tensor]) -> Tensor:
    """Return the class directions [1000, D] of ImageNet-1k. `encode` maps sentences to embeddings [N, D]."""
    names, descriptions = imagenet_names(), people_in_classes()
    prompts = encode([prompt.replace("{c}", name) for name in names for prompt in PROMPTS])
    rows = prompts.reshape(len(names), len(PROMPTS), -1)
    return class_directions(rows, encode(list(descriptions.values())), torch.tensor(list(descriptions)))


def rules_version() -> str:
    """Return a text that changes with everything that the class directions are made of, besides the encoder."""
    return json.dumps([imagenet_names(), people_in_classes(), PROMPTS, DESCRIPTION_SHARE])


def imagenet_names() -> list[str]:
    """Return open_clip's names of the 1,000 classes, in the order of the classifier.

    Only the file with the names is run: an import of open_clip takes seconds.
    """
    package = importlib.util.find_spec("open_clip")
    if package is None or not package.origin:
        raise UserError("the names of ImageNet's classes come with open_clip: pip install open_clip_torch")
    path = Path(package.origin).with_name("zero_shot_metadata.py")
    spec = importlib.util.spec_from_file_location("open_clip_zero_shot_metadata", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{path} with the names of ImageNet's classes is missing: pip install -U open_clip_torch")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = list(getattr(module, "IMAGENET_CLASSNAMES", ()))
    if len(names) != IMAGENET_CLASSES:
        raise UserError(
            f"{path} names {len(names)} classes, not {IMAGENET_CLASSES}: pip install 'open_clip_torch>=3.0'"
        )
    return names


def people_in_classes() -> dict[int, str]:
    """Return what photos of a class show where people belong to it, by the index of the class."""
    text = resources.files("dinorankclip.models").joinpath(_PEOPLE).read_text(encoding="utf-8")
    return {int(index): sentence for index, sentence in json.loads(text).items()}
