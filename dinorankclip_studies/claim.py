"""Defines claims of a paper: their comparisons, the rules that judge them, and the evidence for their verdicts.

A claim has a judge. A judge turns contrasts, which are quantities with what the paper says of them, into a verdict:
`AllHold`, `AllEquivalent` or `AllBelow`. The rules themselves are in verdicts.py; papers/claims_file.py reads claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dinorankclip.run_files import is_inert
from dinorankclip_studies import verdicts as rules
from dinorankclip_studies.papers import paper_of
from dinorankclip_studies.quantities import DECIDES, Context, Quantity, score_name, spread
from dinorankclip_studies.results import Results, at_chance
from dinorankclip_studies.run_times import Bench
from dinorankclip_studies.verdicts import Comparison, Effect, Unit, Verdict

CONTROL = "random-"  # begins the names of teachers with random weights, which are no teachers
INERT, AT_CHANCE, SMALLER = "an order is inert", "near chance", "smaller than claimed"  # marks of a verdict
AS_WELL = "not shown above a control without a teacher"  # the same, of a supported claim


@dataclass(frozen=True)
class Contrast:
    """Holds a quantity and the paper's statement about it. `size`: claimed size in the quantity's own unit, if printed;
    `borrowed`: the comparison that the paper printed the size of, where it is another comparison. `over_control`: the
    lead of the same cell over the control without a teacher."""

    label: str
    quantity: Quantity
    direction: Literal[1, -1] = 1
    size: float | None = None
    unit: Unit = "points"
    borrowed: str = ""
    over_control: Quantity | None = None

    def measured(self, context: Context) -> Effect:
        """Return the effect over seeds. The same runs under two names are no comparison, so n is 0."""
        cells = self.quantity.cells
        if len(cells) == 2 and context.results.are_same_runs(*cells):
            return rules.level({})
        return rules.level(self.quantity.values(context))

    def deciding(self, context: Context) -> Effect:
        """Return the measured effect, without its interval where no compared model is above chance."""
        effect = self.measured(context)
        if self.at_chance(context):
            return replace(effect, low=None, high=None, sd=None, detectable=None)
        return effect

    def at_chance(self, context: Context) -> tuple[str, ...]:
        """Return the scores that no cell of this contrast has raised by a point above chance."""
        names = (score_name(score, context.measures) for score in self.quantity.scores)
        return tuple(name for name in names if at_chance(context.results, self.quantity.cells, name))

    def comparison(self, context: Context) -> Comparison:
        return Comparison(self.deciding(context), self.direction, self.size, self.unit)


@dataclass(frozen=True)
class EvidenceLine:
    """Holds one line of evidence. `decisive` lines make the verdict; other lines stand beside it."""

    label: str
    effect: Effect
    unit: Unit
    direction: int
    size: float | None
    scores: tuple[str, ...]
    decisive: bool = True
    family: int = 1  # number of comparisons that Holm corrects over
    borrowed: str = ""
    rounds: bool = False  # n counts rounds of a bench, not seeds
    level: bool = False  # the measure of one cell, not a difference of two cells
    deciding: bool = False  # the line that decided the verdict, where several must hold


@dataclass(frozen=True)
class Evidence:
    """Holds the evidence. `remarks` are sentences about the claim; `marks` must stand beside the verdict itself."""

    verdict: Verdict
    shown: tuple[EvidenceLine, ...] = ()
    remarks: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class AllHold:
    """Demands that every contrast holds. `acting`: (cell, order) that must not be inert, since an inert order cannot
    help (D13); `also`: contrasts that are shown, not decisive."""

    contrasts: tuple[Contrast, ...]
    acting: tuple[tuple[str, int], ...] = ()
    also: tuple[Contrast, ...] = ()

    @property
    def rule(self) -> str:
        return "paired difference" if len(self.contrasts) == 1 else f"all {len(self.contrasts)} differences, Holm"

    def __call__(self, context: Context) -> Evidence:
        comparisons = [contrast.comparison(context) for contrast in self.contrasts]
        verdict, deciding = rules.decided(comparisons)
        inert, remarks = _inertness(context, self.acting)
        verdict = rules.unless_inert(verdict, inert)
        at_chance = _chance_remarks(self.contrasts, context)
        smaller = verdict == "supported" and any(map(rules.smaller_than_claimed, comparisons))
        lines = _lines(self.contrasts, context, family=len(self.contrasts), deciding=deciding)
        as_well = tuple(_as_well(self.contrasts, context)) if verdict == "supported" else ()
        marks = _marks({INERT: inert, AT_CHANCE: bool(at_chance), SMALLER: smaller, AS_WELL: bool(as_well)})
        lines += _lines(self.also, context, decisive=False)
        return Evidence(verdict, lines, remarks + at_chance + as_well, marks)


@dataclass(frozen=True)
class AllEquivalent:
    """Demands that every contrast is zero up to the margin (two one-sided tests). `given`: effects that must exist
    before their equality, or their sum, means anything. `acting`: (cell, order) that must not be inert: an order
    that does nothing is equal by necessity."""

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
        verdicts = [rules.equivalent(contrast.deciding(context), self.margin, many) for contrast in self.equal]
        if self.given:
            verdicts.append(rules.all_hold([contrast.comparison(context) for contrast in self.given]))
        inert, remarks = _inertness(context, self.acting)
        if inert:
            verdicts.append("inconclusive")
        at_chance = _chance_remarks(self.contrasts, context)
        lines = _lines(self.equal, context) + _lines(self.given, context, family=len(self.given))
        marks = _marks({INERT: inert, AT_CHANCE: bool(at_chance)})
        lines += _lines(self.also, context, decisive=False)
        return Evidence(rules.together(verdicts), lines, remarks + at_chance, marks)


@dataclass(frozen=True)
class AllBelow:
    """Demands that every level (not difference) lies below a bound, or above it if `above` is set."""

    contrasts: tuple[Contrast, ...]
    bound: float
    above: bool = False

    @property
    def rule(self) -> str:
        unit = self.contrasts[0].unit
        bound = f"{100 * self.bound:g} %" if unit == "points" else in_unit(self.bound, unit)
        return f"95 % interval {'above' if self.above else 'below'} {bound}"

    def __call__(self, context: Context) -> Evidence:
        verdicts, sign = [], -1 if self.above else 1
        for contrast in self.contrasts:
            values = {seed: sign * value for seed, value in contrast.quantity.values(context).items()}
            verdicts.append(rules.below(rules.level(values), sign * self.bound, len(self.contrasts)))
        lines = tuple(replace(line, level=True) for line in _lines(self.contrasts, context))
        return Evidence(rules.together(verdicts), lines)


Judge = AllHold | AllEquivalent | AllBelow


@dataclass(frozen=True)
class Claim:
    """Holds a claim: `says` states it in our words, `where` is its place; `experiments` name tables that show it."""

    id: str
    says: str
    where: str
    experiments: tuple[str, ...]
    judge: Judge
    remark: str = ""
    only: tuple[str, ...] = ()  # the only kinds of study that can judge the claim; empty: all that have its cells
    control: bool = False  # the paper has no such comparison: it is counted apart from its claims
    same_as: str = ""  # id of an earlier claim that is the same comparison: the two are counted once
    beside: tuple[Callable[[Context], str], ...] = ()  # sentences that must stand beside the verdict
    remarks: Mapping[str, str] = field(default_factory=dict)  # study → its remark, where `remark` is wrong there

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell for contrast in self.judge.contrasts for cell in contrast.quantity.cells))

    def evidence(self, context: Context) -> Evidence:
        evidence = self.judge(context)
        taught_by = caveat(context.results, self.cells)
        beside = [sentence for make in self.beside if (sentence := make(context))]
        remark = self.remarks.get(context.results.name, self.remark)
        remarks = [remark, *evidence.remarks, *beside, taught_by]
        if self.same_as:
            remarks.append(f"the same comparison as `{self.same_as}`, counted once")
        if evidence.verdict == "not run":
            missing = [cell for cell in self.cells if not context.results.of(cell)]
            remarks.insert(0, f"no finished run of {', '.join(missing)}" if missing else "not measured")
        marks = (*evidence.marks, *beside, *([taught_by] if taught_by and evidence.verdict != "not run" else []))
        return replace(evidence, remarks=tuple(remark for remark in remarks if remark), marks=marks)


@dataclass(frozen=True)
class Judged:
    """Holds a claim and the evidence of one study."""

    claim: Claim
    study: str
    evidence: Evidence

    @property
    def counts(self) -> bool:
        """Return whether it counts among the paper's claims: controls count apart, a second wording not at all."""
        return not self.claim.control and not self.claim.same_as


def judged(results: Results, bench: Bench | None = None) -> tuple[Judged, ...]:
    """Judge every claim that such a study can speak about; a claim whose cells have not run says so."""
    paper = paper_of(results.name)
    measures = paper.measures(results.name)
    context = Context(results, measures, bench or Bench())
    return tuple(Judged(claim, results.name, claim.evidence(context)) for claim in paper.claims_of(measures))


def caveat(results: Results, cells: Sequence[str]) -> str:
    """Return the words beside a verdict on cells that a teacher other than the paper's has taught; else empty."""
    own = paper_of(results.name).teacher
    others: dict[str, str] = {}
    for run in (run for cell in cells for run in results.of(cell).values()):
        name = run.settings["distil"]["teacher"]
        if run.teacher and not name.startswith(CONTROL) and own.lower() not in name:
            # The longest description names the captions' teacher, too.
            others[name] = max(run.teacher, others.get(name, ""), key=len)
    return f"teacher {'; '.join(others.values())}: not {own}" if others else ""


def in_unit(value: float, unit: Unit) -> str:
    """Write a value with its unit; points are shown times 100."""
    if unit in ("points", "points a step"):
        return f"{100 * value:.2f} {unit}"
    return {"degrees": f"{value:.2f}°", "times": f"{value:.2f}×"}.get(unit, f"{value:.4g}")


def _lines(
    contrasts: Sequence[Contrast], context: Context, decisive: bool = True, family: int = 1, deciding: int | None = None
) -> tuple[EvidenceLine, ...]:
    return tuple(
        EvidenceLine(
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
    means = {place: mean for place in acting if (mean := spread(context.results, *place)) is not None}
    remarks = (
        f"order {order} of {cell}: relative spread {mean:.2g}, {'inert' if is_inert(mean) else 'acts'}"
        for (cell, order), mean in means.items()
    )
    return any(map(is_inert, means.values())), tuple(remarks)


def _chance_remarks(contrasts: Sequence[Contrast], context: Context) -> tuple[str, ...]:
    names = dict.fromkeys(name for contrast in contrasts for name in contrast.at_chance(context))
    return tuple(f"{name} decides nothing: no cell is shown to be a point above chance" for name in names)


def _as_well(contrasts: Sequence[Contrast], context: Context) -> Iterator[str]:
    """Yield a sentence for each contrast in which the control without a teacher is not shown to be behind."""
    for contrast in contrasts:
        if contrast.over_control is None:
            continue
        lead = rules.level(contrast.over_control.values(context))
        if lead.low is None or lead.high is None or (lead.shown and lead.mean * contrast.direction > 0):
            continue
        of, control = contrast.over_control.cells
        mean, low, high = (in_unit(value, contrast.unit) for value in (lead.mean, lead.low, lead.high))
        yield f"the control without a teacher may do as well: {of} - {control} is {mean}, 95 % interval {low} to {high}"


def _marks(held: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(mark for mark, holds in held.items() if holds)
