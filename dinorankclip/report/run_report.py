"""Writes the report of one run: its course, what it finds before and after, its orders, scores and settings.

A file of the run that is absent or damaged becomes words on the page; only config.json must be readable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dinorankclip import run_files
from dinorankclip.evaluate.example_queries import read_examples
from dinorankclip.evaluate.scores import OWN_LEVEL
from dinorankclip.formatting import MISSING, RECALLS, described, held_out, written
from dinorankclip.report.example_pictures import add_examples, add_score_pictures
from dinorankclip.report.figures import Unavailable, loss_curves, order_telemetry, score_curves
from dinorankclip.report.html import Page
from dinorankclip.report.measures import WORDS, meanings
from dinorankclip.report.run_findings import examine_run
from dinorankclip.stored_settings import flatten
from dinorankclip.train.cost import Spending, spending
from dinorankclip.train.loop import CHOOSES_BEST
from dinorankclip.types import Finding, UserError

Read = TypeVar("Read")


def run_page(run: Path) -> Page:
    settings = run_files.read_settings(run)
    unread: list[str] = []
    spent = _read(lambda: spending(run), Spending(settings, None, None, None, None, None), unread)
    page = Page(f"Run {run.name}", _subtitle(settings, spent.method))
    page.section("How it went")
    pairs, parameters = ("unknown" if n is None else f"{n:,}" for n in (spent.pairs_seen, spent.model_parameters))
    page.text(f"Pairs seen: {pairs}. Parameters trained: {parameters}, and {spent.heads or 0:,} of the loss alone.")
    if spent.teacher:
        page.text(f"Teacher: {spent.teacher}.", "note")
    findings: list[Finding] = _read(lambda: list(examine_run(run)), [], unread)
    page.findings(findings)
    lines: list[dict[str, Any]] = _read(lambda: run_files.read_metrics(run), [], unread)
    stored: dict[str, Any] = _read(lambda: run_files.stored_scores(run), {}, unread)
    examples: dict[str, Any] = _read(lambda: read_examples(run), {}, unread)
    fusion: dict[str, Any] = _read(lambda: run_files.read_fusion(run), {}, unread)
    environment: dict[str, Any] = _read(lambda: run_files.read_environment(run), {}, unread)
    for error in dict.fromkeys(unread):
        if not any(error in finding.what for finding in findings):
            page.text(f"Left out: {error}.", "warn")
    _held_out(page, settings, stored, lines, examples)
    page.section("Curves")
    for draw, what in ((loss_curves, "the loss"), (score_curves, "validation"), (order_telemetry, "gates of orders")):
        try:
            page.figure(draw(lines), level=3)
        except Unavailable as why:
            page.text(f"No curve of {what}: {why}.", "note")
    orders = _orders(page, lines)
    if fusion:
        _fusion(page, fusion)
    _scores(page, stored)
    shown_above = _sets_of(settings, stored.get("sets", {}), examples)
    add_score_pictures(page, run, stored.get("sets", {}), shown_above)
    _words(page, stored, fusion=bool(fusion), orders=orders)
    page.section("Settings")
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in sorted(flatten(settings).items())]
    page.details("All settings", ("setting", "value"), rows)
    page.section("Environment")
    if environment:
        page.text(f"Revision {environment.get('revision') or 'unknown'}; {described(environment)}.")
        page.command(" ".join(environment.get("command", ())))
    else:
        page.text("The run folder says nothing about the machine and the versions.", "note")
    return page


def _read(read: Callable[[], Read], otherwise: Read, unread: list[str]) -> Read:
    """Return what `read` returns; if the file is damaged, `otherwise`, and the reason joins `unread`."""
    try:
        return read()
    except (UserError, OSError) as error:
        unread.append(str(error).splitlines()[0])
        return otherwise


def _subtitle(settings: dict[str, Any], method: str) -> str:
    recipe, model = settings.get("recipe"), settings.get("model", {})
    towers = settings.get("aligned", {}) if recipe == "aligned" else {}
    if towers:
        made = f"Heads on the frozen towers {towers['image_tower']} (images) and {towers['text_tower']} (captions)"
    else:
        made = f"Trunk {model['trunk']}" if model.get("trunk") else "A model"
    words = [made, *([f"--recipe {recipe}"] if recipe else []), f"trained by {method} on {settings['data']}"]
    start = settings.get("init") or model.get("weights")
    return ", ".join([*words, *([f"starting from {start}"] if start else []), f"seed {settings['seed']}"])


def _held_out(
    page: Page,
    settings: dict[str, Any],
    stored: dict[str, Any],
    lines: list[dict[str, Any]],
    examples: dict[str, Any],
) -> None:
    """Add retrieval on the held-out parts: the table, then pictures of the same queries before and after."""
    page.section("Held-out retrieval")
    rows = list(_retrieval_rows(stored.get("scores", {}), stored.get("before") or {}, lines))
    if rows:
        headings = ("part", "direction", "when", *RECALLS, "chance R@1")
        page.table(headings, rows, words=(0, 1, 2))
        page.text(
            "R@1 is the share of queries whose first answer is right; R@5 and R@10 look at the first five and ten.",
            "note",
        )
    else:
        page.text("There are no scores of the end: training has not ended, or their file cannot be read.", "note")
    if gained := stored.get("gains"):
        _gains(page, gained, stored.get("chosen", {}))
    if examples:
        add_examples(page, settings, examples)
    else:
        data = settings["data"]
        page.text(
            "The run stored no example queries (runs of earlier versions, and methods that do not learn to retrieve, "
            f"have none). `dinorankclip score RUN --sets {data}` draws some.",
            "note",
        )


def _gains(page: Page, gained: list[dict[str, Any]], chosen: dict[str, Any]) -> None:
    """Add what fine-tuning changed on the own data and on the general set."""
    rows = [
        (
            f"{row['of']} {row['part']}", row["score"], written(row["before"], "share"), written(row["after"], "share"),
            written(row["after"] - row["before"], "share", "+"),
            f"{written(row['low'], 'share', '+')} … {written(row['high'], 'share', '+')}", str(round(row["n"])),
        )
        for row in gained
    ]  # fmt: skip
    page.table(("set", "score", "before", "after", "gain", "95 % interval over images", "n"), rows, words=(0, 1))
    if (alpha := chosen.get("alpha")) is not None:
        page.text(
            f"The model is a blend: {100 * alpha:.0f} % of the way from the starting weights to the trained ones.",
            "note",
        )


def _retrieval_rows(
    scores: dict[str, float], before: dict[str, Any], lines: list[dict[str, Any]]
) -> Iterator[tuple[str, ...]]:
    """Yield rows for each held-out part and direction, in percent: starting weights or first validation, then the end.

    The first validation is known of the validation part alone, and only if it was not the last one.
    """
    taken = [line for line in lines if CHOOSES_BEST in line]
    moments: list[tuple[str, dict[str, Any]]] = [("before training", before)] if before else []
    if len(taken) > 1:
        moments.append((f"first validation, step {taken[0]['step']:,}", taken[0]))
    moments.append(("end", scores))
    for part, ways in held_out(scores).items():
        for way in ways:
            labels = (part, way)  # stand once before the rows of several moments
            for when, numbers in moments:
                recalls = held_out(numbers).get(part, {}).get(way)
                if recalls is not None:
                    cells = (*recalls, scores.get(f"{part}/chance R@1"))
                    yield *labels, when, *(MISSING if v is None else written(v, "share") for v in cells)
                    labels = ("", "")


def _sets_of(settings: dict[str, Any], sets: dict[str, Any], examples: dict[str, Any]) -> set[str]:
    """Return the scored sets that are the run's own validation part, whose examples the page shows already."""
    if not examples:
        return set()
    own = Path(str(settings["data"])).stem
    return {
        name.rsplit(" ", 1)[0] if name.endswith(f" {examples['part']}") else name
        for name, result in sets.items()
        if result.get("split") == examples["part"]
        and result.get("images") == examples["images"]
        and (name == own or name.startswith(f"{own} "))
    }


def _orders(page: Page, lines: list[dict[str, Any]]) -> bool:
    """Add the last gate and relative spread of each order, which tell whether the order acts (D13). Return whether
    there are such orders."""
    last: dict[str, Any] = {}
    for line in lines:
        last |= line
    rows = []
    for order in run_files.logged_orders(last):
        spreads = [last.get(run_files.spread_name(order, side), 0.0) for side in run_files.MODALITIES]
        gates = [last.get(run_files.gate_name(order, side), 0.0) for side in run_files.MODALITIES]
        state = "inert" if run_files.is_inert(max(spreads)) else "acts"
        rows.append((str(order), *(f"{value:.4f}" for value in (*gates, *spreads)), state))
    if rows:
        page.table(("order", "λ image", "λ text", "spread image", "spread text", ""), rows)
        page.text(
            f"An order whose spread is below {run_files.INERT_SPREAD:g} of that of the utilities is inert.", "note"
        )
    return bool(rows)


def _fusion(page: Page, stored: dict[str, Any]) -> None:
    page.section("What fusion does")
    columns = ("mean", "5 %", "median", "95 %", "max")
    labels = {"angle": "angle to the trunk's own, degrees", "bound": "its bound", "gate": "gate α"}
    rows = []
    for branch in stored.get("end", stored.get("start", {})):
        for name, label in labels.items():
            for when in ("start", "end"):
                if branch in stored.get(when, {}):
                    numbers = stored[when][branch][name]
                    rows.append((branch, label, when, *(f"{numbers[column]:.3f}" for column in columns)))
    page.table(("branch", "", "", *columns), rows, words=(0, 1, 2))
    for branch, numbers in stored.get("end", {}).items():
        share = f"{100 * numbers['share at ratio >= 1']:.1f} % of items"
        page.text(f"{branch}: {share} at ratio ≥ 1, where the bound says nothing.", "note")


def _scores(page: Page, stored: dict[str, Any]) -> None:
    fidelity = [(name, f"{value:.4f}") for name, value in stored.get("fidelity", {}).items()]
    if fidelity:
        page.section("Students beside their teacher")
        page.table(("score", "value"), fidelity, tips=meanings([name for name, _ in fidelity]))
    page.section("Evaluation sets")
    sets = stored.get("sets", {})
    if not sets:
        page.text("No set was scored yet. This command adds scores, intervals and pictures to this page:", "note")
        page.command("dinorankclip score RUN --sets scenes")
    else:
        headings = ("set", "score", "value", "interval over items", "chance", "n")
        names = [metric for result in sets.values() for metric in result["scores"]]
        page.table(headings, _set_rows(sets), words=(0, 1), tips=meanings(names))
    for name, error in stored.get("set_errors", {}).items():
        page.text(f"{name} could not be scored: {error}", "warn")


def _words(page: Page, stored: dict[str, Any], fusion: bool, orders: bool) -> None:
    """Add the meaning of every measure and word of this page."""
    page.section("What the words mean")
    absent = set() if orders else {"order", "λ", "spread", "inert"}
    absent |= set() if fusion else {"gate α", "angle to the trunk's own", "its bound"}
    rows = [(word, sentence) for word, sentence in WORDS.items() if word not in absent]
    names = [metric for result in stored.get("sets", {}).values() for metric in result["scores"]]
    rows += list(meanings([*stored.get("fidelity", {}), *names]).items())
    page.table(("word", "meaning"), rows, words=(0, 1))


def _set_rows(sets: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for set_name, result in sets.items():
        name = set_name  # stands once before the scores of its set
        for metric, score in result["scores"].items():
            unit = score.get("unit", "share")
            shown = {key: written(score[key], unit) for key in ("value", "low", "high", "chance") if key in score}
            level = f"{100 * score.get('level', OWN_LEVEL):g} %"
            span = f"{shown['low']} … {shown['high']} ({level})" if "low" in shown else MISSING
            yield name, metric, shown["value"], span, shown.get("chance", MISSING), str(score.get("n", MISSING))
            name = ""
