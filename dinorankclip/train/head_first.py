"""Trains the two projections of a trunk before everything else (`tune.head_epochs`; LP-FT, Kumar et al. 2022).

Images and captions of the training part pass through the towers once, and what the projections read is kept in memory.
So an epoch costs about nothing, and the towers are not bent by the gradients of projections that do not fit yet. Every
process takes the same steps; all go on with the projections of the first.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip import distributed
from dinorankclip.data.row_store import GOOD, embed_rows
from dinorankclip.data.samples import Purpose, Sample, below, generator, permutation, shared_ids
from dinorankclip.data.splits import group_of
from dinorankclip.losses.contrastive import info_nce_rows, unit_rows
from dinorankclip.models.joint import JointModel
from dinorankclip.train.assemble import RunParts
from dinorankclip.train.run_folder import say
from dinorankclip.train.step import learning_rate
from dinorankclip.types import UserError, View

IMAGES_AT_ONCE, TEXTS_AT_ONCE = 64, 256
LARGEST_BATCH = 1024  # projections alone take any batch; a few batches an epoch must remain
BATCHES_OF_EPOCH = 8


def train_heads(parts: RunParts) -> None:
    """Train the projections of a run that has not begun."""
    model, settings, tune = parts.state.model, parts.settings, parts.settings.tune
    if not isinstance(model, JointModel) or not (model.trunk.has_class_token and model.trunk.has_causal_blocks):
        raise UserError(
            "--tune.head-epochs trains the projections of CLIP's own towers, and this model has others: leave it out"
        )
    model.eval()
    images, texts, captions, places = _features(parts, model)
    model.train()
    heads = [model.trunk.towers.visual.proj, model.trunk.towers.text_projection]
    batch = max(1, min(LARGEST_BATCH, len(places) // BATCHES_OF_EPOCH))
    per_epoch = len(places) // batch
    optimizer = torch.optim.AdamW(heads, lr=tune.head_rate, weight_decay=0.0)
    learning = [head.requires_grad for head in heads]
    for head in heads:
        head.requires_grad_(True)
    scale, losses = model.scale().detach(), []
    for step in range(total := per_epoch * tune.head_epochs):
        epoch, row = divmod(step, per_epoch)
        chosen = permutation(settings.seed, epoch, len(places))[row * batch : (row + 1) * batch]
        draws = generator(settings.seed, Purpose.CAPTION, epoch, row, 0)
        drawn = [captions[place][below(draws, len(captions[place]))] for place in chosen]
        groups = torch.tensor([_ids(parts, int(places[place]), drawn[at][1]) for at, place in enumerate(chosen)])
        image = unit_rows(model.trunk.projected_image(images[chosen]))
        text = unit_rows(model.trunk.projected_text(texts[[at for at, _ in drawn]]))
        loss = info_nce_rows(image, text, scale, groups=groups).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = learning_rate(step, total, tune.head_rate, 0)
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        for head, learns in zip(heads, learning):
            head.requires_grad_(learns).grad = None
            head.copy_(distributed.gather_rows(head.detach()[None])[0])
    if losses:
        ends = (sum(part) / len(part) for part in (losses[:per_epoch], losses[-per_epoch:]))
        say(
            "projections first: loss {:.3f} in the first epoch, {:.3f} in the last of {}".format(
                *ends, tune.head_epochs
            )
        )


@torch.inference_mode()
def _features(parts: RunParts, model: JointModel) -> tuple[Tensor, Tensor, list[list[tuple[int, str]]], np.ndarray]:
    """Return what the projections read: of images [n, W], of captions [T, W]; the captions of each image, with their
    places among the T; and the places of the n images in the source."""
    source, device = parts.train, model.device
    with tqdm(total=len(source), desc="features", unit="image", disable=not distributed.world().leads) as bar:
        rows, causes = embed_rows(
            {"pooled": lambda pixels: model.trunk.image_tokens(model.normalised(pixels.to(device)))[0]}, source,
            range(len(source)), model.image_spec, batch=IMAGES_AT_ONCE, max_pixels=parts.settings.reading.max_pixels,
            progress=bar.update,
        )  # fmt: skip
    places = np.flatnonzero(causes == GOOD)
    captions: list[list[tuple[int, str]]] = []
    texts: list[str] = []
    for place in places:
        captions.append([])
        for text in source.captions(int(place)):
            captions[-1].append((len(texts), text))
            texts.append(text)
    pieces = (texts[at : at + TEXTS_AT_ONCE] for at in range(0, len(texts), TEXTS_AT_ONCE))
    read = [model.trunk.text_tokens(parts.tokenizer(piece).to(device))[0] for piece in pieces]
    return torch.from_numpy(rows["pooled"]).to(device), torch.cat(read).clone(), captions, places


def _ids(parts: RunParts, place: int, caption: str) -> list[int]:
    grouped = parts.settings.reading.group_column is not None
    group = group_of(parts.train, place) if grouped else None
    return shared_ids(Sample(parts.train.key(place), torch.empty(0), View(), caption, group=group))
