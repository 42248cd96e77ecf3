"""Writes the report of one run: its course, its learned orders, its scores and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dinorankclip import run_files
from dinorankclip.evaluate.scores import OWN_LEVEL
from dinorankclip.formatting import MISSING, RECALLS, described, held_out, written
from dinorankclip.report.figures import Unavailable, loss_curves, order_telemetry, score_curves
from dinorankclip.report.html import Page
from dinorankclip.report.run_findings import examine_run
from dinorankclip.stored_settings import flatten
from dinorankclip.train.cost import spending


def run_page(run: Path) -> Page:
    settings, lines, spent = run_files.read_settings(run), run_files.read_metrics(run), spending(run)
    page = Page(f"Run {run.name}", _subtitle(settings, spent.method))
    page.section("How it went")
    pairs, parameters = ("unknown" if n is None else f"{n:,}" for n in (spent.pairs_seen, spent.model_parameters))
    page.text(f"Pairs seen: {pairs}. Parameters trained: {parameters}, and {spent.heads or 0:,} of the loss alone.")
    if spent.teacher:
        page.text(f"Teacher: {spent.teacher}.", "note")
    for finding in examine_run(run):
        text = finding.what + (f" — {finding.advice}" if finding.advice else "")
        page.text(f"{finding.level}: {text}", "warn" if finding.level == "problem" else "")
    page.section("Curves")
    for draw in (loss_curves, score_curves, order_telemetry):
        try:
            page.figure(draw(lines), level=3)
        except Unavailable as why:
            page.text(f"Left out: {why}.", "note")
    _orders(page, lines)
    if fusion := run_files.read_fusion(run):
        _fusion(page, fusion)
    if stored := run_files.stored_scores(run):
        _scores(page, stored)
    page.section("Settings")
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in sorted(flatten(settings).items())]
    page.details("All settings", ("setting", "value"), rows)
    if environment := run_files.read_environment(run):
        page.section("Environment")
        page.text(f"Revision {environment.get('revision') or 'unknown'}; {described(environment)}.")
        page.command(" ".join(environment.get("command", ())))
    return page


def _subtitle(settings: dict[str, Any], method: str) -> str:
    recipe = settings.get("recipe")
    towers = settings.get("aligned", {}) if recipe == "aligned" else {}
    made = [f"--recipe {recipe}"] if recipe else []
    made += [f"frozen {towers['image_tower']} and {towers['text_tower']}"] if towers else []
    return ", ".join([f"{method} on {settings['data']}", *made, f"seed {settings['seed']}"])


def _orders(page: Page, lines: list[dict[str, Any]]) -> None:
    """Add the last gate and relative spread of each order, which tell whether the order acts (D13)."""
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
    page.section("Scores")
    retrieval = list(_retrieval_rows(stored.get("scores", {})))
    if retrieval:
        page.section("Held-out retrieval, taken by train", 3)
        page.table(("part", "", *RECALLS, "chance R@1"), retrieval, words=(0, 1))
    fidelity = [(name, f"{value:.4f}") for name, value in stored.get("fidelity", {}).items()]
    if fidelity:
        page.section("Students beside their teacher", 3)
        page.table(("score", "value"), fidelity)
    if stored.get("sets"):
        page.section("Evaluation sets", 3)
        headings = ("set", "score", "value", "interval over items", "chance", "n")
        page.table(headings, _set_rows(stored["sets"]), words=(0, 1))


def _retrieval_rows(scores: dict[str, float]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each held-out part and direction, in percent."""
    for part, ways in held_out(scores).items():
        chance = scores.get(f"{part}/chance R@1")
        for way, recalls in ways.items():
            yield part, way, *(MISSING if value is None else written(value, "share") for value in (*recalls, chance))


def _set_rows(sets: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, result in sets.items():
        for metric, score in result["scores"].items():
            unit = score.get("unit", "share")
            shown = {key: written(score[key], unit) for key in ("value", "low", "high", "chance") if key in score}
            level = f"{100 * score.get('level', OWN_LEVEL):g} %"
            span = f"{shown['low']} … {shown['high']} ({level})" if "low" in shown else MISSING
            yield name, metric, shown["value"], span, shown.get("chance", MISSING), str(score.get("n", MISSING))
