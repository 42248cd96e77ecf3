"""Chooses the defaults of `--preset finetune` by the weights that a run starts from, and warns of settings that damage
trained weights.

Trained weights of ViT-B take a rate of about 1e-5. Narrower trunks take more: the rate grows as the width falls, that
is with the root of the number of parameters. Nothing here imports torch, so `--help` is fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.methods import traits_of

PRESET = "finetune"
RATE, ITS_PARAMETERS = 1e-5, 151e6  # of ViT-B/32 with its text tower
LEAST_RATE, LARGEST_RATE = 3e-6, 1e-4
DECAY, LAYER_DECAY, WARMUP = 0.01, 0.8, 20
DANGEROUS_RATE = 2.0  # a rate from this multiple of the recommended one on
DANGEROUS_DECAY = 0.1
LORA_RATE = 30.0  # corrections start at zero and take a larger rate than the matrices (docs/study/finetune)
# Replayed pairs of the start's data allow a larger rate, which learns more (docs/study/finetune).
START, REPLAY_RATE, REPLAY_SHARE = "start", 8.0, 0.5
WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
BYTES = 4  # of a parameter in a file; files in half precision look half as large, which the root forgives
RANDOM = ":random"
NONE = "none"  # what a user types for no replay, and for no general set
FOREIGN = ("open_clip:", "transformers:", "hub:")


@dataclass(frozen=True)
class Start:
    """Describes the trained weights that a run starts from; `parameters` is about their number, None if unknown."""

    name: str
    parameters: float | None

    @property
    def rate(self) -> float:
        """Return the rate that suits the weights, rounded to one digit."""
        wide = RATE * math.sqrt(ITS_PARAMETERS / (self.parameters or ITS_PARAMETERS))
        return float(f"{min(LARGEST_RATE, max(LEAST_RATE, wide)):.0e}")

    @property
    def words(self) -> str:
        size = "published weights" if self.parameters is None else f"about {self.parameters / 1e6:.3g} M parameters"
        return f"{self.name}, {size}"


def start_of(init: str | None, weights: str | None) -> Start | None:
    """Return the trained weights behind `--init` or `--model.weights`; None for random weights."""
    name = init or weights
    if name is None or name.endswith(RANDOM):
        return None
    kind = next((prefix for prefix in FOREIGN if name.startswith(prefix)), "")
    place = Path(name.removeprefix(kind).rpartition(":")[2] if kind == "open_clip:" else name.removeprefix(kind))
    return Start(name, _bytes_of(place.expanduser()) / BYTES or None)


def _bytes_of(place: Path) -> int:
    """Return the size of a weights file, or of the weights in a model folder or a run; 0 if there are none."""
    if place.is_file():
        return place.stat().st_size if place.suffix in WEIGHTS_SUFFIXES else 0
    for folder in (place, place / "checkpoints" / "last", place / "last"):
        if files := [file for file in folder.glob("*.safetensors") if file.name != "training.safetensors"]:
            return sum(file.stat().st_size for file in files)
    return 0


def chosen(start: Start, lora: bool, replay: str | None) -> dict[str, tuple[Any, str]]:
    """Return the defaults for trained weights by dotted name, each with its reason."""
    rate, why = start.rate, f"{RATE:g} suits ViT-B, and more suits narrower trunks"
    if lora:
        rate, why = LORA_RATE * rate, f"{LORA_RATE:g} times that of the matrices: corrections start at zero"
    replayed: dict[str, tuple[Any, str]] = {}
    if replay is not None:
        replayed["tune.replay_share"] = (REPLAY_SHARE, "half of a batch are own pairs, half are replayed")
    if replay == START:  # other pairs than those of the start may know less than it does
        rate, why = REPLAY_RATE * rate, f"{why}; {REPLAY_RATE:g} times that beside the start's own pairs"
        replayed["tune.replay"] = (START, "pairs that the start was trained on keep what it knows")
    return replayed | {
        "optim.lr": (float(f"{rate:.0e}"), why),
        "optim.weight_decay": (DECAY, "decay pulls trained weights towards zero"),
        "optim.layer_decay": (LAYER_DECAY, "lower blocks know what all images share, and move less"),
        "optim.warmup_steps": (WARMUP, "a share of a short run would be a few steps"),
        "optim.freeze": (("*logit_scale",), "the trained temperature stays"),
        "tune.blend": (True, "the mixture with the start keeps what it knew, if there is a general set"),
    }


def for_start(
    settings: TrainSettings, init: str | None, weights: str | None, lora: bool = False, replay: str | None = None
) -> TrainSettings:
    """Return the defaults of a preset for the weights that a run starts from; other presets stay as they are."""
    start = start_of(init, weights)
    if settings.preset != PRESET or settings.recipe is not None or start is None:
        return settings
    found = {name: value for name, (value, _) in chosen(start, lora, replay).items()}
    if traits_of(settings.method).biased:  # a sigmoid loss may begin with a temperature of its own
        del found["optim.freeze"]
    return with_changes(settings, found)


def reasons(settings: TrainSettings) -> Iterator[str]:
    """Yield a line for each default that the start decided, then a warning for each setting that damages it."""
    start = start_of(settings.init, settings.model.weights)
    if start is None or settings.recipe is not None:
        return
    lora = settings.tune.lora_rank is not None
    own = settings.preset == PRESET
    if own:
        yield f"starts from trained weights ({start.words}):"
    for name, (value, why) in chosen(start, lora, settings.tune.replay).items():
        group, _, last = name.partition(".")
        if own and getattr(getattr(settings, group), last) == value:
            yield f"  {name} = {' '.join(value) if isinstance(value, tuple) else value}: {why}"
    yield from warnings(settings, start)


def warnings(settings: TrainSettings, start: Start) -> Iterator[str]:
    """Yield a line for each setting that is known to damage trained weights."""
    optim, lora = settings.optim, settings.tune.lora_rank is not None
    usual = chosen(start, lora, settings.tune.replay)["optim.lr"][0]
    muon = optim.name == "muon" and not lora
    rate, what = optim.lr, "--optim.lr"
    if muon:
        rate, what = optim.lr * optim.muon_rate, "--optim.lr times --optim.muon-rate"
    if rate >= DANGEROUS_RATE * usual:
        yield (
            f"warning: {what} {rate:g} is {rate / usual:.2g} times the rate that suits these weights: it damages what "
            f"they know. Use {'--optim.name adamw ' if muon else ''}--optim.lr {usual:g}"
        )
    if optim.weight_decay >= DANGEROUS_DECAY and not lora:
        yield (
            f"warning: --optim.weight-decay {optim.weight_decay:g} is for training from scratch. Use "
            f"--optim.weight-decay {DECAY:g}"
        )
