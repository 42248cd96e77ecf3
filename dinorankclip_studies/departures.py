"""Writes docs/paper-departures.md: the paper's table of hyper-parameters beside `--recipe paper` and the presets.

The paper's values and the reasons of departures are data, hyperparameters.toml of the paper. A value is a setting, or a
fact that `FACTS` computes from settings and code, so that the page shows what runs. A value that differs from the
paper's and has no reason is an error, and so is a reason for a value that does not differ.
"""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.io import write_text
from dinorankclip.presets import PRESETS, default_settings
from dinorankclip.stored_settings import flatten
from dinorankclip_studies.papers import Paper

PAGE = "paper-departures.md"
METHOD, RECIPE, AT_SCALE = "dinorankclip", "paper", "cc3m"
SMALL = tuple(name for name in PRESETS if name != AT_SCALE)
SECTIONS = ("table", "text", "open")
KEYS = {"what", "paper", "none", "reason", "small"}


@dataclass(frozen=True)
class Value:
    """Holds one value of the paper: `what` is a setting or a fact. `paper` is None if the paper says nothing."""

    what: str
    paper: Any = None
    none: str = "none"
    reason: str = ""
    small: str = ""

    def ours(self, settings: TrainSettings) -> Any:
        if self.what in FACTS:
            return FACTS[self.what](settings)
        return flatten(as_dict(settings))[self.what]

    def differs(self, settings: TrainSettings) -> bool:
        """Return whether the settings have another value than the paper; never where the paper says nothing."""
        if self.paper is None:
            return False
        ours = self.ours(settings)
        if isinstance(ours, float | int) and isinstance(self.paper, float | int):
            return not math.isclose(ours, self.paper)
        return (list(ours) if isinstance(ours, tuple) else ours) != self.paper

    def written(self, value: Any) -> str:
        if value is None:
            return self.none
        if isinstance(value, list | tuple):
            return ", ".join(self.written(entry) for entry in value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Line:
    """Holds a line of the paper, in its words, and its values."""

    section: str
    group: str
    printed: str = ""
    remark: str = ""
    values: tuple[Value, ...] = ()


def read_lines(paper: Paper) -> list[Line]:
    """Read the paper's lines; raise `ValueError` for unknown keys, settings and sections."""
    path = paper.folder / "hyperparameters.toml"
    known = {*flatten(as_dict(TrainSettings())), *FACTS}
    lines = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["line"]:
        values = entry.pop("value", [])
        wrong = {str(key) for value in values for key in value if key not in KEYS}
        wrong |= {value["what"] for value in values} - known
        wrong |= {entry["section"]} - set(SECTIONS)
        if wrong:
            raise ValueError(f"{path}, {entry['group']}: unknown: {', '.join(sorted(wrong))}")
        lines.append(Line(**entry, values=tuple(Value(**value) for value in values)))
    return lines


def problems(lines: Iterable[Line]) -> list[str]:
    """Return a sentence for each departure without a reason, and each reason without a departure."""
    preset, recipe = default_settings(AT_SCALE, METHOD), default_settings(AT_SCALE, METHOD, RECIPE)
    small = [default_settings(name, METHOD, RECIPE) for name in SMALL]
    found = []
    for line in lines:
        if not line.values and not line.remark:
            found.append(f"{line.group}: a line without values needs a remark")
        for value in line.values:
            departs = value.paper is None or value.differs(recipe) or value.differs(preset)
            reduced = any(map(value.differs, small))
            for differs, reason, where in ((departs, value.reason, AT_SCALE), (reduced, value.small, "small presets")):
                if differs and not reason:
                    found.append(f"{line.group}, {value.what}: differs from the paper ({where}) and has no reason")
                if reason and not differs:
                    found.append(f"{line.group}, {value.what}: has a reason ({where}) but does not differ")
    return found


def page(lines: list[Line]) -> str:
    """Return the page; raise `ValueError` if a departure has no reason."""
    if found := problems(lines):
        raise ValueError("; ".join(found))
    preset, recipe = default_settings(AT_SCALE, METHOD), default_settings(AT_SCALE, METHOD, RECIPE)
    values = [value for line in lines for value in line.values]
    in_table = [value for line in lines if line.section == "table" for value in line.values]
    departing = sum(value.differs(recipe) for value in in_table)
    text = [
        "# The paper's settings and ours",
        "",
        "Written by `dinorankclip study departures --docs docs` from the presets, the recipe and the code; edit "
        "`hyperparameters.toml` of the paper instead. Settings can be given as flags: `optim.lr` is `--optim.lr`.",
        "",
        "```",
        "torchrun --nproc-per-node 8 -m -- dinorankclip train --preset cc3m --recipe paper --run runs/paper",
        "```",
        f"Of {len(in_table)} values in the paper's table, `--recipe paper` with the preset cc3m has "
        f"{len(in_table) - departing}, the preset alone {sum(not value.differs(preset) for value in in_table)}. "
        "Cells that differ from the paper are **bold**. Neither has been run at this scale so far.",
        "",
        "## The table of hyper-parameters",
        *_table((line for line in lines if line.section == "table"), recipe, preset),
        "",
        "## Said in text and equations",
        "The recipe keeps these decisions of the project ([decisions](decisions.md)). Flags reach the paper's letter.",
        "",
        *_table((line for line in lines if line.section == "text"), recipe, preset),
        "",
        "## Not stated by the paper",
        *_table((line for line in lines if line.section == "open"), recipe, preset),
        "",
        "## `--recipe paper` with the small presets",
        "Every other value above holds with any preset. These stay the preset's, or follow from what stays:",
        "",
        "| | the paper | " + " | ".join(SMALL) + " | why |",
        "| --- | --- |" + " --- |" * len(SMALL) + " --- |",
    ]
    small = [default_settings(name, METHOD, RECIPE) for name in SMALL]
    for value in values:
        if any(map(value.differs, small)):
            cells = [_cell(value, settings) for settings in small]
            text.append(f"| {_name(value)} | {value.written(value.paper)} | {' | '.join(cells)} | {value.small} |")
    return "\n".join(text) + "\n"


def _table(lines: Iterable[Line], recipe: TrainSettings, preset: TrainSettings) -> list[str]:
    rows = ["| the paper's line | value | paper | `--recipe paper` | preset cc3m | reason |", "| --- " * 6 + "|"]
    for line in lines:
        words = f"{line.group}: {line.printed}" if line.printed else line.group
        if not line.values:
            rows.append(f"| {words} | – | – | – | – | {line.remark} |")
        for value in line.values:
            paper = "not stated" if value.paper is None else value.written(value.paper)
            ours = f"{_cell(value, recipe)} | {_cell(value, preset)}"
            rows.append(f"| {words} | {_name(value)} | {paper} | {ours} | {value.reason} |")
            words = ""
    return rows


def _name(value: Value) -> str:
    return value.what if value.what in FACTS else f"`{value.what}`"


def _cell(value: Value, settings: TrainSettings) -> str:
    written = value.written(value.ours(settings))
    return f"**{written}**" if value.differs(settings) else written


def write_page(paper: Paper, docs: Path) -> Path:
    docs.mkdir(parents=True, exist_ok=True)
    write_text(docs / PAGE, page(read_lines(paper)))
    return docs / PAGE


# --- facts: values that are no setting, computed by the code that training runs


def _last_rate(settings: TrainSettings) -> float:
    from dinorankclip.train.step import learning_rate

    steps = 1000
    return round(learning_rate(steps, steps, settings.optim.lr, steps // 20), 12)


def _trunk(settings: TrainSettings, tower: str, entry: str) -> Any:
    from dinorankclip.models.trunk import trunk_config

    return trunk_config(settings.model.trunk, settings.model.image_size)[tower][entry]


def _student(settings: TrainSettings, branch: str) -> float:
    from dinorankclip.models.students import count, image_student, text_student

    if branch == "image":
        size = _trunk(settings, "vision_cfg", "image_size")
        return round(count(image_student(settings.distil.image_student, size)) / 1e6, 2)
    length, width = (_trunk(settings, "text_cfg", entry) for entry in ("context_length", "width"))
    return round(count(text_student(settings.distil.text_student, length, width)) / 1e6, 2)


def _ranking(settings: TrainSettings, order: int = 3) -> Any:
    from dinorankclip.losses import RankingLoss

    loss = settings.loss
    start, l1 = (getattr(loss, name) if loss.order == order else None for name in ("gate_start", "gate_l1"))
    return RankingLoss(64, order=order, head_dim=loss.head_dim, gate_start=start, gate_l1=l1)


def _gate_starts(settings: TrainSettings) -> list[float]:
    return [gate.item() for gate in _ranking(settings, 5).transitions["image"].gates.values()]


def _gates(settings: TrainSettings) -> list[float]:
    heads = _ranking(settings).transitions["image"]
    return [round(heads.gate(order).item(), 4) for order in (2, 3)]


def _stages(settings: TrainSettings) -> list[float]:
    from dinorankclip.losses.ranking_schedule import stage_steps
    from dinorankclip.types import Progress

    each, epochs = 10_000, settings.budget.epochs  # steps of an epoch: many, so that no start is rounded
    starts = stage_steps(3, Progress(0, each * epochs, epochs), settings.loss.ramp)
    return [round(starts[order] / each, 2) for order in (2, 3)]


def _xavier_share(settings: TrainSettings) -> float:
    weights = [p for name, p in _ranking(settings).transitions.named_parameters() if p.ndim == 2]
    return round(max(w.abs().max().item() / math.sqrt(6 / sum(w.shape)) for w in weights), 2)


def _scale_at_start(settings: TrainSettings) -> float:
    import open_clip

    return round(math.exp(inspect.signature(open_clip.CLIP).parameters["init_logit_scale"].default), 3)


def _alpha_at_start(settings: TrainSettings) -> float:
    import torch

    from dinorankclip.models.fusion import GATE_STARTS, Gate

    bias = settings.fusion.gate_bias
    gate = Gate(4, GATE_STARTS[settings.fusion.start] if bias is None else bias)
    return round(gate(torch.ones(1, 4), torch.ones(1, 4)).mean().item(), 4)


def _pca(_: TrainSettings) -> int:
    from dinorankclip.teachers.cache_format import REDUCED

    return REDUCED


def _relational(_: TrainSettings) -> list[float]:
    from dinorankclip.losses.distillation import RKD_ANGLE_WEIGHT, RKD_DISTANCE_WEIGHT

    return [RKD_DISTANCE_WEIGHT, RKD_ANGLE_WEIGHT]


def _pyramid(_: TrainSettings) -> list[int]:
    from dinorankclip.models.fusion import PYRAMID

    return list(PYRAMID)


FACTS: Mapping[str, Callable[[TrainSettings], Any]] = {
    "rate after the last step": _last_rate,
    "image side": lambda settings: _trunk(settings, "vision_cfg", "image_size"),
    "random crops": lambda settings: settings.reading.crop_scale[0] < 1,
    "caption length": lambda settings: _trunk(settings, "text_cfg", "context_length"),
    "layers of the text tower": lambda settings: _trunk(settings, "text_cfg", "layers"),
    "directions of PCA": _pca,
    "image student, M parameters": lambda settings: _student(settings, "image"),
    "text student, M parameters": lambda settings: _student(settings, "text"),
    "λ_2 and λ_3 at the start": _gates,
    "s_2 to s_5 at the start": _gate_starts,
    "η_2 and η_3": lambda settings: list(_ranking(settings).gate_l1.values()),
    "gates and heads of": lambda settings: sorted(_ranking(settings).transitions),
    "epochs at which orders 2 and 3 begin": _stages,
    "largest weight of heads, of Xavier's bound": _xavier_share,
    "bins of the pyramid": _pyramid,
    "1/τ at the start": _scale_at_start,
    "weights of distances and angles": _relational,
    "α at the start": _alpha_at_start,
}
