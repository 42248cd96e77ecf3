"""Builds the model of `--recipe aligned` from settings, and chooses batch and epochs by the number of pairs."""

from __future__ import annotations

import math
from typing import Any

import torch

from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.splits import chosen_among
from dinorankclip.methods import traits_of
from dinorankclip.models.aligned import AlignedDesign, AlignedModel
from dinorankclip.models.joint import FusionDesign
from dinorankclip.models.starter import NAMED, fill_bridge
from dinorankclip.models.towers import open_image_tower, open_text_tower
from dinorankclip.recipes import BY_SIZE
from dinorankclip.train.frozen_rows import FrozenImages
from dinorankclip.train.run_folder import say
from dinorankclip.train.tower_rows import CaptionRows
from dinorankclip.types import Source, UserError

LARGEST_BATCH, SMALLEST_BATCH = 512, 8
STEPS_WANTED = 180
MOST_EPOCHS, FEWEST_EPOCHS = 60, 8
FEWEST_PAIRS = 16
LEAST_HEAD_WEIGHT, PAIRS_OF_EQUAL_WEIGHT = 0.4, 200
NAMES_BELOW = 2000  # pairs; with more, heads that start at random end higher
SCALE_ROWS = 4096  # rows from which mean and spread of summaries are taken


def sized(settings: TrainSettings) -> TrainSettings:
    """Return settings with batch and epochs in place of `BY_SIZE`; other settings stay as they are."""
    if settings.recipe != "aligned":
        return settings
    if BY_SIZE not in (settings.budget.batch, settings.budget.epochs) and settings.aligned.start != "auto":
        return settings
    train = open_pairs(settings.data, settings.reading, "train")
    batch, epochs = batch_and_epochs(len(train), chosen_among(train))
    changes: dict[str, Any] = {}
    if settings.aligned.start == "auto":
        changes["aligned.start"] = start_for(len(train), settings)
        if settings.aligned.head_weight is None and changes["aligned.start"] == "names":
            changes["aligned.head_weight"] = head_weight_for(len(train))
    if settings.budget.batch == BY_SIZE:
        changes["budget.batch"] = batch
    if settings.budget.epochs == BY_SIZE:
        changes["budget.epochs"] = epochs
    settings = with_changes(settings, changes)
    budget = settings.budget
    names = ", heads on top of the starter" if settings.aligned.start == "names" else ""
    say(f"{len(train):,} training pairs: batches of {budget.batch}, {budget.epochs} epochs{names}")
    return settings


def start_for(pairs: int, settings: TrainSettings) -> str:
    """Return the start of the heads: class names help where pairs are few, and need a classifier."""
    has_names = settings.aligned.image_tower.partition(":")[0] in NAMED
    return "names" if has_names and settings.init is None and pairs < NAMES_BELOW else "random"


def head_weight_for(pairs: int) -> float:
    """Return the length of the heads' half: heads that saw few pairs know less than the starter."""
    return round(min(1.0, max(LEAST_HEAD_WEIGHT, math.sqrt(pairs / PAIRS_OF_EQUAL_WEIGHT))), 2)


def batch_and_epochs(pairs: int, pairs_of_epoch: int) -> tuple[int, int]:
    """Return a batch of at most a quarter of the pairs, and epochs for about `STEPS_WANTED` steps.

    A few pairs chosen from many (`reading.train_items`) come round more often: an epoch counts the many.
    """
    if pairs < FEWEST_PAIRS:
        raise UserError(
            f"{pairs} training pairs are too few to learn from: give at least {FEWEST_PAIRS}; without any pair, "
            "`dinorankclip search starter --images DIR WORDS` works at once"
        )
    batch = LARGEST_BATCH
    while batch > SMALLEST_BATCH and 4 * batch > pairs:
        batch //= 2
    steps_per_epoch = max(1, pairs_of_epoch // batch)
    return batch, min(MOST_EPOCHS, max(FEWEST_EPOCHS, round(STEPS_WANTED / steps_per_epoch)))


def new_aligned_model(settings: TrainSettings) -> AlignedModel:
    """Open the towers and build heads and fusions anew."""
    wanted = settings.aligned
    image = open_image_tower(wanted.image_tower, wanted.image_size)
    text = open_text_tower(wanted.text_tower)
    named = wanted.start == "names"
    fusion = settings.fusion
    design = AlignedDesign(
        image=image.design,
        text=text.design,
        head_dim=wanted.dim,
        hidden=wanted.hidden,
        start=wanted.start,
        head_weight=1.0 if wanted.head_weight is None else wanted.head_weight,
        fusion=FusionDesign(fusion.variant, fusion.gate, fusion.start, fusion.gate_bias),
        fused=wanted.fused if fusion.variant != "none" else "",
        token_width=wanted.token_width,
        text_places=wanted.text_places,
        biased=traits_of(settings.method).biased,
    )
    model = AlignedModel(design, image, text, settings.seed, wanted.dropout)
    if named:
        fill_bridge(model, wanted.image_tower)
    return model


def set_scales(model: AlignedModel, images: FrozenImages, captions: CaptionRows, train: Source) -> None:
    """Give the heads mean and spread of the training rows' summaries."""
    places = torch.linspace(0, len(train) - 1, min(len(train), SCALE_ROWS)).long().unique().tolist()
    layout = model.layouts["image"]
    rows = torch.stack([images.rows["train"](place)[: layout.summary] for place in places])
    model.image_head.set_scale(rows.to(model.device))
    texts = captions([train.captions(place)[0] for place in places])[:, : model.layouts["text"].summary]
    model.text_head.set_scale(texts.to(model.device))
