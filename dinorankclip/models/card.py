"""Collects the provenance of a model and writes the card (README.md) of an export.

`provenance` gathers what a run left behind. A model can be used without it: missing files are left out, and none of
them raises an error. Paths are cut to their last name, so that an export tells nothing about the machine that made it.
`card` writes only what provenance knows, and calls the rest unknown.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dinorankclip import __version__, run_files
from dinorankclip.formatting import RECALLS, bare, held_out, images_scored, written
from dinorankclip.json_shape import COUNT, NONE, NUMBER, TEXT, both, either, entries, fault, listed, named
from dinorankclip.methods import words_of_stored
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.folder import CONFIG
from dinorankclip.models.joint import fusion_start_words, parameters_by_part
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.models.towers import ImageTower, TextTower
from dinorankclip.models.trunk import trunk_config, trunk_name, without_start
from dinorankclip.models.trunk_gate import TRUNK
from dinorankclip.stored_settings import settings_shape
from dinorankclip.teachers.cache_format import MANIFEST, read_plan_notes
from dinorankclip.types import UserError

RECORD = run_files.PROVENANCE  # so that an export of an export has it, too
FEW_SCORED = 50  # below this many images a rate may be 14 points off by chance alone
_SETTINGS = entries({
    "budget": entries({}, required=("batch", "epochs")),
    "optim": entries({}, required=("lr", "weight_decay")),
    "loss": entries({}, required=("order",)),
}, required=("method", "seed", "budget", "optim", "loss"))  # fmt: skip
_RECORD = {
    "name": TEXT,
    "dinorankclip": TEXT,
    "data_note": TEXT,
    "step": either(COUNT, NONE),
    "data_fingerprint": either(TEXT, NONE),
    "inert_orders": listed(COUNT),
    "alpha": NUMBER,
    "settings": both(settings_shape(), _SETTINGS),
    "teachers": listed(entries({"side": TEXT, "name": TEXT, "licence": TEXT, "note": TEXT}, required=("side", "name"))),
    "images": named(COUNT),
    "environment": run_files.ENVIRONMENT_SHAPE,
    "scores": either(entries({"step": either(COUNT, NONE), "values": named(NUMBER)}), NONE),
    "set_scores": either(entries({"sets": named(named(run_files.SCORE_SHAPE))}, required=("sets",)), NONE),
}
Text = TypeVar("Text", str, None)
_PATHS = ("data", "init")  # settings that may be paths
_PATHS_INSIDE = (("model", "weights"), ("distil", "cache"), ("distil", "teacher"), ("distil", "text_teacher"))
_DROPPED = ("run", "record")  # settings that did not touch the model
_SHOWN = ("value", "low", "high", "unit")  # entries of a score that the card shows
_MACHINE = ("python", "packages", "system", "gpus", "processes", "revision")  # entries of environment.json


def provenance(folder: Path | None, name: str, data_note: str = "") -> dict[str, Any]:
    """Return all that is known about the model in `folder` (None: an open_clip model), typed by the user as `name`."""
    known: dict[str, Any] = {"name": _last_name(name), "dinorankclip": __version__}
    if folder is not None:
        known |= _read_record(folder / RECORD) or _of_run(folder)
    if data_note:
        known["data_note"] = data_note
    return known


def with_own_trunk(settings: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Return the settings of a run; a run that began with another model (`init`) gets that model's trunk."""
    trunk = _read(checkpoint / CONFIG).get("trunk")
    if not settings.get("init") or not trunk or fault(trunk, TRUNK):
        return settings
    name = trunk_name(trunk)
    usual = name and without_start(trunk_config(name)) == without_start(trunk)
    size = None if usual else trunk["vision_cfg"].get("image_size")
    own = {"trunk": name or "without a name (see model.json)", "image_size": size}
    return settings | {"model": settings["model"] | own}


def _of_run(checkpoint: Path) -> dict[str, Any]:
    """Return the provenance of RUN/checkpoints/step-N; empty for a model folder that is no checkpoint."""
    run = checkpoint.parent.parent
    state = _or_nothing(run_files.read_numbers, checkpoint)
    if not state:
        return {}
    settings = with_own_trunk(_or_nothing(run_files.read_settings, run), checkpoint)
    environment = _or_nothing(run_files.read_environment, run)
    scores = _or_nothing(run_files.stored_scores, run)
    known: dict[str, Any] = {"step": state.get("step"), "data_fingerprint": state.get("data")}
    if inert := run_files.inert_orders(run):
        known["inert_orders"] = inert
    if "alpha" in scores.get("chosen", {}):
        known["alpha"] = scores["chosen"]["alpha"]
    if settings:
        known |= {"settings": _without_paths(settings), "teachers": _teachers(settings), "images": _images(settings)}
    if environment:
        known["environment"] = {name: environment[name] for name in _MACHINE if name in environment}
    if scores.get("scores"):
        known["scores"] = {"step": scores.get("step"), "values": scores["scores"]}
    if scores.get("sets"):
        sets: dict[str, dict[str, Any]] = {}
        for name, scored in scores["sets"].items():
            taken = ((metric, score) for metric, score in scored.get("scores", {}).items() if "value" in score)
            sets[name] = {metric: {key: score[key] for key in _SHOWN if key in score} for metric, score in taken}
        known["set_scores"] = {"identity": scores.get("sets_model", {}).get("identity"), "sets": sets}
    return known


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in copy.deepcopy(settings).items() if name not in _DROPPED}
    for name in _PATHS:
        settings[name] = _last_name(settings.get(name))
    for group, name in _PATHS_INSIDE:
        if isinstance(settings.get(group), dict):
            settings[group][name] = _last_name(settings[group].get(name))
    return settings


def _teachers(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Return name, licence and note of each teacher from the cache, or the names as typed if the cache is gone."""
    distil = settings.get("distil", {})
    if not distil.get("cache"):
        return []
    cache = Path(distil["cache"])
    plan = _or_nothing(read_plan_notes, cache)
    licences = _or_nothing(_read_manifest, cache).get("licences", {})
    both = distil.get("branches") == "image+text"
    if not plan:
        typed = [("image", distil.get("teacher"))] + ([("text", distil.get("text_teacher"))] if both else [])
        return [{"side": side, "name": _last_name(name)} for side, name in typed if name]
    plans = [("image", plan)] + ([("text", plan["text"])] if both and plan.get("text") else [])
    return [
        {
            "side": side,
            "name": _last_name(str(about.get("teacher"))),
            "licence": licences.get(side, ""),
            "note": about.get("note", ""),
        }
        for side, about in plans
    ]


def _images(settings: dict[str, Any]) -> dict[str, int]:
    """Return the number of images of each part of the data, where a teacher cache has counted them."""
    cache = settings.get("distil", {}).get("cache")
    plan = _or_nothing(read_plan_notes, Path(cache)) if cache else {}
    return {part: about["images"] for part, about in plan.get("data", {}).items() if "images" in about}


def _last_name(text: Text) -> Text:
    """Cut `/home/me/photos.csv` to `photos.csv`, `timm:N:/home/me/file` to `timm:N:file`. Commands may hold secrets."""
    if text is not None and text.startswith("pipe:"):
        return "pipe: shards"
    if text is not None and "::" in text:
        return "::".join(_last_name(part) for part in text.split("::"))
    if text is None or "/" not in text:
        return text
    head, colon, tail = text.rpartition(":")
    tail = tail.partition("?")[0]  # a signed link
    return f"{head}{colon}{Path(tail.rstrip('/')).name or tail}"


def _or_nothing(read: Callable[[Path], dict[str, Any]], place: Path) -> dict[str, Any]:
    """Return what a reader returns; empty if its file is missing or damaged."""
    try:
        return read(place)
    except (OSError, UserError):
        return {}


def _read_manifest(cache: Path) -> dict[str, Any]:
    return run_files.read_object(cache / MANIFEST, entries({"licences": named(TEXT)}))


def _read(path: Path) -> dict[str, Any]:
    return _or_nothing(run_files.read_object, path)


def _read_record(path: Path) -> dict[str, Any]:
    """Return a stored provenance without entries that are damaged."""
    stored = _read(path)
    return {name: value for name, value in stored.items() if name not in _RECORD or not fault(value, _RECORD[name])}


PIPELINE = "zero-shot-image-classification"
_TAGS = ("clip", "image-text-retrieval", "dinorankclip")
# Short names of licences that the hub accepts; other terms are "other" with a name.
_LICENCES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigcode-openrail-m afl-3.0 artistic-2.0
bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa
unlicense zlib pddl unknown other
"""
HUB_LICENCES = frozenset(_LICENCES.split())
_USE = """\
## Intended use
Search and ranking of images by text and of texts by image, zero-shot classification and features for small
classifiers, on data that resembles what the model was trained on.

## Limits
- Scores hold for the data above. On other images measure first: `dinorankclip score`.
- What the captions of the training data leave out or get wrong, the model does not know or repeats, people included:
  not for decisions about persons, and not for identifying them.
- Captions of about a sentence, in the language of the training data; words after the last position are cut off."""

_NO_LICENCE = """\
## Licence
**Not chosen yet.** Whoever publishes this folder fills this in (`license:` at the top, and here), after a look at the
terms of the training data and of the teachers above."""


@dataclass(frozen=True)
class CardHead:
    """Names the library that opens a folder, and what a hub should know besides."""

    library: str = "dinorankclip"
    tags: tuple[str, ...] = ()


def _head(head: CardHead, licence: str) -> str:
    """Return the metadata of a card, which hubs read: YAML between two lines of dashes."""
    if not licence:
        terms = "license: unknown  # to be filled in by whoever publishes the model"
    elif (known := licence.lower().replace(" ", "-")) in HUB_LICENCES:
        terms = f"license: {known}"
    else:  # terms that hubs do not know by a short name
        terms = f"license: other\nlicense_name: {json.dumps(licence)}"
    tags = "".join(f"\n- {tag}" for tag in (*_TAGS, *head.tags))
    return f"---\nlibrary_name: {head.library}\npipeline_tag: {PIPELINE}\n{terms}\ntags:{tags}\n---"


def card(
    model: LoadedModel,
    known: dict[str, Any],
    loading: str,
    warning: str = "",
    licence: str = "",
    head: CardHead = CardHead(),  # noqa: B008 (frozen)
) -> str:
    """Return the README.md of an export. `loading` is a few lines of Python that run where the folder and `photo.jpg`
    lie; `warning` names what the format omits or needs."""
    tables = [table for table in (_training_scores(known), _set_scores(known, model.identity)) if table]
    sections = [
        _head(head, licence),
        f"# {known['name']}",
        f"**{warning}**" if warning else "",
        _description(model),
        f"## Loading\n```python\n{loading}\n```",
        f"## Training\n{_training(known)}",
        f"## Data\n{_data(known)}",
        _teacher_lines(known.get("teachers", []), known.get("settings", {}).get("distil", {}).get("into", "student")),
        "## Scores\n" + ("\n\n".join(tables) or "None were recorded."),
        _USE,
        f"## Licence\n{licence}" if licence else _NO_LICENCE,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _description(model: LoadedModel) -> str:
    parts = model.parts
    counts = parameters_by_part(parts)
    rows = "\n".join(f"| {part} | {count / 1e6:.2f} M |" for part, count in counts.items())
    extra = ""
    if parts.students.image or parts.students.text:
        extra += f" Students: {parts.students.image or 'none'} (image), {parts.students.text or 'none'} (text)."
    if parts.image_fusion is not None or parts.text_fusion is not None:
        gate = "" if parts.fusion.gate else ", without gate"
        extra += f" Fusion: {parts.fusion.variant}{gate}{fusion_start_words(parts.fusion)}."
    pieces = "CLIP's byte pairs"
    if isinstance(parts, AlignedModel):
        pieces = "pieces of words"
        extra += f" Frozen towers: {_tower(parts.image_tower)} (image) and {_tower(parts.text_tower)} (text)."
    elif parts.vocabulary is not None:
        pieces = "pieces of a vocabulary of its own"
    return (
        f"A joint embedding of images and captions in {model.dim} dimensions, made with DinoRankCLIP. Images: "
        f"{model.image_spec.size}×{model.image_spec.size} pixels, {model.image_spec.interpolation}, "
        f"{'both sides resized' if model.image_spec.resize == 'squash' else 'the centre cut out'}. Captions: {pieces}, "
        f"at most {model.text_spec.context_length}.{extra}\n\n"
        f"| part | parameters |\n| --- | --- |\n{rows}\n| all | {sum(counts.values()) / 1e6:.2f} M |\n\n"
        f"Identity of design and weights: `{model.identity}`"
    )


def _tower(tower: ImageTower | TextTower) -> str:
    """Return name, licence and note of a tower."""
    card = tower.teacher.card
    return f"{card.name}, licence {card.licence}{f', {card.note}' if card.note else ''}"


def _training(known: dict[str, Any]) -> str:
    settings = known.get("settings")
    if not settings:
        return "Unknown: the model does not come from a run of this program, or its run folder is gone."
    budget, optim = settings["budget"], settings["optim"]
    method = words_of_stored(settings)
    # An order that is named but has no effect is no cause of a score.
    if inert := run_files.inert_words(known.get("inert_orders", [])):
        method += f"; {inert}: the corrections ended below a thousandth of the spread they correct"
    aligned = settings.get("recipe") == "aligned"
    base = "heads on frozen towers" if aligned else f"trunk {settings['model']['trunk']}"
    start = settings.get("init") or settings.get("model", {}).get("weights")
    lines = [
        f"- method: `{settings['method']}`, {method}",
        f"- started from: {start or 'random weights'}; {base}, seed {settings['seed']}",
        f"- {known['step']} steps of {budget['batch']} pairs, {known['step'] * budget['batch']:,} pairs seen "
        f"({budget['epochs']} epochs planned)",
        f"- AdamW, learning rate {optim['lr']:g}, weight decay {optim['weight_decay']:g}",
    ]
    if optim.get("freeze"):
        lines.append(f"- not trained: {', '.join(optim['freeze'])}")
    if rank := settings.get("tune", {}).get("lora_rank"):
        lines.append(f"- low-rank corrections of rank {rank} (LoRA), merged into the matrices")
    if (alpha := known.get("alpha")) is not None:
        lines.append(f"- blended: {100 * alpha:.0f} % of the way from the starting weights to the trained weights")
    environment = known.get("environment", {})
    if environment:
        packages = environment.get("packages", {})
        gpus = ", ".join(environment.get("gpus") or ["CPU"])
        lines.append(f"- on {gpus}, torch {packages.get('torch')}, revision {environment.get('revision')}")
    return "\n".join([*lines, "", "All settings are in `provenance.json`."])


def _data(known: dict[str, Any]) -> str:
    lines = []
    settings = known.get("settings", {})
    if settings:
        lines.append(f"- name: `{settings.get('data')}`")
    if known.get("images"):
        lines.append("- images: " + ", ".join(f"{part} {count:,}" for part, count in known["images"].items()))
    if known.get("data_fingerprint"):
        lines.append(f"- fingerprint: `{known['data_fingerprint']}`")
    lines.append(f"- note: {known['data_note']}" if known.get("data_note") else "- terms of use: not recorded")
    return "\n".join(lines)


def _teacher_lines(teachers: list[dict[str, str]], into: str) -> str:
    if not teachers:
        return ""
    learner = "The trunk" if into == "trunk" else "Students"
    lines = [
        "## Teachers",
        f"{learner} learnt from their frozen features, so results also rest on what the teachers were trained with.",
        "The teachers themselves are not in this folder.",
        "",
    ]
    for teacher in teachers:
        licence = teacher.get("licence") or "not recorded, see its source"
        note = f"; {teacher['note']}" if teacher.get("note") else ""
        lines.append(f"- {teacher['side']}: `{teacher['name']}`, licence: {licence}{note}")
    return "\n".join(lines)


def _training_scores(known: dict[str, Any]) -> str:
    """Return a table of the retrieval scores taken at the end of training; "" if there are none."""
    scores = known.get("scores") or {}
    values = scores.get("values", {})
    rows = [
        f"| {part}, {words} | " + " | ".join(bare(cell, "share") for cell in cells if cell is not None) + " |"
        for part, ways in held_out(values).items()
        for words, cells in ways.items()
        if None not in cells
    ]
    if not rows:
        return ""
    head = ["| held-out retrieval, % | " + " | ".join(RECALLS) + " |", "| --- |" + " --- |" * len(RECALLS)]
    counts = [
        f"{part} {count:,}{' (so few say little)' if count < FEW_SCORED else ''}"
        for part, count in images_scored(values).items()
    ]
    closing = "Measured on the held-out parts of the training data's own source, by this program"
    closing += f"; images: {', '.join(counts)}." if counts else "."
    if scores.get("step") != known.get("step"):
        closing = f"**Of step {scores.get('step')}; the weights here are of step {known.get('step')}.** {closing}"
    return "\n".join([*head, *rows, "", closing])


def _set_scores(known: dict[str, Any], identity: str) -> str:
    """Return a table of the scores that `dinorankclip score` took of these weights; "" if there are none."""
    scored = known.get("set_scores") or {}
    if scored.get("identity") != identity:
        return ""
    rows = []
    for name, scores in scored["sets"].items():
        for metric, score in scores.items():
            unit = score.get("unit", "share")
            interval = f" ({bare(score['low'], unit)} to {bare(score['high'], unit)})" if "low" in score else ""
            rows.append(f"| {name} | {metric} | {written(score['value'], unit)}{interval} |")
    return "\n".join(["| set | score | value |", "| --- | --- | --- |", *rows]) if rows else ""
