"""Who taught the cells of a claim, as their runs recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Literal, Protocol

from dinorankclip.run_files import is_inert
from dinorankclip_studies.papers.dinorankclip.paper_values import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_values import gain as projected_gain
from dinorankclip_studies.quantities import DECIDES, QUALITY, Context, Quantity, Score, gain, score_name, spread
from dinorankclip_studies.results import Results, at_chance
from dinorankclip_studies.verdicts import (
    Comparison,
    Effect,
    Unit,
    Verdict,
    all_hold,
    below,
    decided,
    equivalent,
    level,
    smaller_than_claimed,
    together,
    unless_inert,
)

PAPER_TEACHER = "dinov3"
CONTROL = "random-"  # teachers of random weights are no teachers


def caveat(results: Results, cells: Sequence[str]) -> str:
    """What must be said beside a verdict that a teacher other than the paper's has a part in; empty if none has."""
    told: dict[str, str] = {}
    for run in (run for cell in cells for run in results.of(cell).values()):
        name = run.settings["distil"]["teacher"]
        if run.teacher and not name.startswith(CONTROL) and PAPER_TEACHER not in name:
            told[name] = max(run.teacher, told.get(name, ""), key=len)  # with the captions' teacher, where there is one
    return f"teacher {'; '.join(told.values())}: not DINOv3" if told else ""


# -------- shapes
# What a claim is, how it is judged, and what the judging leaves behind.

INERT, AT_CHANCE, SMALLER = "an order is inert", "near chance", "smaller than claimed"  # marks of a verdict


@dataclass(frozen=True)
class Contrast:
    """A quantity and what the paper says of it. `size`: the claimed one in the quantity's own unit, if printed;
    `borrowed`: what the paper printed it of, where that is another comparison."""

    label: str
    quantity: Quantity
    direction: Literal[1, -1] = 1
    size: float | None = None
    unit: Unit = "points"
    borrowed: str = ""

    def measured(self, context: Context) -> Effect:
        return level(self.quantity.values(context))

    def deciding(self, context: Context) -> Effect:
        """What is measured, without its interval where models are compared at what none of them can do."""
        found = self.measured(context)
        if self.at_chance(context):
            return replace(found, low=None, high=None, sd=None, detectable=None)
        return found

    def at_chance(self, context: Context) -> tuple[str, ...]:
        """Scores that no cell of this contrast has raised by a point above chance."""
        names = (score_name(score, context.measures) for score in self.quantity.scores)
        return tuple(name for name in names if at_chance(context.results, self.quantity.cells, name))

    def comparison(self, context: Context) -> Comparison:
        return Comparison(self.deciding(context), self.direction, self.size, self.unit)


@dataclass(frozen=True)
class Shown:
    """One line of evidence. `decisive` lines make the verdict, the others are told beside it."""

    label: str
    effect: Effect
    unit: Unit
    direction: int
    size: float | None
    scores: tuple[str, ...]
    decisive: bool = True
    family: int = 1  # of how many comparisons it is one, for Holm
    borrowed: str = ""
    rounds: bool = False  # n counts rounds of a bench, not seeds
    level: bool = False  # the measure of one cell itself, no difference of two
    deciding: bool = False  # of several that must all hold, the one that brought the verdict about


@dataclass(frozen=True)
class Evidence:
    """`remarks` are sentences about the claim, `marks` what must stand beside the verdict itself."""

    verdict: Verdict
    shown: tuple[Shown, ...] = ()
    remarks: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


class Judge(Protocol):
    """Decides a claim; `contrasts` are all that it decides by."""

    @property
    def contrasts(self) -> Sequence[Contrast]: ...
    @property
    def rule(self) -> str: ...
    def __call__(self, context: Context) -> Evidence: ...


@dataclass(frozen=True)
class AllHold:
    """Every contrast must hold. `acting`: (cell, order) that must not be inert (D13); `also`: told, not decisive."""

    contrasts: tuple[Contrast, ...]
    acting: tuple[tuple[str, int], ...] = ()
    also: tuple[Contrast, ...] = ()

    @property
    def rule(self) -> str:
        return "paired difference" if len(self.contrasts) == 1 else f"all {len(self.contrasts)} differences, Holm"

    def __call__(self, context: Context) -> Evidence:
        comparisons = [contrast.comparison(context) for contrast in self.contrasts]
        verdict, deciding = decided(comparisons)
        inert, inert_remarks = _inertness(context, self.acting)
        verdict = unless_inert(verdict, inert)
        chance_remarks = _chance_remarks(self.contrasts, context)
        smaller = verdict == "supported" and any(smaller_than_claimed(part) for part in comparisons)
        return Evidence(
            verdict,
            (
                *_lines(self.contrasts, context, family=len(self.contrasts), deciding=deciding),
                *_lines(self.also, context, decisive=False),
            ),
            inert_remarks + chance_remarks,
            _marks({INERT: inert, AT_CHANCE: bool(chance_remarks), SMALLER: smaller}),
        )


@dataclass(frozen=True)
class AllEquivalent:
    """Every contrast must be zero up to the margin (two one-sided tests). `given`: what must be shown to be there
    before its being equal, or adding up, says anything. `acting`: (cell, order) that must not be inert: what does
    nothing is equal by necessity."""

    equal: tuple[Contrast, ...]
    margin: float
    also: tuple[Contrast, ...] = ()
    given: tuple[Contrast, ...] = ()
    acting: tuple[tuple[str, int], ...] = ()

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        return self.equal + self.given

    @property
    def rule(self) -> str:
        rule = f"equivalence within ±{in_unit(self.margin, self.equal[0].unit)} (two one-sided tests)"
        if self.given:
            many = f"{len(self.given)} differences, Holm"
            rule += f", given {'a difference' if len(self.given) == 1 else many}"
        return rule

    def __call__(self, context: Context) -> Evidence:
        many = len(self.equal)
        verdicts = [equivalent(contrast.deciding(context), self.margin, many) for contrast in self.equal]
        if self.given:
            verdicts.append(all_hold([contrast.comparison(context) for contrast in self.given]))
        inert, inert_remarks = _inertness(context, self.acting)
        if inert:
            verdicts.append("inconclusive")
        chance_remarks = _chance_remarks(self.contrasts, context)
        return Evidence(
            together(verdicts),
            (
                *_lines(self.equal, context),
                *_lines(self.given, context, family=len(self.given)),
                *_lines(self.also, context, decisive=False),
            ),
            inert_remarks + chance_remarks,
            _marks({INERT: inert, AT_CHANCE: bool(chance_remarks)}),
        )


@dataclass(frozen=True)
class AllBelow:
    """Every level (not difference) must lie below a bound; above it, if `above` is set."""

    contrasts: tuple[Contrast, ...]
    bound: float
    above: bool = False

    @property
    def rule(self) -> str:
        unit = self.contrasts[0].unit
        bound = f"{100 * self.bound:g} %" if unit == "points" else in_unit(self.bound, unit)
        return f"95 % interval {'above' if self.above else 'below'} {bound}"

    def __call__(self, context: Context) -> Evidence:
        verdicts, many = [], len(self.contrasts)
        for contrast in self.contrasts:
            values = contrast.quantity.values(context)
            if self.above:
                verdicts.append(below(level({seed: -value for seed, value in values.items()}), -self.bound, many))
            else:
                verdicts.append(below(level(values), self.bound, many))
        return Evidence(together(verdicts), tuple(replace(one, level=True) for one in _lines(self.contrasts, context)))


@dataclass(frozen=True)
class Claim:
    """`says` is the paper's claim in our words, `where` its place; `experiments` name the tables that show it."""

    id: str
    says: str
    where: str
    experiments: tuple[str, ...]
    judge: Judge
    remark: str = ""
    only: Literal["", "scenes", "cc3m"] = ""  # the kind of study that alone has what it needs
    control: bool = False  # the paper has no such comparison: it is counted apart from its claims

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell for contrast in self.judge.contrasts for cell in contrast.quantity.cells))

    def evidence(self, context: Context) -> Evidence:
        found = self.judge(context)
        taught_by = caveat(context.results, self.cells)
        remarks = [self.remark, *found.remarks, taught_by]
        if found.verdict == "not run":
            missing = [cell for cell in self.cells if not context.results.of(cell)]
            remarks.insert(0, f"no finished run of {', '.join(missing)}" if missing else "not measured")
        marks = found.marks if found.verdict == "not run" or not taught_by else (*found.marks, taught_by)
        return replace(found, remarks=tuple(remark for remark in remarks if remark), marks=marks)


def in_unit(value: float, unit: Unit) -> str:
    """Points are shown times 100, with their unit."""
    if unit in ("points", "points a step"):
        return f"{100 * value:.2f} {unit}"
    return {"degrees": f"{value:.2f}°", "times": f"{value:.2f}×"}.get(unit, f"{value:.4g}")


def _lines(
    contrasts: Sequence[Contrast],
    context: Context,
    decisive: bool = True,
    family: int = 1,
    deciding: int | None = None,
) -> tuple[Shown, ...]:
    return tuple(
        Shown(
            contrast.label.replace(DECIDES, context.measures.accuracy_word),
            contrast.measured(context),
            contrast.unit,
            contrast.direction,
            contrast.size,
            tuple(score_name(score, context.measures) for score in contrast.quantity.scores),
            decisive,
            family,
            contrast.borrowed,
            rounds=not contrast.quantity.cells,
            deciding=at == deciding,
        )
        for at, contrast in enumerate(contrasts)
    )


def _inertness(context: Context, acting: Sequence[tuple[str, int]]) -> tuple[bool, tuple[str, ...]]:
    inert, remarks = False, []
    for cell, order in acting:
        found = spread(context.results, cell, order)
        if found is None:
            continue
        inert |= is_inert(found)
        state = "inert" if is_inert(found) else "acts"
        remarks.append(f"order {order} of {cell}: relative spread {found:.2g}, {state}")
    return inert, tuple(remarks)


def _chance_remarks(contrasts: Sequence[Contrast], context: Context) -> tuple[str, ...]:
    names = dict.fromkeys(name for contrast in contrasts for name in contrast.at_chance(context))
    return tuple(f"{name} decides nothing: no cell is shown to be a point above chance" for name in names)


def _marks(held: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(mark for mark, holds in held.items() if holds)


# -------- building
# Short forms in which the claims are written down.


def points(table: str, column: str, row: str, over: str) -> float:
    """The paper's projected difference of two rows as a share (a point is 0.01), without its sign."""
    return abs(projected_gain(table, column, row, over)) / 100


def relative(table: str, column: str, row: str, over: str) -> float:
    """The paper's projected relative gain, as a share."""
    return PAPER[table][row][column] / PAPER[table][over][column] - 1


def better(
    cell: str, over: str, score: Score, size: float | None = None, what: str = "", borrowed: str = ""
) -> Contrast:
    """`cell` scores higher than `over`."""
    return Contrast(_label(cell, over, what), gain(cell, over, score), 1, size, _unit(score), borrowed)


def worse(cell: str, over: str, score: Score, size: float | None = None, what: str = "") -> Contrast:
    return Contrast(_label(cell, over, what), gain(cell, over, score), -1, size, _unit(score))


def smaller(cell: str, over: str, score: Score, size: float | None = None, unit: Unit = "degrees") -> Contrast:
    """`cell` measures less than `over`, in degrees unless another unit is given."""
    return Contrast(_label(cell, over, ""), gain(cell, over, score), -1, size, unit)


def rising(cells: Sequence[str], score: Score, sizes: Sequence[float] = (), what: str = "") -> tuple[Contrast, ...]:
    """Each cell better than the one before; `sizes` of the steps, if the paper has them."""
    steps = zip_longest(pairwise(cells), sizes)
    return tuple(better(cell, before, score, size, what) for (before, cell), size in steps)


def named(
    label: str, quantity: Quantity, size: float | None = None, unit: Unit = "points", borrowed: str = ""
) -> Contrast:
    return Contrast(label, quantity, 1, size, unit, borrowed)


def _unit(score: Score) -> Unit:
    """Scores are shares, but for τ-b."""
    return "number" if score is QUALITY else "points"


def _label(cell: str, over: str, what: str) -> str:
    return f"{cell} - {over}" + (f", {what}" if what else "")
