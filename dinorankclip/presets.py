"""Defines the presets, and the default settings that a preset, a method and a recipe give before the user's flags.

Nothing here imports torch, so `--help` is fast.
"""

from __future__ import annotations

from dinorankclip.config import (
    BudgetSettings,
    DistilSettings,
    ModelSettings,
    OptimSettings,
    ReadingSettings,
    RecordSettings,
    TrainSettings,
    with_changes,
)
from dinorankclip.finetuning import NONE, PRESET, START, for_start
from dinorankclip.methods import traits_of
from dinorankclip.recipes import check_recipe, recipe_called
from dinorankclip.run_files import data_at_hand

PRESETS = {
    # Built-in scenes and a small ViT at 48 px take minutes on two CPU cores. CLIP has a test R@1 of 39 / 25 % after 8
    # epochs, seed 0 (docs/results.md).
    "scenes": TrainSettings(
        model=ModelSettings(trunk="drc-tiny"),
        distil=DistilSettings(
            image_student="vit-micro", text_student="vit-micro", teacher_size=224, relational_items=64
        ),
        optim=OptimSettings(lr=1e-3, weight_decay=0.1),
        budget=BudgetSettings(batch=128, epochs=30),
    ),
    # Captioned photos in a retrieval-layout folder, small ViT at 96 px, tens of minutes on two CPU cores: a few per
    # cent test R@1, since so few photos teach little.
    "flickr8k": TrainSettings(
        preset="flickr8k",
        data="data/flickr8k",
        reading=ReadingSettings(crop_scale=(0.6, 1.0), flip=True),
        model=ModelSettings(trunk="drc-photo"),
        distil=DistilSettings(image_student="vit-mini", text_student="vit-mini", teacher_size=224),
        budget=BudgetSettings(batch=256, epochs=20),
    ),
    # Fine-tunes a model trained here or open_clip weights (`--init`) on own pairs; prints scores before and after.
    # Trained weights get other defaults than these: finetuning.py.
    "finetune": TrainSettings(
        preset="finetune",
        data="pairs.csv",
        reading=ReadingSettings(crop_scale=(0.8, 1.0)),
        optim=OptimSettings(name="adamw", lr=1e-4),  # weights that AdamW made; Muon is for training anew
        budget=BudgetSettings(batch=64, epochs=5),
    ),
    # WebDataset shards of CC3M, ViT-B/32 from scratch, the paper's hyper-parameter table, on a GPU node by torchrun.
    # This preset has not been run so far.
    "cc3m": TrainSettings(
        preset="cc3m",
        data="cc3m/cc3m-train-*.tar",
        reading=ReadingSettings(crop_scale=(0.9, 1.0), flip=True, workers=8),
        model=ModelSettings(trunk="ViT-B-32"),
        distil=DistilSettings(teacher="timm:vit_large_patch16_dinov3", compare_grid=14),  # its 14×14 patches at 224 px
        optim=OptimSettings(lr=5e-4),
        budget=BudgetSettings(batch=1024, epochs=64),
        record=RecordSettings(log_every=50, save_every=1000),
    ),
}


def preset(name: str) -> TrainSettings:
    """Return the settings of a preset."""
    return PRESETS[name]


def for_method(settings: TrainSettings, method: str) -> TrainSettings:
    """Return the settings with the method's defaults: its order; for dinorankclip also teacher, students and fusion."""
    traits = traits_of(method)
    order = {} if traits.fixed_order is None else {"loss.order": traits.fixed_order}
    return with_changes(settings, {"method": method, **order, **traits.brings})


def for_recipe(settings: TrainSettings, recipe: str | None) -> TrainSettings:
    """Return the settings with the recipe's defaults; without a recipe, the settings as they are."""
    if recipe is None:
        return settings
    check_recipe(recipe, settings.method)
    return with_changes(settings, {"recipe": recipe, **recipe_called(recipe).changes(settings)})


def default_settings(
    preset_name: str,
    method: str | None = None,
    recipe: str | None = None,
    init: str | None = None,
    weights: str | None = None,
    lora: bool = False,
    replay: str | None = START,
    data: str | None = None,
) -> TrainSettings:
    """Return the settings of preset, method and recipe, in this order, before the user's flags. Those of fine-tuning
    depend on the weights that it starts from (`init`, or `weights` for --model.weights), on LoRA and on replay, which
    is that of the start's data if they are at hand and others than `data`."""
    base = preset(preset_name)
    replay = None if replay == NONE else replay
    method = method or (base.method if recipe is None else recipe_called(recipe).methods[0])
    settings = for_recipe(for_method(base, method), recipe)
    if preset_name == PRESET and replay == START:
        unfit = settings.distil.cache is not None or traits_of(method).second_caption
        replay = None if unfit or not data_at_hand(init, data or settings.data) else START
    return for_start(settings, init, weights, lora, replay)
