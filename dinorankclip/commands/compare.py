"""`dinorankclip compare A B`: show two scored models side by side, item by item where items were kept; or several."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dinorankclip.commands.shared import check_interval
from dinorankclip.formatting import WAYS, Unit, bare, parameter_count, written
from dinorankclip.run_files import SCORES, is_run
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.evaluate.intervals import Difference
    from dinorankclip.evaluate.scores_file import ComparedScore
    from dinorankclip.train.cost import Spending

PICTURES = (".png", ".svg")
_WAYS = WAYS | {"i2i": "image → image"}


def compare(
    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")],
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")],
    others: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="C …")] = (),
    level: float = 0.95,
    draws: int = 1000,
    matched: bool = False,
    picture: Path | None = None,
) -> None:
    """Compare two scored models on the same items: differences B - A with intervals, and what each run has spent.

    Of three or more runs: one table with the core-seconds of each and the differences to A.

    Examples:
      dinorankclip compare runs/first runs/second
      dinorankclip compare runs/first runs/second runs/third --picture curves.png
      dinorankclip compare runs/first open_clip:ViT-B-32:weights.safetensors --level 0.99

    Both the scores that train took at a run's end and those of `dinorankclip score` are compared.
    Exit status 1 if scores were left out because the two models were scored on different data.

    Args:
        a: A run folder, another model that was scored, or a folder that `score --out` wrote.
        b: The other model, given in the same way.
        others: Further models.
        level: Confidence level of the intervals.
        draws: Draws of the bootstrap.
        matched: Refuse runs that differ in more than the method (data, seed, batch, trunk, schedule, and pairs seen or
            the budget in time).
        picture: Draw the validation score of all runs over core-seconds into this PNG or SVG file.
    """
    from dinorankclip.evaluate.scores_file import compare_scores, only_one, read_scores, step_of

    check_interval(level, draws)
    if picture is not None and picture.suffix not in PICTURES:
        raise UserError(f"--picture {picture}: the name must end with {' or '.join(PICTURES)}")
    if others:
        _compare_several([folder_of(model) for model in (a, b, *others)], level, draws, matched)
        _draw([folder_of(model) for model in (a, b, *others)], picture)
        return
    folders = folder_of(a), folder_of(b)
    scored = read_scores(folders[0]), read_scores(folders[1])
    print(_spending_table(*folders, matched))
    for letter, model in zip("AB", scored):
        now = step_of(model.folder)  # None of models that are no runs, and of runs whose checkpoints were not kept
        if model.sets and model.sets_step is not None and now not in (None, model.sets_step):
            step = model.sets_step
            print(f"note: sets of {letter} were scored at step {step}; the run has gone on since: score again")
    rows, refused = compare_scores(*scored, level, draws)
    if not rows and not refused:
        raise UserError(f"{a} and {b} have no score in common; score both: dinorankclip score MODEL --sets PATH")
    if rows:
        print("\n" + score_table(rows, level))
        print("\n" + _reading_notes(rows, level))
    _draw(list(folders), picture)
    for name in only_one(*scored):
        print(f"only one of the two was scored on {name}")
    for name, why in refused.items():
        print(f"NOT compared: {name}: {why}; score both again on the same set", file=sys.stderr)
    if refused:
        sys.exit(1)


def _compare_several(folders: list[Path], level: float, draws: int, matched: bool) -> None:
    """Print a line for each model: what it spent, its held-out scores, and their differences to the first."""
    from dinorankclip.report.several_runs import several_lines

    if matched:
        raise UserError("--matched compares two runs: name two")
    for line in several_lines(folders, level, draws):
        print(line)


def _draw(folders: list[Path], picture: Path | None) -> None:
    if picture is not None:
        from dinorankclip.report.several_runs import curves_over_time

        drawn = curves_over_time([folder for folder in folders if is_run(folder)])
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(drawn.svg or drawn.png if picture.suffix == ".svg" else drawn.png)
        print(f"\npicture: {picture}")


def folder_of(model: str) -> Path:
    """Return the folder of a model's scores: its own, or where `score` puts those of models that are no runs."""
    from dinorankclip.commands.score import default_out

    elsewhere = default_out(model)
    return elsewhere if not (Path(model) / SCORES).is_file() and (elsewhere / SCORES).is_file() else Path(model)


def score_table(rows: list[ComparedScore], level: float) -> str:
    """Return a line for each score, shares in percent. Columns that no row fills are left out."""
    chances, paired = any(row.chance is not None for row in rows), any(row.difference for row in rows)
    names = [(row.set, _words(row.metric)) for row in rows]
    set_width = max(len("set"), *(len(name) for name, _ in names)) + 2
    metric_width = max(len("shares in %"), *(len(metric) for _, metric in names)) + 2
    head = f"{'set':<{set_width}}{'shares in %':<{metric_width}}" + (f"{'chance':>9}" if chances else "")
    head += f"{'A':>9}{'B':>9}{'B - A':>9}"
    lines = [head + (f"{f'{100 * level:g} % interval':>20}{'n':>9}  B is" if paired else "")]
    previous = None
    for row, (set_name, metric) in zip(rows, names):
        line = f"{set_name if set_name != previous else '':<{set_width}}{metric:<{metric_width}}"
        if chances:
            line += f"{'' if row.chance is None else _number(row.chance, row.unit):>9}"
        numbers = _number(row.a, row.unit), _number(row.b, row.unit), _number(row.b - row.a, row.unit, "+")
        line += "".join(f"{number:>9}" for number in numbers)
        lines.append(line + (_paired_cells(row.difference, row.unit) if row.difference is not None else ""))
        previous = set_name
    return "\n".join(lines)


def _paired_cells(difference: Difference, unit: Unit) -> str:
    span = f"{_number(difference.low, unit, '+')} … {_number(difference.high, unit, '+')}"
    verdict = difference.verdict
    if verdict not in ("higher", "lower") and 0 < difference.detectable < math.inf:
        verdict += f" (it would take {_number(difference.detectable, unit)})"
    return f"{span:>20}{difference.n:>9,}  {verdict}"


def _spending_table(a: Path, b: Path, matched: bool) -> str:
    """Return the names of both models and, of runs, what they spent and whether that was the same."""
    from dinorankclip.train.cost import spending, time_of_both, unmatched

    of_a, of_b = (spending(folder) if is_run(folder) else None for folder in (a, b))
    columns = [_about(of_a), _about(of_b)]
    left = max(24, len(str(a)) + 2, *(len(value) + 2 for value in columns[0].values()))
    lines = [f"{'':<20}{'A':<{left}}B", f"{'':<20}{a!s:<{left}}{b}"]
    for name in dict.fromkeys([*columns[0], *columns[1]]):
        lines.append(f"{name:<20}{columns[0].get(name, '-'):<{left}}{columns[1].get(name, '-')}")
    if of_a is None or of_b is None:
        unknown = [str(folder) for folder, spent in ((a, of_a), (b, of_b)) if spent is None]
        differs = [f"no run folder, so nothing is known of the training: {', '.join(unknown)}"]
    else:
        differs = unmatched(of_a, of_b)
    if differs and matched:
        raise UserError(f"{a} and {b} are not matched:\n  " + "\n  ".join(differs))
    if differs:
        lines += ["", "NOT MATCHED: a difference need not come from the method", *(f"  {line}" for line in differs)]
    else:
        assert of_a is not None and of_b is not None, "otherwise they differ"
        time = time_of_both(of_a, of_b)
        by = "pairs seen, " if time is None else ""
        lines += [
            "",
            f"matched{f' by time, {time} each' if time else ''}: same data, seed, {by}batch, trunk and schedule",
        ]
        taught = [letter for letter, spent in (("A", of_a), ("B", of_b)) if spent and spent.teacher is not None]
        if len(taught) == 1:
            cache = "" if time is None else "; its cache is not counted"
            lines.append(f"         but only {taught[0]} has a teacher, which was trained elsewhere{cache}")
    return "\n".join(lines)


def _about(spent: Spending | None) -> dict[str, str]:
    if spent is None:
        return {}
    settings = spent.settings
    about = {
        "method": spent.method,
        "pairs seen": "?" if spent.pairs_seen is None else f"{spent.pairs_seen:,}",
        "batch, epochs": f"{settings['budget']['batch']}, {settings['budget']['epochs']}",
        "trunk": settings["model"]["trunk"] + (f", from {settings['init']}" if settings["init"] else ""),
        "data, seed": f"{settings['data']}, {settings['seed']}",
    }
    if spent.teacher is not None:
        about["teacher"] = spent.teacher
    if spent.model_parameters is not None:
        heads = f" + {parameter_count(spent.heads)} of the loss" if spent.heads else ""
        about["parameters trained"] = parameter_count(spent.model_parameters) + heads
    return about


def _reading_notes(rows: list[ComparedScore], level: float) -> str:
    """Return what a reader must know and the table does not say."""
    notes = []
    paired = [row for row in rows if row.difference is not None]
    if len(paired) < len(rows):
        which = "some scores" if paired else "these scores"
        notes.append(
            f"Without intervals: {which} were stored without single items, or without a fingerprint of their data.\n"
            "For paired intervals: dinorankclip score MODEL --sets PATH, for both, then compare again."
        )
    if paired:
        notes.append(
            "Intervals are over items, clustered by image, of these two models: another seed may differ by more.\n"
            f"By chance alone about {(1 - level) * len(paired):.2g} of {len(paired)} such rows would show a difference."
        )
    return "\n".join(notes)


def _words(metric: str) -> str:
    """Spell out the direction: `i2t R@1` → `image → text R@1`."""
    way, _, rest = metric.partition(" ")
    return f"{_WAYS[way]:<14}{rest}" if way in _WAYS else metric


def _number(value: float, unit: Unit, plus: Literal["", "+"] = "") -> str:
    """Write a number; shares have no sign, because the heading says percent."""
    return bare(value, unit, plus) if unit == "share" else written(value, unit, plus)
