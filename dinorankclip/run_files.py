"""Names the files of a run folder and of its log, and reads its settings. Every room uses these names."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from dinorankclip.checked_files import LOG_BYTES, UnfitFile, file_bytes, parsed_json, read_object
from dinorankclip.checksums import CHECKSUM, CRC, check_file, is_as_written, read_sealed
from dinorankclip.formatting import Unit
from dinorankclip.hub import online
from dinorankclip.json_shape import (
    COUNT,
    NONE,
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE,
    both,
    either,
    entries,
    fault,
    kind,
    listed,
    named,
    word,
)
from dinorankclip.stored_settings import settings_shape
from dinorankclip.types import UserError

log = logging.getLogger(__name__)

CONFIG = "config.json"  # the settings
ENVIRONMENT = "environment.json"  # versions, machine, revision
METRICS = "metrics.jsonl"  # the log, one record a line
TENSORBOARD = "tensorboard"  # the same numbers
TRACKED = "trackers.json"  # ids of the run at trackers (train/trackers.py)
BEFORE, BEFORE_ITEMS = "before.json", "before_items.npz"  # scores of the starting weights, as SCORES and ITEMS
SCORES, ITEMS = "scores.json", "scores_items.npz"  # scores, and the contribution of each item
FUSION = "fusion.json"  # gates and angles at the start and at the end
EXAMPLES = "examples.json"  # what a few validation queries find, first and last
PROVENANCE = "provenance.json"  # in exported folders: what is known about the run
ENDED = "ended.json"  # why the run stopped early
REPORT, PICTURES = "report.html", "pictures"
DAMAGED, DAMAGED_OF_ALL = "damaged.tsv", "damaged*.tsv"  # replaced samples, one file for each process

CHECKPOINTS = "checkpoints"  # step-N, and two links:
LAST, BEST = "last", "best"
CHOSEN = "chosen"  # beside them: the final weights of a fine-tuned run, if they are not those of a step
STEP = "step-"
# A checkpoint is a model folder (models/folder.py) with these files beside the model.
TENSORS, NUMBERS = "training.safetensors", "training.json"

EDITED = f'who changed the file on purpose removes its entry "{CHECKSUM}"'

# The settings of every run have these entries, also of old versions.
_REQUIRED = {"method": str, "data": str, "reading": dict, "loss": dict, "optim": dict, "budget": dict}
_SETTINGS = entries({
    "loss": entries({}, required=("order",)),
    "optim": entries({}, required=("lr", "weight_decay", "warmup_steps")),
    "budget": entries({}, required=("batch", "epochs")),
    "model": entries({}, required=("trunk",)),
}, required=("seed", "preset"))  # fmt: skip
ENVIRONMENT_SHAPE = entries({
    "python": TEXT,
    "packages": OBJECT,
    "gpus": listed(TEXT),
    "revision": either(TEXT, NONE),
    "command": listed(TEXT),
    "device": TEXT,
    "precision": TEXT,
})  # fmt: skip
_STEP = either(COUNT, NONE)
_QUANTILES = ("mean", "5 %", "median", "95 %", "max")
_INTERVAL = kind("low and high together", lambda score: ("low" in score) == ("high" in score))
_SCORE = entries(
    {
        **dict.fromkeys(("value", "low", "high", "chance", "n", "level"), NUMBER),
        "unit": word(*get_args(Unit)),
        "version": either(COUNT, NONE),
    },
    required=("value",),
)
SCORE_SHAPE = both(_SCORE, _INTERVAL)
_GAIN_NUMBERS, _GAIN_WORDS = ("before", "after", "low", "high", "n"), ("of", "part", "score", "verdict")
_GAIN = entries(
    dict.fromkeys(_GAIN_NUMBERS, NUMBER) | dict.fromkeys(_GAIN_WORDS, TEXT), required=_GAIN_NUMBERS + _GAIN_WORDS
)
_SCORES = entries({
    "step": _STEP,
    "scores": named(NUMBER),
    "before": OBJECT,
    "held_out": named(TEXT),
    "gains": listed(_GAIN),
    "chosen": entries({"checkpoint": TEXT, "alpha": NUMBER}),
    "fidelity": named(NUMBER),
    "sets_model": entries({"name": TEXT, "identity": TEXT, "step": _STEP}),
    "sets": named(entries({"images": COUNT, "fingerprint": either(TEXT, NONE), "scores": named(SCORE_SHAPE)},
                          required=("scores",))),
    "set_errors": named(TEXT),
})  # fmt: skip
_SPREAD_OF_ITEMS = entries(dict.fromkeys(_QUANTILES, NUMBER), required=_QUANTILES)
_BRANCHES = named(
    entries(
        {**dict.fromkeys(("angle", "bound", "gate"), _SPREAD_OF_ITEMS), "share at ratio >= 1": NUMBER},
        required=("angle", "bound", "gate", "share at ratio >= 1"),
    )
)
BUILT_IN = "scenes"  # a name of data that are made where they are missing
_FUSION = entries({"start": _BRANCHES, "end": _BRANCHES})
_NUMBERS = entries({
    "step": COUNT, "best": NUMBER, "best_step": WHOLE, "data": TEXT, "processes": COUNT, "core_seconds": NUMBER,
}, required=("step",))  # fmt: skip
_LINE, _ALL_NUMBERS = entries({"step": COUNT}, required=("step",)), named(NUMBER)


def is_run(folder: Path) -> bool:
    """Return whether training made this folder. Other programs write a config.json, too; ours is recognised by the
    files beside it, which also works if it is damaged, or by its entries, if a run was refused at its start."""
    if not (folder / CONFIG).is_file():
        return False
    if any((folder / name).exists() for name in (ENVIRONMENT, METRICS, CHECKPOINTS)):
        return True
    try:
        return not _missing(read_object(folder / CONFIG))
    except UserError:
        return False


def run_of(model: str | Path) -> Path | None:
    """Return the run that a model folder is, or belongs to (RUN/checkpoints/last); None for other models."""
    path = Path(model)
    folders = (path, *path.absolute().parents[:2]) if path.is_dir() else ()
    return next((folder for folder in folders if is_run(folder)), None)


def runs_behind(model: str | Path) -> tuple[list[Path], bool]:
    """Return the run of a model, the run that this one started from, and so on; and whether the last of them began from
    random weights, so that the data of these runs are all that the model was trained on."""
    runs: list[Path] = []
    run = run_of(model)
    while run is not None and run not in runs:
        runs.append(run)
        settings = read_settings(run)
        start = next((s for s in (settings.get("init"), settings["model"].get("weights")) if s is not None), None)
        if start is None or start.endswith(":random"):
            return runs, True
        run = run_of(_found_from(run, start, settings))
    return runs, False


def data_of(run: Path) -> str:
    """Return the data that a run was trained on, as they are found from here."""
    settings = read_settings(run)
    where = str(settings["data"])
    return where if where == BUILT_IN else _found_from(run, where, settings)


def _found_from(run: Path, where: str, settings: dict[str, Any]) -> str:
    """Return a path of a run's settings. A relative path that leads nowhere from here is taken from the folder in which
    the run was begun, as far as the run still lies at its own relative path below that folder."""
    own = Path(str(settings.get("run") or ""))
    if os.path.exists(where) or not own.parts or own.is_absolute():
        return where
    begun_in = Path(*run.absolute().parts[: -len(own.parts)])
    return str(begun_in / where) if begun_in / own == run.absolute() and (begun_in / where).exists() else where


def taught_by(model: str | None, own: str | None = None) -> Path | None:
    """Return the run whose data hold all that a model was trained on, besides `own`; None if there is no such run. A
    model that was fine-tuned on other pairs than `own` learnt from two sets of data at least."""
    runs, whole = runs_behind(model) if model is not None else ([], False)
    if not whole or any(own is None or not _same_place(own, data_of(run)) for run in runs[:-1]):
        return None
    return runs[-1]


def _same_place(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def data_at_hand(model: str | None, own: str | None = None) -> bool:
    """Return whether the data that taught a model can be read again without asking a network, and are others than
    `own`."""
    run = taught_by(model, own)
    if run is None:
        return False
    where = data_of(run)
    if where.startswith("pipe:") or "://" in where or (own is not None and _same_place(own, where)):
        return False
    first = re.sub(r"\{[^}]*\}", "*", where.partition("::")[0])  # of several lists of shards
    return where == BUILT_IN or os.path.exists(where) or bool(glob.glob(first))


def read_settings(run: Path) -> dict[str, Any]:
    """Return the stored settings of a run; raise `UserError` if the file is damaged or holds something else."""
    settings = read_sealed(run / CONFIG, advice=EDITED)
    if missing := _missing(settings):
        raise UserError(f"{run / CONFIG} holds no settings of a run: {', '.join(missing)} should be in it")
    if text := fault(settings, both(settings_shape(), _SETTINGS)):
        raise UnfitFile(f"{run / CONFIG} is damaged: {text}")
    return settings


def stored_scores(folder: Path) -> dict[str, Any]:
    """Return the contents of scores.json, as evaluate/scores_file.py describes it; empty if there is no such file."""
    return read_sealed(folder / SCORES, _SCORES) if (folder / SCORES).is_file() else {}


def read_environment(run: Path) -> dict[str, Any]:
    """Return the contents of environment.json; empty if there is no such file."""
    return read_sealed(run / ENVIRONMENT, ENVIRONMENT_SHAPE) if (run / ENVIRONMENT).is_file() else {}


def read_fusion(run: Path) -> dict[str, Any]:
    """Return the contents of fusion.json, {"start": {BRANCH: numbers}, "end": …}; empty if there is no such file."""
    return read_sealed(run / FUSION, _FUSION) if (run / FUSION).is_file() else {}


def read_numbers(checkpoint: Path) -> dict[str, Any]:
    """Return the numbers beside a checkpoint's tensors (training.json): its step, its data; empty if there are none."""
    if not (checkpoint / NUMBERS).is_file():
        return {}
    check_file(checkpoint / NUMBERS)
    return read_object(checkpoint / NUMBERS, _NUMBERS)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log; empty without a log. Damaged lines are left out, with a warning: also a last
    line that a kill cut short, since a damaged file looks the same."""
    path = run / METRICS
    lines: list[dict[str, Any] | None] = []
    sealed = False  # lines of version 0.1 have no CRC; those after the first line with one do
    content = file_bytes(path, LOG_BYTES) if path.exists() else b""
    for text in content.removesuffix(b"\n").split(b"\n") if content else ():
        lines.append(_log_line(text, sealed))
        sealed = sealed or f'"{CRC}"'.encode() in text
    if None in lines:
        log.warning("%s: %d lines are cut or damaged, and left out", path, lines.count(None))
    elif path.exists() and not content and (run / CHECKPOINTS).is_dir():
        log.warning("%s is empty, although the run has checkpoints: it may have lost its lines", path)
    return [line for line in lines if line is not None]


def _log_line(text: bytes, sealed: bool) -> dict[str, Any] | None:
    """Return the numbers of a line by name; None if it is damaged, or has no CRC where it is `sealed`."""
    try:
        line = parsed_json(text)
    except ValueError:
        return None
    if fault(line, _LINE) or ((sealed or CRC in line) and (CRC not in line or text.count(b'":') != len(line))):
        return None  # no CRC where there must be one, or a name twice: two lines that have become one
    fits = is_as_written(line) and not fault(line, _ALL_NUMBERS)
    return line if fits else None


def refuse_command(where: str, run: Path) -> None:
    """Refuse to read data of a stored run that is a command, or that lies on another machine unless the user allows the
    network: a run may come from somebody else."""
    if where.startswith("pipe:"):
        raise UserError(
            f"{run / CONFIG} names a command as data (pipe:), and commands of a stored run are never executed: name "
            "the data yourself, or store it first (dinorankclip data pack)"
        )
    if "://" in where and not online():
        raise UserError(
            f"{run / CONFIG} names data on another machine, which is not asked for a stored run: name the data "
            "yourself, or allow it with dinorankclip --online"
        )


def _missing(settings: dict[str, Any]) -> list[str]:
    return [name for name, kind in _REQUIRED.items() if not isinstance(settings.get(name), kind)]


CORE_SECONDS = "core-seconds"  # log key: seconds of all cores that the steps have taken, without scoring and saving
CHANCE = "contrastive_chance"  # log key of InfoNCE of equal logits, where it is not ln B

# The log tells which orders of the ranking loss had an effect (D13): losses/telemetry.py measures the relative spread
# of the corrections of an order. An order whose spread ends below this limit is inert.
INERT_SPREAD = 1e-3
MODALITIES = ("image", "text")
_SPREAD = re.compile(r"spread(\d+)_(?:image|text)")


def spread_name(order: int, modality: str) -> str:
    """Return the log key of an order's spread, for lists that rank items of this modality."""
    return f"spread{order}_{modality}"


def gate_name(order: int, modality: str) -> str:
    """Return the log key of an order's gate λ_r."""
    return f"gate{order}_{modality}"


def logged_orders(names: Iterable[str]) -> list[int]:
    """Return the orders whose spread is among these log keys."""
    return sorted({int(match[1]) for name in names if (match := _SPREAD.fullmatch(name))})


def is_inert(spread: float) -> bool:
    """Return whether an order with this final spread does nothing; give the larger spread of both modalities."""
    return spread < INERT_SPREAD


def last_spreads(run: Path) -> dict[int, float]:
    """Return each order's last logged spread, the larger of both modalities'; empty without a log."""
    last = {name: value for line in read_metrics(run) for name, value in line.items() if _SPREAD.fullmatch(name)}
    return {r: max(last.get(spread_name(r, modality), 0.0) for modality in MODALITIES) for r in logged_orders(last)}


def inert_orders(run: Path) -> list[int]:
    return [order for order, spread in last_spreads(run).items() if is_inert(spread)]


def inert_words(orders: list[int]) -> str:
    """Return words such as `orders 4 and 5 inert`; empty if no order is inert."""
    if not orders:
        return ""
    return f"order{'s' if len(orders) > 1 else ''} {' and '.join(map(str, orders))} inert"
