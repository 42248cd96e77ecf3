"""Reads the claims of a paper (`claims.toml`, whose head explains the keys) and names every entry that is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from dinorankclip_studies.claim import AllBelow, AllEquivalent, AllHold, Claim, Contrast, Judge
from dinorankclip_studies.papers.paper_data import PaperValues
from dinorankclip_studies.quantities import LOGGED, SCORES, NamedScore, Quantity, gain, of, relative_gain
from dinorankclip_studies.verdicts import SMALLEST, Unit

Entry = Mapping[str, Any]
CLAIM_KEYS = {"id", "says", "where", "tables", "rule", "contrasts"}
MORE_CLAIM_KEYS = {
    "also", "given", "acting", "margin", "bound", "remark", "remarks", "only", "control", "same_as", "beside", "cc3m",
}  # fmt: skip
_SAME_KEYS = ("id", "says", "where", "remark", "remarks", "control", "same_as")  # fields of a claim, as they are
Names = Callable[[str], str]  # a cell of claims.toml → its name in a study
CONTRAST_KEYS = {
    "of", "over", "steps", "score", "minus", "minus_score", "relative", "less", "claimed", "claimed_minus", "label",
    "borrowed", "unit",
}  # fmt: skip


def load_claims(
    path: Path,
    values: PaperValues,
    special: Mapping[str, Callable[..., Any]],
    control: tuple[str, str] | None = None,
    kind: str = "",
    names_of: Callable[[Sequence[str]], Names] | None = None,
) -> tuple[Claim, ...]:
    """Read all claims.

    special     functions that build the contrasts and sentences which the file only names
    control     the cell of the paper's method, and the cell of the same without its teacher: a supported gain says if
                the second does as well
    kind        a kind of study whose keys override those of a claim
    names_of    tables of a claim → the function that names its cells in that kind of study
    """
    claims = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]:
        try:
            named = names_of(entry["tables"]) if names_of else str
            overrides = entry.get(kind, {}) if kind else {}
            claims.append(_Reader(values, special, control, named).claim(entry | overrides))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: claim {entry.get('id', len(claims) + 1)}: {error}") from error
    return tuple(claims)


@dataclass(frozen=True)
class _Reader:
    values: PaperValues
    special: Mapping[str, Callable[..., Any]]
    control: tuple[str, str] | None
    named: Names

    def claim(self, entry: Entry) -> Claim:
        _check_keys(entry, CLAIM_KEYS, MORE_CLAIM_KEYS)
        same = {key: entry[key] for key in _SAME_KEYS if key in entry}
        only = entry.get("only", ())
        return Claim(
            experiments=tuple(entry["tables"]),
            judge=self.judge(entry),
            only=(only,) if isinstance(only, str) else tuple(only),
            beside=tuple(self._special(name) for name in entry.get("beside", ())),
            **same,
        )

    def judge(self, entry: Entry) -> Judge:
        contrasts, also, given = (self.contrasts(entry.get(key, ())) for key in ("contrasts", "also", "given"))
        acting = tuple((self.named(cell), order) for cell, order in entry.get("acting", ()))
        match entry["rule"]:
            case "all hold":
                return AllHold(contrasts, acting, also)
            case "all equivalent":
                margin = entry.get("margin", SMALLEST[contrasts[0].unit])
                return AllEquivalent(contrasts, margin, also, given, acting)
            case "all below" | "all above":
                return AllBelow(contrasts, entry["bound"], above=entry["rule"] == "all above")
        raise ValueError(f"unknown rule {entry['rule']!r}")

    def contrasts(self, entries: Sequence[Entry]) -> tuple[Contrast, ...]:
        return tuple(contrast for entry in entries for contrast in self._built(entry))

    def _built(self, entry: Entry) -> Iterator[Contrast]:
        """Build the contrasts of an entry: several, if it has several cells on the other side, or steps."""
        if "special" in entry:
            given = {key: self.named(entry[key]) if key == "cell" else entry[key] for key in entry if key != "special"}
            yield self._special(entry["special"])(**given)
            return
        _check_keys(entry, {"score"}, CONTRAST_KEYS)
        if "label" not in entry and ("minus_score" in entry or entry.keys().isdisjoint(("over", "steps"))):
            raise ValueError(f"a contrast that is no difference of cells in one score needs a label: {dict(entry)}")
        others = entry.get("over")
        pairs = ((over, entry["of"]) for over in (others if isinstance(others, list) else [others]))
        for over, cell in pairwise(entry["steps"]) if "steps" in entry else pairs:
            yield self._contrast(entry, cell, over)

    def _special(self, name: str) -> Callable[..., Any]:
        if name not in self.special:
            raise ValueError(f"unknown special contrast {name!r}; known: {', '.join(self.special)}")
        return self.special[name]

    def _contrast(self, entry: Entry, of_paper: str, over_paper: str | None) -> Contrast:
        """Build a contrast. Its claimed size is that of the paper's rows, its values those of the study's cells."""
        cell, over = self.named(of_paper), None if over_paper is None else self.named(over_paper)
        score, relative = _score(entry["score"], entry.get("unit")), entry.get("relative", False)
        quantity = _quantity(cell, over, score, relative)
        label = cell if over is None else f"{cell} - {over}"
        control = self._control(cell, over, score) if entry.keys().isdisjoint(("minus", "minus_score")) else None
        if "minus" in entry or "minus_score" in entry:
            other_cell, other_over = map(self.named, entry["minus"]) if "minus" in entry else (cell, over)
            other_score = _score(entry["minus_score"], score.unit) if "minus_score" in entry else score
            quantity -= _quantity(other_cell, other_over, other_score, relative)
            label = f"({label}) - ({other_cell} - {other_over})"
        size = None
        if "claimed" in entry:
            assert over_paper is not None, "a claimed size is a difference of two rows"
            size = self._size(entry["claimed"], of_paper, over_paper, score.unit, relative)
            if "claimed_minus" in entry:
                size -= self._size(entry["claimed_minus"], of_paper, over_paper, score.unit, relative)
        label = entry.get("label", f"{label}, {score.word}" if score.word else label)
        direction: Literal[1, -1] = -1 if entry.get("less") else 1
        return Contrast(label, quantity, direction, size, score.unit, entry.get("borrowed", ""), control)

    def _control(self, cell: str, over: str | None, score: NamedScore) -> Quantity | None:
        """Return what its teacher adds to the paper's method in this score, where it is compared with another cell."""
        if self.control is None or over is None:
            return None
        method, control = map(self.named, self.control)
        return gain(method, control, score.score) if cell == method and over != control else None

    def _size(self, claimed: Sequence[Any], cell: str, over: str, unit: Unit, relative: bool) -> float:
        """Return the printed difference without its sign: points as a share, other units as printed."""
        table, column, *rows = claimed
        row, other = rows or (self.values.row_of(table, name) for name in (cell, over))
        columns = [column] if isinstance(column, str) else column
        if relative:
            sizes = [self.values[table][row][name] / self.values[table][other][name] - 1 for name in columns]
        else:
            gains = [abs(self.values.gain(table, name, row, other)) for name in columns]
            sizes = [size / 100 for size in gains] if unit == "points" else gains
        return sum(sizes) / len(sizes)


def _score(name: str, unit: Unit | None) -> NamedScore:
    if name.startswith(LOGGED):
        return NamedScore(name, "", unit or "number")
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}; known: {', '.join(SCORES)}")
    return SCORES[name]


def _quantity(cell: str, over: str | None, score: NamedScore, relative: bool) -> Quantity:
    if over is None:
        return of(cell, score.score)
    return (relative_gain if relative else gain)(cell, over, score.score)


def _check_keys(entry: Entry, required: set[str], optional: set[str]) -> None:
    if missing := sorted(required - entry.keys()):
        raise ValueError(f"missing keys: {', '.join(missing)}")
    if unknown := sorted(entry.keys() - required - optional):
        raise ValueError(f"unknown keys: {', '.join(unknown)}")
