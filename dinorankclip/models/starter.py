"""Builds the starter: what the installed towers can do before any pair is seen (`starter` as MODEL).

The image tower's own classifier says which of 1,000 named classes it sees, and the text tower says what the names mean
(class_name_bridge.py). Nothing is trained. An aligned model with `--aligned.start names` begins with these embeddings.

Class directions depend on the towers alone. They take some seconds, and are stored under built/starter.

Shapes: B items, K classes, C' width of an image summary, D width of a sentence vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dinorankclip.io import digest, home, write_bytes
from dinorankclip.models.aligned import AlignedDesign, AlignedModel, NameBridge
from dinorankclip.models.class_name_bridge import imagenet_directions, rules_version
from dinorankclip.models.towers import ImageTower, TextTower
from dinorankclip.models.weights_file import read_weights
from dinorankclip.teachers.efficientnet_lite0 import LITE0, LITE2, classifier_of
from dinorankclip.types import UserError

STARTER = "starter"  # the name of this model wherever a MODEL is named
IMAGE, TEXT = LITE0.name, "minilm"
NAMED = {variant.name: variant for variant in (LITE0, LITE2)}  # towers with a classifier of named classes
SENTENCES_AT_ONCE = 128


def starter_model() -> AlignedModel:
    """Open the installed towers and join them by the class-name bridge."""
    image, text = ImageTower(IMAGE), TextTower(TEXT)
    design = AlignedDesign(image.design, text.design, head_dim=0, hidden=0, start="names")
    model = AlignedModel(design, image, text)
    fill_bridge(model, IMAGE)
    return model.eval()


def fill_bridge(model: AlignedModel, image_spec: str) -> None:
    """Give a model that starts with names its classifier and class directions."""
    assert isinstance(model.bridge, NameBridge), "the design says `names`"
    kind, _, argument = image_spec.partition(":")
    if kind not in NAMED:
        raise UserError(
            f"--aligned.start names needs an image tower with a classifier of named classes, and {kind} has none: "
            f"use --aligned.start random, or --aligned.image-tower {IMAGE}"
        )
    classifier = classifier_of(argument, NAMED[kind])
    model.bridge.weight.copy_(classifier.weight)
    model.bridge.bias.copy_(classifier.bias)
    model.bridge.directions.copy_(_directions(model.text_tower))


def _directions(tower: TextTower) -> Tensor:
    """Return the class directions [K, D] of a text tower, stored or new."""
    path = home() / "starter" / f"{digest('class directions', rules_version(), tower.design)}.safetensors"
    if path.is_file():
        return read_weights(path)["directions"]

    @torch.inference_mode()
    def encode(sentences: Sequence[str]) -> Tensor:
        cuts = (sentences[at : at + SENTENCES_AT_ONCE] for at in range(0, len(sentences), SENTENCES_AT_ONCE))
        rows = [tower(tower.tokenizer(cut))[1][:, : tower.own_summary] for cut in cuts]
        return torch.cat(rows).clone()

    directions = imagenet_directions(encode)
    from safetensors.torch import save

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, save({"directions": directions.contiguous()}))
    except OSError:
        pass  # the next process computes them again
    return directions
