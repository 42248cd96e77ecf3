"""The report of one run: how it went, what it learned, its scores and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dinorankclip.commands.doctor import examine_run, read_metrics
from dinorankclip.config import flatten
from dinorankclip.evaluate.scores import OWN_LEVEL
from dinorankclip.formatting import MISSING, RECALLS, described, held_out, written
from dinorankclip.report.figures import Drawn, Unavailable, loss_curves, order_telemetry, score_curves
from dinorankclip.report.html import Page
from dinorankclip.run_files import (
    ENVIRONMENT,
    FUSION,
    INERT_SPREAD,
    METRICS,
    MODALITIES,
    SCORES,
    gate_name,
    is_inert,
    orders_told,
    read_settings,
    spread_name,
)
from dinorankclip.train.cost import spending


def run_page(run: Path) -> Page:
    settings = read_settings(run)
    lines = read_metrics(run / METRICS)
    spent = spending(run)
    page = Page(f"Run {run.name}", f"{spent.method} on {settings['data']}, seed {settings['seed']}")
    _state(page, run, spent)
    page.section("Curves")
    for make in (loss_curves, score_curves, order_telemetry):
        _figure(page, make, lines)
    _orders(page, lines)
    _fusion(page, run)
    _scores(page, run)
    page.section("Settings")
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in sorted(flatten(settings).items())]
    page.details("All settings", ("setting", "value"), rows)
    _environment(page, run)
    return page


def _state(page: Page, run: Path, spent: Any) -> None:
    page.section("How it went")
    seen = "unknown" if spent.pairs_seen is None else f"{spent.pairs_seen:,}"
    counts = "unknown" if spent.model_parameters is None else f"{spent.model_parameters:,}"
    page.text(f"Pairs seen: {seen}. Parameters trained: {counts}, and {spent.heads or 0:,} of the loss alone.")
    if spent.teacher:
        page.text(f"Teacher: {spent.teacher}.", "note")
    for finding in examine_run(run):
        text = finding.what + (f" — {finding.advice}" if finding.advice else "")
        page.text(f"{finding.level}: {text}", "warn" if finding.level == "problem" else "")


def _figure(page: Page, make: Callable[[list[dict[str, Any]]], Drawn], lines: list[dict[str, Any]]) -> None:
    try:
        page.figure(make(lines), level=3)
    except Unavailable as why:
        page.text(f"Left out: {why}.", "note")


def _orders(page: Page, lines: list[dict[str, Any]]) -> None:
    """Gate and relative spread of each order at the end, and whether it acts (D13)."""
    last: dict[str, Any] = {}
    for line in lines:
        last |= line
    orders = orders_told(last)
    if not orders:
        return
    rows = []
    for order in orders:
        spreads = [last.get(spread_name(order, side), 0.0) for side in MODALITIES]
        gates = [last.get(gate_name(order, side), 0.0) for side in MODALITIES]
        state = "inert" if is_inert(max(spreads)) else "acts"
        rows.append((str(order), *(f"{value:.4f}" for value in (*gates, *spreads)), state))
    page.table(("order", "λ image", "λ text", "spread image", "spread text", ""), rows)
    page.text(f"An order whose spread is below {INERT_SPREAD:g} of that of the utilities is inert.", "note")


def _fusion(page: Page, run: Path) -> None:
    path = run / FUSION
    if not path.is_file():
        return
    told = json.loads(path.read_text())
    page.section("What fusion does")
    columns = ("mean", "5 %", "median", "95 %", "max")
    rows = []
    for branch in told.get("end", told.get("start", {})):
        for what, words in (("angle", "angle to the trunk's own, degrees"), ("bound", "its bound"), ("gate", "gate α")):
            for when in ("start", "end"):
                if when in told:
                    cells = told[when][branch][what]
                    rows.append((branch, words, when, *(f"{cells[name]:.3f}" for name in columns)))
    page.table(("branch", "", "", *columns), rows, words=(0, 1, 2))
    for branch, found in told.get("end", {}).items():
        beyond = f"{100 * found['share at ratio >= 1']:.1f} % of items"
        page.text(f"{branch}: {beyond} at ratio ≥ 1, where the bound says nothing.", "note")


def _scores(page: Page, run: Path) -> None:
    path = run / SCORES
    if not path.is_file():
        return
    stored = json.loads(path.read_text())
    page.section("Scores")
    trained = list(_retrieval_rows(stored.get("scores", {})))
    if trained:
        page.section("Held-out retrieval, taken by train", 3)
        page.table(("part", "", *RECALLS, "chance R@1"), trained, words=(0, 1))
    faithful = [(name, f"{value:.4f}") for name, value in stored.get("fidelity", {}).items()]
    if faithful:
        page.section("Students beside their teacher", 3)
        page.table(("score", "value"), faithful)
    if stored.get("sets"):
        page.section("Evaluation sets", 3)
        page.table(
            ("set", "score", "value", "interval over items", "chance", "n"),
            _set_rows(stored["sets"]),
            words=(0, 1),
        )


def _retrieval_rows(scores: dict[str, float]) -> Iterator[tuple[str, ...]]:
    """A line for each held-out part and direction, in percent."""
    for part, ways in held_out(scores).items():
        chance = scores.get(f"{part}/chance R@1")
        for words, found in ways.items():
            yield part, words, *(MISSING if v is None else written(v, "share") for v in (*found, chance))


def _set_rows(sets: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, result in sets.items():
        for metric, score in result["scores"].items():
            unit = score.get("unit", "share")
            shown = {key: written(score[key], unit) for key in ("value", "low", "high", "chance") if key in score}
            level = f"{100 * score.get('level', OWN_LEVEL):g} %"
            span = f"{shown['low']} … {shown['high']} ({level})" if "low" in shown else MISSING
            yield name, metric, shown["value"], span, shown.get("chance", MISSING), str(score["n"])


def _environment(page: Page, run: Path) -> None:
    path = run / ENVIRONMENT
    if not path.is_file():
        return
    about = json.loads(path.read_text())
    page.section("Environment")
    page.text(f"Revision {about['revision'] or 'unknown'}; {described(about)}.")
    page.command(" ".join(about["command"]))
