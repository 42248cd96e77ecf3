"""What a run has spent, read from its folder, and whether two runs may be compared: same data, compute and start.

Only small JSON and the head of one file are read, no weights.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.dino.layout import PLAN
from dinorankclip.joint.acting_orders import inert_orders, inert_words
from dinorankclip.joint.provenance import with_own_trunk
from dinorankclip.methods import traits_of_stored
from dinorankclip.run_files import CHECKPOINTS, ENVIRONMENT, LAST, NUMBERS, SCORES, TENSORS, read_object, read_settings
from dinorankclip.settings_difference import difference

# What makes a method a method; everything else must agree for a difference to be the method's.
OF_THE_METHOD = ("preset", "method", "loss.", "distil.", "fusion.")
# Gradients are the same however a batch is cut and wherever it is computed.
WITHOUT_EFFECT = ("budget.chunk", "budget.device", "record.")


@dataclass(frozen=True)
class Spending:
    """`heads` are trained parameters that only the loss uses; they are not part of the model. None: not known."""

    settings: dict[str, Any]
    pairs_seen: int | None
    model_parameters: int | None
    heads: int | None
    data: str | None  # fingerprint of the training part
    teacher: str | None  # of the cached features, with what a table must say beside its results
    device: str | None = None  # cpu or cuda
    precision: str | None = None  # what was computed in, where the settings may say auto
    inert: tuple[int, ...] = ()  # orders that did not act

    @property
    def method(self) -> str:
        """As a reader would name it: `rank, order 3`, with what was added to it."""
        settings, traits = self.settings, traits_of_stored(self.settings["method"])
        words = [traits.title or settings["method"]]
        if traits.fixed_order is None:
            inert = inert_words(list(self.inert))
            words.append(f"order {settings['loss']['order']}" + (f" ({inert})" if inert else ""))
        fusion = settings.get("fusion", {}).get("variant", "none")
        if fusion != "none":
            words.append(f"fusion {fusion}")
        if settings.get("distil", {}).get("cache") is not None:
            where = " into the trunk" if settings["distil"].get("into") == "trunk" else ""
            words.append(f"distilled{where} by {settings['distil']['criterion']}")
        return ", ".join(words)


def spending(run: Path) -> Spending:
    """What `run` has spent up to its last checkpoint or, if it was scored at its end, up to there."""
    last = run / CHECKPOINTS / LAST
    settings = with_own_trunk(read_settings(run), last)
    numbers = read_object(last / NUMBERS) if (last / NUMBERS).is_file() else {}
    scores = read_object(run / SCORES) if (run / SCORES).is_file() else {}
    steps = scores.get("step", numbers.get("step"))
    around = read_object(run / ENVIRONMENT) if (run / ENVIRONMENT).is_file() else {}
    trained = _trained(last / TENSORS) if (last / TENSORS).is_file() else None
    return Spending(
        settings,
        None if steps is None else steps * settings["budget"]["batch"],
        None if trained is None else trained["model"],
        None if trained is None else trained["objective"],
        # A teacher cache adds its own identity behind a plus; the pairs are the same.
        numbers["data"].split("+")[0] if "data" in numbers else None,
        _teacher(settings.get("distil", {}).get("cache")),
        around.get("device"),
        around.get("precision"),
        tuple(inert_orders(run)),
    )


def unmatched(a: Spending, b: Spending) -> list[str]:
    """Lines `name: A → B` for all that differs besides the method; empty if a difference is the method's."""
    ignored = OF_THE_METHOD + WITHOUT_EFFECT + (("data",) if a.data and b.data else ())
    lines = [
        line
        for line in difference(a.settings, b.settings)
        if not any(_covers(pattern, line.split(":")[0]) for pattern in ignored)
    ]
    if a.data and b.data and a.data != b.data:
        lines.append(f"training data: {a.settings['data']} ({a.data[:8]}) → {b.settings['data']} ({b.data[:8]})")
    if a.precision and b.precision and a.precision != b.precision:
        lines.append(f"precision: {a.precision} → {b.precision}")
    if a.pairs_seen != b.pairs_seen:
        lines.append(f"pairs seen: {a.pairs_seen} → {b.pairs_seen}")
    return lines


def _teacher(cache: str | None) -> str | None:
    """Who the cache says its teachers were; its path if the folder is gone."""
    if cache is None:
        return None
    if not (Path(cache) / PLAN).is_file():
        return f"of {cache}"
    plan = read_object(Path(cache) / PLAN)
    told = [plan, *([plan["text"]] if plan.get("text") else [])]
    return ", ".join(one["teacher"] + (f" ({one['note']})" if one.get("note") else "") for one in told)


def _covers(pattern: str, name: str) -> bool:
    return name == pattern or (pattern.endswith(".") and name.startswith(pattern))


def _trained(path: Path) -> dict[str, int] | None:
    """Numbers that AdamW has moments for, by part; a frozen parameter, or an order not begun, has none. None where the
    optimiser was not kept."""
    found = {"model": 0, "objective": 0}
    with open(path, "rb") as file:  # safetensors: length of the head (8 bytes), then the head as JSON
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    for name, entry in head.items():
        if name.startswith("optimizer/") and name.endswith("/exp_avg"):
            found[name.removeprefix("optimizer/").split(".")[0]] += math.prod(entry["shape"])
    return found if any(found.values()) else None
