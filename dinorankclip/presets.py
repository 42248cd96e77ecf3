"""The presets: whole settings by name, and what a method brings to them."""

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
from dinorankclip.methods import traits_of


def preset(name: str) -> TrainSettings:
    """The settings behind a preset name."""
    return PRESETS[name]()


def for_method(settings: TrainSettings, method: str) -> TrainSettings:
    """The defaults a method brings: its order, and for dinorankclip the teacher, both students and their fusion."""
    traits = traits_of(method)
    order = {} if traits.fixed_order is None else {"loss.order": traits.fixed_order}
    return with_changes(settings, {"method": method, **order, **traits.brings})


def _scenes() -> TrainSettings:
    """Built-in scenes, small ViT at 48 px, two CPU cores, minutes.

    `dinorankclip train --preset scenes`: test R@1 46.1 / 30.3 % after 30 epochs, seed 0 (docs/results.md).
    """
    return TrainSettings(
        model=ModelSettings(trunk="drc-tiny"),
        distil=DistilSettings(
            image_student="vit-micro", text_student="vit-micro", teacher_size=224, relational_items=64
        ),
        optim=OptimSettings(lr=1e-3, weight_decay=0.1),
        budget=BudgetSettings(batch=128, epochs=30),
    )


def _flickr8k() -> TrainSettings:
    """Real captioned photos in a retrieval-layout folder, 96 px, small ViT, two CPU cores, tens of minutes.

    `dinorankclip train --preset flickr8k --data data/flickr8k`: a few per cent test R@1; so few photos teach little.
    """
    return TrainSettings(
        preset="flickr8k",
        data="data/flickr8k",
        reading=ReadingSettings(crop_scale=(0.6, 1.0), flip=True),
        model=ModelSettings(trunk="drc-photo"),
        distil=DistilSettings(image_student="vit-mini", text_student="vit-mini", teacher_size=224),
        budget=BudgetSettings(batch=256, epochs=20),
    )


def _finetune() -> TrainSettings:
    """Own pairs, on top of a model trained here or of open_clip weights (`--init`).

    `dinorankclip train --preset finetune --data photos.csv --init runs/quickstart-clip`: prints before and after.
    """
    return TrainSettings(
        preset="finetune",
        data="pairs.csv",
        reading=ReadingSettings(crop_scale=(0.8, 1.0)),
        optim=OptimSettings(lr=1e-4),
        budget=BudgetSettings(batch=64, epochs=5),
    )


def _cc3m() -> TrainSettings:
    """WebDataset shards of CC3M, ViT-B/32 from scratch, the paper's hyper-parameter table; a GPU node by torchrun.

    `torchrun --nproc-per-node 8 -m -- dinorankclip train --preset cc3m --method dinorankclip`: never run so far.
    """
    return TrainSettings(
        preset="cc3m",
        data="cc3m/cc3m-train-*.tar",
        reading=ReadingSettings(crop_scale=(0.9, 1.0), flip=True, workers=8),
        model=ModelSettings(trunk="ViT-B-32"),
        distil=DistilSettings(teacher="timm:vit_large_patch16_dinov3"),
        optim=OptimSettings(lr=5e-4),
        budget=BudgetSettings(batch=1024, epochs=64),
        record=RecordSettings(log_every=50, save_every=1000),
    )


PRESETS = {"scenes": _scenes, "flickr8k": _flickr8k, "finetune": _finetune, "cc3m": _cc3m}
