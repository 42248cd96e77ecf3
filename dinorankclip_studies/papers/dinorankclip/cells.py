"""Every cell that a table or a claim asks for: a name, a method, and what it changes of the study's base settings.

A cell keeps everything else of its base: data, batch, epochs, trunk, ramp, learning rate schedule. Cells that
cannot (a larger trunk, fewer different scenes) say so in their experiment's note.

The paper's component rows are cumulative:

    CLIP                       clip
    RankCLIP                   rankclip
    + high-order (R3)          rank-3
    + image distillation, SPP  full-image-no-gate     its fusion column says SPP, and SPP+gate in the last row alone:
    + text distillation, SPP   full-no-gate           so these two rows have the whole module with α = 1
    full                       full

`full-no-text` is the other reading, the full model without its text branch (the gate stays).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dinorankclip_studies.study import Cell

LONGER_CLIP = "control-clip-longer"
# As many epochs as CLIP makes in the time that ten of the full method take; studies of other lengths say how many.
_LONGER = {"budget.epochs": 28}
_TEACHER = {"distil.cache": "auto", "distil.branches": "image+text"}


def _full(name: str, **changes: Any) -> Cell:
    """The full method with changes; a double underscore stands for the dot of a setting's name."""
    return Cell(name, "dinorankclip", _dotted(changes))


def _plain(name: str, **changes: Any) -> Cell:
    """The ranking loss of order 3 without teacher, students and fusion."""
    return Cell(name, "rank", {"loss.order": 3} | _dotted(changes))


def _dotted(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in changes.items()}


METHOD_CELLS = (
    Cell("clip", "clip"),
    Cell("cyclip", "cyclip"),
    Cell("alip", "alip"),
    Cell("rankclip", "rankclip"),
    _full("full"),
)

ORDER_CELLS = (
    *(_plain(f"rank-{order}", loss__order=order) for order in (2, 3, 4, 5)),
    *(_full(f"full-{order}", loss__order=order) for order in (0, 1, 2, 4, 5)),
)

# At the trunk's own rate a short run cannot open the gates of orders 2 and 3: of planted transitions it finds 2 % and
# less (docs/bench/planted-2026-11-16.md). 30 was chosen there, on made-up lists, not on any score of a study.
QUICK = 30.0
QUICK_CELLS = (
    _plain("rank-2-quick", loss__order=2, optim__heads_rate=QUICK),
    _plain("rank-3-quick", optim__heads_rate=QUICK),
    _full("full-quick", optim__heads_rate=QUICK),
)

HEAD_CELLS = (
    _full("full-h16", loss__head_dim=16),
    _full("full-h64", loss__head_dim=64),
    _full("full-unstaged", loss__staged=False),
)

COMPONENT_CELLS = (
    _full("full-image-no-gate", distil__branches="image", fusion__gate=False),
    _full("full-no-gate", fusion__gate=False),
    _full("full-no-text", distil__branches="image"),
    # Students learn beside the trunk and never reach the embeddings; they touch it through the limit on the norm of
    # the whole gradient alone.
    Cell("distil-only", "clip", _TEACHER),
)

CONTROL_CELLS = (
    _full("control-no-teacher", distil__cache=None),
    # 112 px: its patches of 16 then give the 7×7 tokens that the real teacher has at 224.
    _full(
        "control-random-teacher",
        distil__teacher="random-vit:0",
        distil__text_teacher="random-text:0",
        distil__teacher_size=112,
    ),
    _plain("control-large-trunk", model__trunk="drc-tiny-large"),
    Cell("control-trunk-distil", "rank", {"loss.order": 3} | _TEACHER | {"distil.into": "trunk"}),
    Cell(LONGER_CLIP, "clip", _LONGER),
)

# The others with as many epochs as the longer CLIP: does what a short run shows hold when all are trained further?
LONGER_CELLS = (
    Cell("rankclip-longer", "rankclip", _LONGER),
    Cell("rank-3-longer", "rank", {"loss.order": 3} | _LONGER),
    Cell("full-longer", "dinorankclip", _LONGER),
)

CRITERION_CELLS = tuple(
    _full(f"full-{criterion}", distil__criterion=criterion) for criterion in ("mse", "cosine", "rkd", "crd")
)

# Convolutional students made for the base's small images; the cc3m study takes the paper's instead.
STUDENT_CELLS = (
    _full("full-resnet", distil__image_student="resnet-micro"),
    _full("full-mobilenet", distil__image_student="mobilenet-micro"),
)

FUSION_CELLS = tuple(
    _full(f"full-{variant}", fusion__variant=variant)
    for variant in ("concat", "additive", "single-scale", "spp", "spp-cbam")
)

TEACHER_CELLS = (_full("full-teacher-128", distil__teacher_size=128),)
# In the cc3m study instead: the paper's weaker teachers. DINOv1 has no ViT-L.
PAPER_TEACHER_CELLS = (
    _full("full-dinov1", distil__teacher="timm:vit_base_patch16_224.dino"),
    _full("full-dinov2", distil__teacher="timm:vit_large_patch14_dinov2.lvd142m", distil__teacher_size=224),
)

SCALING_CELLS = tuple(
    Cell(f"{name}-n{items}", method, {"reading.train_items": items})
    for name, method in (("clip", "clip"), ("rankclip", "rankclip"), ("full", "dinorankclip"))
    for items in (1000, 2000)
)

CELLS: tuple[Cell, ...] = (
    METHOD_CELLS
    + ORDER_CELLS
    + QUICK_CELLS
    + HEAD_CELLS
    + COMPONENT_CELLS
    + CONTROL_CELLS
    + LONGER_CELLS
    + CRITERION_CELLS
    + STUDENT_CELLS
    + FUSION_CELLS
    + TEACHER_CELLS
    + SCALING_CELLS
)

DECISIVE = ("clip", "rankclip", "rank-3", "full", "rank-3-quick", *(cell.name for cell in CONTROL_CELLS))
# Cells whose models (of seed 0) the figures and the cost tables of a report open.
PICTURED = ("clip", "rankclip", "rank-3", "full", *(cell.name for cell in (*CRITERION_CELLS, *STUDENT_CELLS)))
