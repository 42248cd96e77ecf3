"""Validates settings before any file is opened, for every run of a command line, a study or a benchmark.

Nothing here imports torch, so a mistake is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable

from dinorankclip.config import UNGATED, TrainSettings, as_dict, with_changes
from dinorankclip.finetuning import NONE
from dinorankclip.methods import HIGHEST_ORDER, traits_of
from dinorankclip.presets import default_settings
from dinorankclip.recipes import check_recipe
from dinorankclip.stored_settings import flatten
from dinorankclip.types import UserError

INFINITE = float("inf")
# The range of each number; None is always valid, NaN never, since it fails every comparison.
RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("optim.lr", lambda x: 0 < x < INFINITE, "a number above 0"),
    (
        "optim.muon_rate optim.heads_rate optim.fusion_rate optim.gates_rate optim.temperature_rate",
        lambda x: 0 < x < INFINITE,
        "above 0; 1 is the trunk's rate",
    ),
    ("optim.layer_decay", lambda x: 0 < x <= 1, "above 0, at most 1"),
    ("tune.floor tune.head_epochs", lambda x: 0 <= x < INFINITE, "0 or more"),
    ("tune.lora_rank tune.patience", lambda x: x >= 1, "at least 1"),
    ("tune.lora_alpha tune.head_rate", lambda x: 0 < x < INFINITE, "above 0"),
    ("tune.replay_share", lambda x: 0 < x < 1, "a share between 0 and 1"),
    ("optim.clip_norm", lambda x: x > 0, "above 0, or nothing moves; None switches it off"),
    ("reading.patience", lambda x: x > 0, "above 0"),
    ("optim.betas optim.muon_momentum reading.val_fraction", lambda x: 0 <= x < 1, "from 0 to below 1"),
    ("optim.eps optim.heads_eps", lambda x: 0 < x < 1, "between 0 and 1"),
    ("reading.crop_scale", lambda x: 0 < x <= 1, "shares, low then high"),
    ("reading.max_damaged", lambda x: 0 <= x <= 1, "a share, 0 to 1"),
    ("optim.weight_decay distil.weight distil.text_ratio", lambda x: 0 <= x < INFINITE, "0 or more"),
    ("anchor.weight anchor.text_weight anchor.image_weight", lambda x: 0 <= x < INFINITE, "0 or more"),
    ("loss.decorrelation", lambda x: 0 <= x < INFINITE, "0 or more"),
    ("loss.in_weight loss.cross_weight loss.direction_weights", lambda x: 0 <= x < INFINITE, "0 or more"),
    ("loss.transition_scale", lambda x: 0 < x < INFINITE, "above 0"),
    ("loss.gate_l1", lambda x: 0 <= x < INFINITE, "0 or more, a number for each order from 2 on"),
    ("loss.gate_start fusion.gate_bias", lambda x: abs(x) < INFINITE, "a finite number"),
    ("loss.rankclip_eps", lambda x: 0 <= x < 1, "from 0 to below 1; RankCLIP's public code has 1e-10"),
    ("optim.warmup_steps reading.workers seed", lambda x: x >= 0, "0 or more"),
    ("budget.batch budget.epochs", lambda x: x >= 0, "at least 1"),
    ("budget.minutes budget.core_seconds", lambda x: 0 < x < INFINITE, "above 0"),
    ("budget.steps", lambda x: x >= 1, "at least 1"),
    (
        "budget.chunk budget.threads aligned.hidden aligned.dim aligned.token_width",
        lambda x: x >= 1,
        "at least 1",
    ),
    ("aligned.text_places", lambda x: x >= 1, "at least 1"),
    ("aligned.head_weight", lambda x: 0 < x < INFINITE, "above 0"),
    ("aligned.dropout", lambda x: 0 <= x < 1, "a share, 0 to below 1"),
    ("record.log_every record.save_every record.score_every", lambda x: x >= 1, "at least 1"),
    ("record.keep", lambda x: x >= 1, "at least 1: a run resumes from its newest checkpoint"),
    ("model.image_size loss.head_dim distil.compare_grid", lambda x: x >= 1, "at least 1"),
    ("loss.list_length", lambda x: x >= 1, "at least 1; leave it out for whole lists"),
    # Distances are relative to their mean: with two items alone, every student is right.
    ("distil.relational_items", lambda x: x >= 3, "3 or more"),
)


def validated(settings: TrainSettings) -> TrainSettings:
    """Return the settings as a run uses them; raise `UserError` if they contradict each other or are out of range.

    A setting that follows from another is set here. Validating twice changes nothing more.
    """
    if settings.distil.cache == "none":  # the user types "none"; settings hold None
        settings = with_changes(settings, {"distil.cache": None})
    if settings.tune.replay == NONE:
        settings = with_changes(settings, {"tune.replay": None})
    if settings.recipe is not None:
        check_recipe(settings.recipe, settings.method)
    _check_order(settings)
    _check_numbers(settings)
    settings = _without_idle_teacher(settings)
    if settings.recipe == "aligned":
        _check_aligned(settings)
    else:
        for name, value in (("batch", settings.budget.batch), ("epochs", settings.budget.epochs)):
            if value < 1:  # 0 means "by the number of pairs", which --recipe aligned alone can choose
                raise UserError(f"--budget.{name} {value}: it must be at least 1")
    if settings.budget.minutes is not None and settings.budget.core_seconds is not None:
        raise UserError("--budget.minutes and --budget.core-seconds: a run has one budget; leave out one of the two")
    _check_tuning(settings)
    _check_lists(settings)
    _check_forms_of_lists(settings)
    if settings.model.frozen_image_tower:
        _check_frozen_tower(settings)
        # Every image is embedded once, in the view of evaluation.
        settings = with_changes(settings, {"reading.crop_scale": (1.0, 1.0), "reading.flip": False})
    _check_second_captions(settings)
    _check_learning(settings)
    _check_taught_trunk(settings)
    _check_anchor(settings)
    _check_gate(settings)
    distil = settings.distil
    compares_grams = distil.cache is not None and distil.criterion == "gram+rel"
    if compares_grams and distil.gram_reduction == "sum" and settings.record.gradient_report_every == 0:
        # The sum is L² times the mean: the log must show how much of the gradient it takes.
        settings = with_changes(settings, {"record.gradient_report_every": settings.record.log_every})
    return settings


def _check_aligned(settings: TrainSettings) -> None:
    """Refuse settings that frozen towers have no use for."""
    unused = {
        "--distil.cache": settings.distil.cache is not None,
        "--model.weights": settings.model.weights is not None,
        "--model.frozen-image-tower": settings.model.frozen_image_tower,
        "--method distil": not traits_of(settings.method).contrasts,
    }
    if named := [flag for flag, given in unused.items() if given]:
        raise UserError(f"--recipe aligned trains heads on frozen towers (--aligned.*): leave out {', '.join(named)}")
    if settings.reading.second_captions is not None or settings.reading.second_caption_column is not None:
        raise UserError("--recipe aligned takes second captions from the data itself: leave out --reading.second-*")
    if settings.reading.crop_scale != (1.0, 1.0) or settings.reading.flip:
        raise UserError("--recipe aligned looks at every whole image once: leave out --reading.crop-scale and flip")


def _check_tuning(settings: TrainSettings) -> None:
    """Refuse parts of fine-tuning that have no trained weights, or that do not work beside another part."""
    tune = settings.tune
    asked = {
        "--tune.blend": tune.blend,
        "--tune.lora-rank": tune.lora_rank is not None,
        "--tune.head-epochs": tune.head_epochs > 0,
        "--tune.patience": tune.patience is not None,
        "--tune.replay": tune.replay is not None,
    }
    named = [flag for flag, given in asked.items() if given]
    if named and settings.recipe == "aligned":
        raise UserError(f"--recipe aligned trains heads on frozen towers: leave out {', '.join(named)}")
    needing = [flag for flag in ("--tune.blend", "--tune.lora-rank") if asked[flag]]
    if needing and settings.init is None and settings.model.weights is None:
        raise UserError(f"{needing[0]} changes trained weights: name them with --init")
    if tune.lora_rank is not None and (settings.fusion.variant != "none" or settings.distil.cache is not None):
        raise UserError(
            "--tune.lora-rank corrects trained matrices and freezes all else, and students or a fusion that are added "
            "must learn: leave out one of the two"
        )
    if tune.replay is not None:
        others = {
            "--distil.cache": settings.distil.cache is not None,
            "--model.frozen-image-tower": settings.model.frozen_image_tower,
            "--method alip": traits_of(settings.method).second_caption,
            "--loss.two-captions": settings.loss.two_captions,
        }
        if names := [flag for flag, given in others.items() if given]:
            raise UserError(f"--tune.replay brings pairs of which {names[0]} knows nothing: leave out one of the two")
    if tune.head_epochs and settings.model.frozen_image_tower:
        raise UserError("--tune.head-epochs trains both projections, and --model.frozen-image-tower keeps one")


def _check_order(settings: TrainSettings) -> None:
    order, fixed = settings.loss.order, traits_of(settings.method).fixed_order
    if not 0 <= order <= HIGHEST_ORDER:
        raise UserError(f"--loss.order {order}: orders 0 to {HIGHEST_ORDER} exist")
    if fixed is not None and order != fixed:
        raise UserError(f"--method {settings.method} is order {fixed}; for --loss.order {order} use --method rank")


def _check_numbers(settings: TrainSettings) -> None:
    values = flatten(as_dict(settings))
    for names, valid, expected in RANGES:
        for name in names.split():
            numbers = values[name] if isinstance(values[name], list) else [values[name]]
            if values[name] is not None and not all(map(valid, numbers)):
                flag, typed = name.replace("_", "-"), " ".join(f"{number:g}" for number in numbers)
                raise UserError(f"--{flag} {typed}: it must be {expected}")
    low, high = settings.reading.crop_scale
    if low > high:
        raise UserError(f"--reading.crop-scale {low:g} {high:g}: the lower share comes first")


def _check_lists(settings: TrainSettings) -> None:
    """Refuse options of the ranking loss that do not fit its order, lists or utilities."""
    loss = settings.loss
    if loss.rankclip_eps and (loss.order != 1 or loss.list_length is not None):
        raise UserError(
            f"--loss.rankclip-eps {loss.rankclip_eps:g} is of RankCLIP's public loss, order 1 over whole lists: use "
            "--method rankclip without --loss.list-length, or leave it out"
        )
    if loss.detached_scale and loss.utility == "cosine":
        raise UserError("--loss.detached-scale: cosine utilities have no scale; leave one of the two out")
    for name in ("gate_start", "gate_l1"):
        values, wanted = getattr(loss, name), max(0, loss.order - 1)
        if values is not None and len(values) != wanted:
            flag, orders = f"--loss.{name.replace('_', '-')}", f"one for each order from 2 to {loss.order}"
            expected = f"give {wanted}, {orders}" if wanted else f"order {loss.order} has no gates: leave it out"
            raise UserError(f"{flag} has {len(values)} numbers; {expected}")


def _check_forms_of_lists(settings: TrainSettings) -> None:
    """Refuse a form of lists or transitions that the order does not have, and a teacher that is not there."""
    loss, ranks = settings.loss, traits_of(settings.method).ranks
    if loss.transitions != "learnt" and not (ranks and loss.order == 2):
        raise UserError(f"--loss.transitions {loss.transitions} has order 2 alone: add --method rank --loss.order 2")
    if loss.transition_scale != 1 and loss.transitions == "learnt":
        raise UserError("--loss.transition-scale: learnt heads find their own scale; add --loss.transitions teacher")
    if loss.centred and not (ranks and loss.order > 1):
        raise UserError(
            "--loss.centred: there are no transitions below order 2; use --method rank with a higher --loss.order"
        )
    if loss.reference != "paired" and not (ranks and loss.order > 0):
        raise UserError(f"--loss.reference {loss.reference}: --method {settings.method} ranks nothing; leave it out")
    asked = [f"--loss.{name} teacher" for name in ("reference", "transitions") if getattr(loss, name) == "teacher"]
    if asked and settings.recipe != "aligned" and settings.distil.cache is None:
        raise UserError(f"{asked[0]} needs frozen features: use --recipe aligned, or --distil.cache auto")


def _without_idle_teacher(settings: TrainSettings) -> TrainSettings:
    """Return settings without what a part that is switched off would have needed: the teacher's order of lists where
    --recipe taught ranks nothing, and a cache for a trunk that no term teaches."""
    distil = settings.distil
    if settings.recipe == "taught" and settings.loss.order == 0:
        settings = with_changes(settings, {"loss.reference": "paired"})
    others = settings.anchor.weight > 0 or "teacher" in (settings.loss.reference, settings.loss.transitions)
    if distil.into == "trunk" and distil.weight == 0 and not others:
        settings = with_changes(settings, {"distil.cache": None})
    return settings


def _check_learning(settings: TrainSettings) -> None:
    """Refuse parts that nothing would teach: students without a teacher, fusion when the trunk does not learn."""
    method, distil, fused = settings.method, settings.distil, settings.fusion.variant != "none"
    only_students = not traits_of(method).contrasts
    if only_students and distil.cache is None:
        raise UserError(
            f"--method {method} learns from a teacher alone: give --distil.cache (dinorankclip teacher cache)"
        )
    if only_students and fused:
        raise UserError(f"--method {method} trains students alone, so fusion cannot learn: leave out --fusion.*")
    if fused and settings.fusion.source == "trunk" and distil.cache is not None and distil.into != "trunk":
        raise UserError(
            "--fusion.source trunk has no use for students, which the teacher would teach: add --distil.into trunk"
        )
    if distil.shuffled and distil.branches != "image":
        raise UserError("--distil.shuffled exchanges features of images alone: add --distil.branches image")


def _check_taught_trunk(settings: TrainSettings) -> None:
    """Refuse `distil.into trunk` without a teacher or beside students, and its settings where students learn."""
    method, distil, fused = settings.method, settings.distil, settings.fusion.variant != "none"
    if distil.into != "trunk":
        if distil.tokens != "last":
            raise UserError(f"--distil.tokens {distil.tokens} is of the trunk: add --distil.into trunk")
        return
    into_trunk = "--distil.into trunk teaches the trunk instead of students"
    if distil.cache is None and distil.weight > 0:
        raise UserError(f"{into_trunk}, from a teacher's cache: give --distil.cache auto, or leave it out")
    if fused and settings.fusion.source != "trunk":
        raise UserError(f"{into_trunk}, and fusion needs students: add --fusion.variant none or --fusion.source trunk")
    if fused and distil.weight > 0 and distil.tokens != "penultimate":
        raise UserError("--fusion.source trunk reads the penultimate tokens: add --distil.tokens penultimate")
    if not traits_of(method).contrasts:
        raise UserError(f"{into_trunk}, and --method {method} leaves the trunk alone: use another method")
    defaults = default_settings(settings.preset, method, settings.recipe).distil
    for side in ("image", "text"):
        student = getattr(distil, f"{side}_student")
        if student != getattr(defaults, f"{side}_student"):
            raise UserError(f"{into_trunk}: leave out --distil.{side}-student {student}")


def _check_anchor(settings: TrainSettings) -> None:
    contrasts = traits_of(settings.method).contrasts
    if settings.loss.decorrelation > 0 and not contrasts:
        raise UserError(f"--loss.decorrelation: --method {settings.method} embeds no pairs; leave it out")
    if settings.anchor.weight == 0:
        return
    if settings.recipe == "aligned":
        raise UserError("--anchor.weight: the towers of --recipe aligned are the teacher already; leave it out")
    if settings.distil.cache is None:
        raise UserError("--anchor.weight: the anchor is a teacher's features of images; add --distil.cache auto")
    if not contrasts:
        raise UserError(f"--anchor.weight: --method {settings.method} embeds no pairs; leave it out")


def _check_second_captions(settings: TrainSettings) -> None:
    reading = settings.reading
    given = {"second-captions": reading.second_captions, "second-caption-column": reading.second_caption_column}
    flags = [f"--reading.{flag} {value}" for flag, value in given.items() if value is not None]
    traits, two_captions = traits_of(settings.method), settings.loss.two_captions
    if two_captions and not traits.may_take_two_captions:
        reason = "takes two captions already" if traits.second_caption else "has no contrastive term"
        raise UserError(f"--loss.two-captions: --method {settings.method} {reason}; leave it out")
    if flags and not (traits.second_caption or two_captions):
        raise UserError(
            f"{flags[0]}: --method {settings.method} reads no second captions; add --loss.two-captions, or take "
            "--method alip"
        )
    if len(flags) > 1:
        raise UserError(f"{' and '.join(flags)}: second captions come from one place; leave out one of the two")


def _check_gate(settings: TrainSettings) -> None:
    variant = settings.fusion.variant
    if settings.fusion.gate_bias is not None:
        flag = f"--fusion.gate-bias {settings.fusion.gate_bias:g}"
        if variant == "none":
            raise UserError(f"{flag} needs a fusion, and there is none: name it with --fusion.variant")
        if variant in UNGATED or not settings.fusion.gate:
            raise UserError(f"{flag}: this fusion ({variant}) has no gate; leave it out")
    if settings.fusion.gate:
        return
    if variant in UNGATED:
        raise UserError(f"--fusion.variant {variant} has no gate to switch off: leave out --fusion.no-gate")
    if variant == "none":
        raise UserError("--fusion.no-gate needs a fusion, and there is none: name it with --fusion.variant")


def _check_frozen_tower(settings: TrainSettings) -> None:
    if settings.init is None and settings.model.weights is None:
        raise UserError(
            "--model.frozen-image-tower keeps an image tower that has learned something: name it with --init "
            "(a run or model folder) or --model.weights (an open_clip file)"
        )
    if settings.distil.cache is not None or settings.fusion.variant != "none":
        raise UserError(
            "--model.frozen-image-tower: an image student and its fusion could not learn, and a teacher needs pixels. "
            "Leave out --distil.cache and --fusion.* (a fused --init stays fused); instead of --method dinorankclip "
            "use --method rank"
        )
