"""Builds the model of `--recipe aligned` from settings, and chooses batch and epochs by the number of pairs."""

from __future__ import annotations

import torch

from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.splits import chosen_among
from dinorankclip.methods import traits_of
from dinorankclip.models.aligned import AlignedDesign, AlignedModel
from dinorankclip.models.joint import FusionDesign
from dinorankclip.models.starter import fill_bridge
from dinorankclip.models.towers import open_image_tower, open_text_tower
from dinorankclip.recipes import BY_SIZE
from dinorankclip.train.frozen_rows import FrozenImages
from dinorankclip.train.run_folder import say
from dinorankclip.train.tower_rows import CaptionRows
from dinorankclip.types import Source, UserError

RANDOM_DIM = 256  # width of the embedding when heads start at random
LARGEST_BATCH, SMALLEST_BATCH = 512, 8
STEPS_WANTED = 180
MOST_EPOCHS, FEWEST_EPOCHS = 60, 8
FEWEST_PAIRS = 16
SCALE_ROWS = 4096  # rows from which mean and spread of summaries are taken


def sized(settings: TrainSettings) -> TrainSettings:
    """Return settings with batch and epochs in place of `BY_SIZE`; other settings stay as they are."""
    if settings.recipe != "aligned" or BY_SIZE not in (settings.budget.batch, settings.budget.epochs):
        return settings
    train = open_pairs(settings.data, settings.reading, "train")
    batch, epochs = batch_and_epochs(len(train), chosen_among(train))
    changes = {}
    if settings.budget.batch == BY_SIZE:
        changes["budget.batch"] = batch
    if settings.budget.epochs == BY_SIZE:
        changes["budget.epochs"] = epochs
    settings = with_changes(settings, changes)
    budget = settings.budget
    say(f"{len(train):,} training pairs: batches of {budget.batch}, {budget.epochs} epochs")
    return settings


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
    if named and wanted.dim not in (None, text.own_summary):
        raise UserError(
            f"--aligned.dim {wanted.dim}: with --aligned.start names the embedding is as wide as the text tower's "
            f"({text.own_summary})"
        )
    fusion = settings.fusion
    design = AlignedDesign(
        image=image.design,
        text=text.design,
        dim=wanted.dim or (text.own_summary if named else RANDOM_DIM),
        hidden=wanted.hidden,
        start=wanted.start,
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
