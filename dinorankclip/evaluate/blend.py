"""Chooses the weights with which a fine-tuned run ends: those of the best validation, mixed with the start.

    w(α) = (1 - α)·start + α·end                                     (WiSE-FT, Wortsman et al. 2022)

A mixture is allowed if the 95 % interval of its loss on the general set, paired by image, ends within the floor: the
validation images of that set are a sample, and a mean of them within the floor is above it on others half of the time.
Mixtures are tried in an order that was fixed before, so the level needs no correction for their number.
The largest allowed α of a tenth is found by halving, since the loss grows with α. From there α falls while validation
gets better: own scores rise and then fall with α, so the first that is no better ends the search. What was chosen lies
in checkpoints/chosen, and `last` names it; checkpoints of training stay as they are, so that a finished run can be
finished again.
"""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.checksums import seal_folder
from dinorankclip.evaluate.during_training import evaluators
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.gains import Items, general_set, items_of, mean_recall, parts_of, set_scores
from dinorankclip.evaluate.intervals import compare
from dinorankclip.io import whole_folder
from dinorankclip.methods import traits_of
from dinorankclip.models.folder import WEIGHTS, AnyModel, save_model
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.models.weights_file import read_weights
from dinorankclip.run_files import BEST, CHECKPOINTS, CHOSEN, LAST, NUMBERS
from dinorankclip.train.assemble import RunParts, starting_model
from dinorankclip.train.checkpoints import link, newest
from dinorankclip.train.run_folder import say
from dinorankclip.types import UserError

STEPS = 10  # α is a multiple of 1/STEPS
RULE_OF_THREE = 3  # where none of n images is lost, the 95 % interval of the share of others ends at 3/n


def choose_end(parts: RunParts, folder: Path) -> dict[str, Any]:
    """Give the model of a finished run its final weights; return what was chosen, empty if training simply ended."""
    tune = parts.settings.tune
    best = (folder / CHECKPOINTS / BEST).resolve()
    last = newest(folder / CHECKPOINTS)
    early = tune.patience is not None and best.is_dir() and last is not None and best != last.resolve()
    if not (early or tune.blend) or not traits_of(parts.settings.method).contrasts:
        return {}
    about: dict[str, Any] = {}
    distributed.leader_first(lambda: about.update(_choose(parts, folder, best if early else None)))
    return about


def _choose(parts: RunParts, folder: Path, best: Path | None) -> dict[str, Any]:
    model = starting_model(parts.settings).to(parts.placement.device)
    end = read_weights(best / WEIGHTS) if best else {n: t.cpu() for n, t in parts.state.model.own_state().items()}
    about: dict[str, Any] = {"checkpoint": best.name} if best else {}
    if best:
        say(f"validation was best at {best.name}: the run ends with it")
    if parts.settings.tune.blend:
        if (found := _Blend(parts, model, end).alpha()) is not None:
            about["alpha"] = found
        elif best is None:
            return {}  # without a general set there is no floor
    _set(
        model, {name: tensor.clone().cpu() for name, tensor in model.own_state().items()}, end, about.get("alpha", 1.0)
    )
    parts.state.model = model.eval()
    place = folder / CHECKPOINTS / CHOSEN
    with whole_folder(place, replace=True) as aside:
        save_model(model, aside)
        shutil.copyfile((best or newest(folder / CHECKPOINTS) or place) / NUMBERS, aside / NUMBERS)
        seal_folder(aside)
    link(folder / CHECKPOINTS / LAST, place)
    return about


@torch.no_grad()
def _set(model: AnyModel, start: dict[str, Tensor], end: dict[str, Tensor], alpha: float) -> None:
    mixed = {
        n: torch.lerp(t, end[n], alpha) if t.is_floating_point() and alpha < 1 else end[n] for n, t in start.items()
    }
    model.load_state_dict(mixed, strict=False)


class _Blend:
    """Scores mixtures of start and end."""

    def __init__(self, parts: RunParts, model: AnyModel, end: dict[str, Tensor]) -> None:
        self.parts, self.end = parts, end
        self.start = {name: tensor.clone().cpu() for name, tensor in model.own_state().items()}
        self.model = copy.deepcopy(model).eval()
        self.general = general_set(parts.settings)
        self.watch = evaluators(parts, "val")[0]
        self.watch.examples = None

    def alpha(self) -> float | None:
        """Return the best α under the floor; None without a general set."""
        if self.general is None:
            return None
        floor = self.parts.settings.tune.floor
        start = self._general(0)
        low, high = 0, STEPS + 1  # the general set allows `low`, and forbids `high`
        at = STEPS
        while high - low > 1:
            if self._lost(start, at) <= floor:
                low = at
            else:
                high = at
            at = (low + high) // 2
        chosen = low
        score = self._own(low) if low else 0.0
        while chosen > 0 and (lower := self._own(chosen - 1)) > score:
            chosen, score = chosen - 1, lower
        if floor * start.images < RULE_OF_THREE:
            say(
                f"{self.general.name} has {start.images:,} images that choose the blend. Where none of so few is lost, "
                f"others may lose {100 * min(1, RULE_OF_THREE / start.images):.2g} points: name a general set of at "
                f"least {math.ceil(RULE_OF_THREE / floor):,}, --tune.general DATA, or a larger --tune.floor"
            )
        kept = (
            f"within {100 * floor:g} points of {self.measure} on {self.general.name}, by the interval over "
            f"{start.images:,} images"
        )
        if low == 0:
            say(f"blend: not even 10 % of the way stays {kept}: the run ends with the weights that it started from")
        else:
            whole = score if chosen == STEPS else self._own(STEPS)
            say(
                f"blend: {100 * chosen / STEPS:.0f} % of the way from the start to the trained weights. It has a mean "
                f"recall of {100 * score:.2f} % on your validation part, which chose it, and the trained weights have "
                f"{100 * whole:.2f} %; the loss stays {kept}, up to {100 * low / STEPS:.0f} %"
            )
        return chosen / STEPS

    def _lost(self, start: Items, tenths: int) -> float:
        """Return the most that a mixture may have lost on the general set: the far end of the interval."""
        mixed = self._general(tenths).values
        if mixed.shape != start.values.shape:
            raise UserError(
                f"{self.general.name if self.general else 'the general set'} lost or gained readable images while the "
                "blend was chosen: give the same command again"
            )
        return -compare(start.values, mixed, start.clusters, weights=start.weights).low

    def _general(self, tenths: int) -> Items:
        assert self.general is not None
        _set(self.model, self.start, self.end, tenths / STEPS)
        loaded = LoadedModel(self.model, "blend", self.parts.placement)
        scores = set_scores(loaded, self.general, parts_of(self.general)[0], EmbeddingStore(None))
        self.measure = "accuracy" if "T@1" in scores else "mean recall"
        return items_of(scores)

    def _own(self, tenths: int) -> float:
        _set(self.model, self.start, self.end, tenths / STEPS)
        list(self.watch(self.model))
        return mean_recall({score.name: score for score in self.watch.scores})
