"""Which settings make sense together. What nobody can mean is refused before anything is opened; where one setting
decides another, it is set.

Every run passes here, whoever asked for it: a command line, a study, a bench. No torch in here: a refusal is quick.
"""

from __future__ import annotations

from dataclasses import replace

from dinorankclip.config import UNGATED, TrainSettings
from dinorankclip.methods import HIGHEST_ORDER, traits_of
from dinorankclip.presets import preset
from dinorankclip.types import UserError

NO_CACHE = "none"  # as it is typed; the settings say None


def validated(settings: TrainSettings) -> TrainSettings:
    """The settings as a run takes them; `UserError` if they make no sense. Settling twice changes nothing more."""
    if settings.distil.cache == NO_CACHE:
        settings = replace(settings, distil=replace(settings.distil, cache=None))
    _demand_order(settings)
    _demand_counts(settings)
    _demand_ranges(settings)
    if settings.model.frozen_image_tower:
        _demand_frozen_side(settings)
        # Every image is shown once, as evaluation shows it.
        settings = replace(settings, reading=replace(settings.reading, crop_scale=(1.0, 1.0), flip=False))
    _demand_something_to_learn(settings)
    _demand_gate(settings)
    distil = settings.distil
    compares_grams = distil.cache is not None and distil.criterion == "gram+rel"
    if compares_grams and distil.gram_reduction == "sum" and settings.record.gradient_report_every == 0:
        # The sum is L² times the mean: how much of the gradient it takes must be seen.
        record = replace(settings.record, gradient_report_every=settings.record.log_every)
        settings = replace(settings, record=record)
    return settings


def _demand_order(settings: TrainSettings) -> None:
    order, fixed = settings.loss.order, traits_of(settings.method).fixed_order
    if not 0 <= order <= HIGHEST_ORDER:
        raise UserError(f"--loss.order {order}: orders 0 to {HIGHEST_ORDER} exist")
    if fixed is not None and order != fixed:
        raise UserError(f"--method {settings.method} is order {fixed}; for --loss.order {order} use --method rank")


def _demand_counts(settings: TrainSettings) -> None:
    if settings.loss.list_length is not None and settings.loss.list_length < 1:
        raise UserError("--loss.list-length must be at least 1; leave it out for whole lists")
    if settings.record.keep < 1:
        raise UserError("--record.keep must be at least 1: a run resumes from its newest checkpoint")
    if settings.optim.clip_norm is not None and settings.optim.clip_norm <= 0:
        raise UserError(f"--optim.clip-norm {settings.optim.clip_norm:g} would let nothing move; None switches it off")
    counts = {
        "--budget.batch": settings.budget.batch,
        "--budget.epochs": settings.budget.epochs,
        "--budget.chunk": settings.budget.chunk,
        "--budget.threads": settings.budget.threads,
        "--record.log-every": settings.record.log_every,
        "--record.save-every": settings.record.save_every,
    }
    for flag, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"{flag} {count}: at least 1")


def _demand_ranges(settings: TrainSettings) -> None:
    """Numbers that no run can mean; NaN fails every comparison, and so is refused everywhere."""
    optim, reading, size = settings.optim, settings.reading, settings.model.image_size
    distil, grid, width = settings.distil, settings.distil.compare_grid, settings.loss.head_dim
    low, high = reading.crop_scale
    finite = float("inf")
    for flag, value, holds, wanted in (
        ("--optim.lr", optim.lr, 0 < optim.lr < finite, "a number above 0"),
        ("--optim.heads-rate", optim.heads_rate, 0 < optim.heads_rate < finite, "above 0; 1 is the trunk's rate"),
        ("--optim.betas", optim.betas, all(0 <= beta < 1 for beta in optim.betas), "from 0 to below 1"),
        ("--optim.eps", optim.eps, 0 < optim.eps < 1, "between 0 and 1"),
        ("--optim.heads-eps", optim.heads_eps, optim.heads_eps is None or 0 < optim.heads_eps < 1, "between 0 and 1"),
        ("--optim.weight-decay", optim.weight_decay, 0 <= optim.weight_decay < finite, "0 or more"),
        ("--optim.warmup-steps", optim.warmup_steps, (optim.warmup_steps or 0) >= 0, "0 or more"),
        ("--reading.crop-scale", reading.crop_scale, 0 < low <= high <= 1, "shares, low then high"),
        ("--reading.val-fraction", reading.val_fraction, 0 <= reading.val_fraction < 1, "from 0 to below 1"),
        ("--reading.max-damaged", reading.max_damaged, 0 <= reading.max_damaged <= 1, "a share, 0 to 1"),
        ("--reading.workers", reading.workers, reading.workers >= 0, "0 or more"),
        ("--reading.patience", reading.patience, reading.patience > 0, "above 0"),
        ("--model.image-size", size, size is None or size > 0, "1 pixel or more"),
        ("--loss.head-dim", width, width >= 1, "1 or more"),
        ("--distil.weight", distil.weight, 0 <= distil.weight < finite, "0 or more"),
        ("--distil.text-ratio", distil.text_ratio, 0 <= distil.text_ratio < finite, "0 or more"),
        # Distances are relative to their mean: between two items alone every student is right.
        ("--distil.relational-items", distil.relational_items, distil.relational_items >= 3, "3 or more"),
        ("--distil.compare-grid", grid, grid is None or grid >= 1, "1 or more"),
        ("--seed", settings.seed, settings.seed >= 0, "0 or more"),
    ):
        if not holds:
            told = " ".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:g}"
            raise UserError(f"{flag} {told}: it must be {wanted}")


def _demand_something_to_learn(settings: TrainSettings) -> None:
    """Refuse what nothing would teach: students without a teacher, fusion in distil-only runs, the trunk without a
    teacher or beside fusion."""
    method, cache, fused = settings.method, settings.distil.cache, settings.fusion.variant != "none"
    alone = not traits_of(method).contrasts
    if alone and cache is None:
        raise UserError(
            f"--method {method} learns from a teacher alone: give --distil.cache (dinorankclip teacher cache)"
        )
    if alone and fused:
        raise UserError(
            f"--method {method} trains students alone, fusion would stay as it begins: leave out --fusion.*"
        )
    if settings.distil.into != "trunk":
        return
    asked = "--distil.into trunk teaches the trunk in the students' stead"
    if cache is None:
        raise UserError(f"{asked}, from a teacher's cache: give --distil.cache auto, or leave it out")
    if fused:
        raise UserError(f"{asked}, and fusion is of students: add --fusion.variant none")
    if alone:
        raise UserError(f"{asked}, and --method {method} leaves the trunk alone: use another method")
    usual = preset(settings.preset).distil
    for flag, student, unasked in (
        ("--distil.image-student", settings.distil.image_student, usual.image_student),
        ("--distil.text-student", settings.distil.text_student, usual.text_student),
    ):
        if student != unasked:
            raise UserError(f"{asked}: leave out {flag} {student}")


def _demand_gate(settings: TrainSettings) -> None:
    variant = settings.fusion.variant
    if settings.fusion.gate:
        return
    if variant in UNGATED:
        raise UserError(f"--fusion.variant {variant} has no gate to switch off: leave out --fusion.no-gate")
    if variant == "none":
        raise UserError("--fusion.no-gate is of a fusion, and there is none: name it with --fusion.variant")


def _demand_frozen_side(settings: TrainSettings) -> None:
    if settings.init is None and settings.model.weights is None:
        raise UserError(
            "--model.frozen-image-tower keeps an image side that has learned something: name it with --init "
            "(a run or model folder) or --model.weights (an open_clip file)"
        )
    if settings.distil.cache is not None or settings.fusion.variant != "none":
        raise UserError(
            "--model.frozen-image-tower: an image student and its fusion could not learn, and a teacher needs pixels. "
            "Leave out --distil.cache and --fusion.* (a fused --init stays fused); instead of --method dinorankclip "
            "use --method rank"
        )
