"""Writes the reference pages of the site from the code: commands from their own `--help`, settings from config.py."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

from dinorankclip import config
from dinorankclip.commands import data
from dinorankclip.commands.entry import VERBS, help_text, main
from dinorankclip.config import TrainSettings
from dinorankclip.methods import METHODS
from dinorankclip.presets import PRESETS, default_settings
from dinorankclip.recipes import RECIPES
from dinorankclip_studies import command as study

TROUBLESHOOTING = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
_COLUMNS = "110"  # width of help texts on the page
_BELOW = {  # verbs that have verbs of their own
    "data": tuple(data.VERBS),
    "teacher": ("cache",),
    "study": tuple(name for name in study.VERBS if name not in study.INTERNAL),
}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def commands() -> str:
    """Return the help of every command, as it is printed."""
    parts = ["```text", help_text(), "```", ""]
    for verb, about in VERBS.items():
        parts += [f"## {verb}", "", f"{about.does[0].upper()}{about.does[1:]}.", ""]
        for words in [(verb,), *((verb, below) for below in _BELOW.get(verb, ()))]:
            if len(words) > 1:
                parts += [f"### {' '.join(words)}", ""]
            parts += ["```text", help_of(*words), "```", ""]
            if verb == "train":
                parts += ["[Settings of a run](settings.md) lists these flags with the defaults of each preset.", ""]
    return "\n".join(parts)


def help_of(*words: str) -> str:
    """Return what `dinorankclip WORDS --help` prints, without colours."""
    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    text = _ESCAPES.sub("", printed.getvalue())
    if not text.strip():
        raise RuntimeError(f"dinorankclip {' '.join(words)} --help prints nothing")
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def settings() -> str:
    """Return a table of all settings for each group of config.py."""
    presets = {name: default_settings(name) for name in PRESETS}
    parts = [f"Presets: {_names(PRESETS)}. Methods: {_names(METHODS)}. Recipes: {_names(RECIPES)}.", ""]
    parts += _group("", TrainSettings, presets)
    for field in dataclasses.fields(TrainSettings):
        kind = get_type_hints(TrainSettings, vars(config))[field.name]
        if dataclasses.is_dataclass(kind):
            about = (inspect.getdoc(kind) or "").strip()
            parts += [f"## {field.name}", "", about, "", *_group(f"{field.name}.", kind, presets)]
    return "\n".join(parts)


def _group(prefix: str, kind: Any, presets: dict[str, TrainSettings]) -> list[str]:
    helps = field_helps(kind)
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for field in dataclasses.fields(kind):
        values = {name: _at(settings, prefix + field.name) for name, settings in presets.items()}
        if dataclasses.is_dataclass(values["scenes"]):
            continue
        default = f"`{values['scenes']}`"
        for name, value in values.items():
            if value != values["scenes"] and field.name != "preset":
                default += f"<br>{name}: `{value}`"
        rows.append(f"| `{prefix}{field.name}` | {default} | {_cell(helps.get(field.name, ''))} |")
    return [*rows, ""]


def field_helps(kind: Any) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and of those that it extends."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        body = ast.parse(inspect.getsource(owner)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, [*body.body[1:], None]):
            is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore[union-attr]
    return found


def run_files() -> str:
    """Return the table of run files, which docs/troubleshooting.md holds."""
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    return text[text.index("## Files of a run") :].partition("\n## ")[0].removeprefix("## Files of a run")


def _at(settings: Any, name: str) -> Any:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def _names(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    """Escape a help text for a table: bars separate cells, and angle brackets would be tags."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


GENERATED: dict[str, Callable[[], str]] = {"commands": commands, "settings": settings, "run files": run_files}
