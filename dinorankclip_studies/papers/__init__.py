"""Collects the papers whose claims the studies measure. Each paper is a folder with one `Paper` object.

paper_data.py    numbers that a paper prints, score names by kind of study
claims_file.py   reads claims.toml

A paper's folder holds data: paper_values.json, measures.toml, cells.toml, tables.toml, claims.toml,
hyperparameters.toml (departures.py reads it), contradictions.md;
and Python for computed parts: plans.py (studies, claims), paper_tables.py, extra_tables.py, figures. Its
`__init__.py` says `PAPER = Paper(__name__, …)` and lists the figures. To add a paper, add a folder, and its name to
`PAPERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.plugins import Registry
from dinorankclip.types import UserError
from dinorankclip_studies.papers.paper_data import Measures, PaperValues, load_measures

if TYPE_CHECKING:  # these modules import this one
    from dinorankclip.report.figures import Drawn
    from dinorankclip_studies.claim import Claim
    from dinorankclip_studies.material import StudyMaterial
    from dinorankclip_studies.study import Study
    from dinorankclip_studies.study_tables import PlainTable

PAPERS = ("dinorankclip",)


class Paper:
    """Describes one paper. Its Python modules are imported when they are first used, so that `--help` imports no torch.

    teacher      the paper's teacher, as in the names of timm; results of another teacher carry a caveat
    main_cells   cells that a summary names: the baseline first, the paper's method last
    judging      studies whose verdicts are in the docs, in the order of the page
    at_scale     the study at the paper's own scale
    cost         the table of claims that only a bench measures
    """

    own = False  # True: no paper, but a study of one file (own_study.py)

    def __init__(
        self,
        package: str,
        teacher: str,
        main_cells: tuple[str, ...],
        judging: tuple[str, ...],
        at_scale: str,
        cost: str,
    ) -> None:
        self.package, self.teacher, self.main_cells = package, teacher, main_cells
        self.judging, self.at_scale, self.cost = judging, at_scale, cost
        self.folder = Path(__file__).parent / package.rpartition(".")[2]

    def _module(self, name: str) -> Any:
        return import_module(f"{self.package}.{name}")

    @cached_property
    def values(self) -> PaperValues:
        return PaperValues(self.folder / "paper_values.json")

    @cached_property
    def kinds(self) -> dict[str, Measures]:
        """Return the measures of each kind of study."""
        return load_measures(self.folder / "measures.toml")

    def measures(self, study: str) -> Measures:
        """Return the measures of a study; a study that no kind lists gets those of the first kind."""
        first = next(iter(self.kinds.values()))
        return next((kind for kind in self.kinds.values() if study in kind.studies), first)

    @property
    def contradictions(self) -> str:
        """Return Markdown on the places where the paper contradicts itself, under the label of its numbers."""
        return (self.folder / "contradictions.md").read_text(encoding="utf-8")

    @property
    def studies(self) -> dict[str, Callable[..., Study]]:
        return self._module("plans").STUDIES

    @property
    def pictured(self) -> tuple[str, ...]:
        """Return the cells whose models (of seed 0) the figures and the cost tables of a report open."""
        return self._module("plans").PICTURED

    @property
    def profile(self) -> Mapping[str, tuple[str, ...]]:
        """Return rows of the paper's compute profile, each with the tables whose runs it stands for."""
        return self._module("plans").PROFILE

    @property
    def claims(self) -> tuple[Claim, ...]:
        return self._module("plans").CLAIMS

    def claims_of(self, measures: Measures) -> tuple[Claim, ...]:
        """Return the claims that a kind of study can judge."""
        return self._module("plans").claims_of(measures)

    def difference_tables(self, material: StudyMaterial) -> list[PlainTable]:
        return self._module("extra_tables").paired_differences(material)

    def named_tables(self, material: StudyMaterial) -> list[PlainTable]:
        return self._module("extra_tables").named_tables(material)

    def cost_tables(self, material: StudyMaterial) -> list[PlainTable]:
        return self._module("extra_tables").cost_tables(material)

    def paper_only(self, material: StudyMaterial) -> tuple[str, list[PlainTable]]:
        """Return the values that no table of the study shows: a note, and their tables."""
        return self._module("extra_tables").paper_only(material)

    def figures(self, material: StudyMaterial) -> dict[tuple[str, str], Callable[[], Drawn]]:
        """Return (name, title) → a function that draws the figure, in the order of the report."""
        return import_module(self.package).figure_makers(material)


def papers() -> list[Paper]:
    return [import_module(f"{__name__}.{name}").PAPER for name in PAPERS]


opened: dict[str, Paper] = {}  # studies of files that this process has opened, by name


def _path(name: str, file: Any) -> Path:
    """Return the path of a plugged-in study's file."""
    found = Path(str(file() if callable(file) else file))
    if not found.is_file():
        raise UserError(f"study {name!r} must be the path of its TOML file, and there is no {found}")
    return found


REGISTRY: Registry[Path] = Registry("studies", "study", {}, _path)


def register_study(path: str | Path) -> str:
    """Make the study of a file known in this process, and return its name."""
    from dinorankclip_studies.study_file import read_study_file

    name = read_study_file(path).study.name
    REGISTRY.register(name, Path(path))
    return name


def _plugged_in(name: str, *numbers: Any) -> Study:
    from dinorankclip_studies.own_study import open_study

    path = REGISTRY.get(name)
    assert path is not None, "its name was listed"
    study = open_study(path, *numbers)
    if study.name != name:
        raise UserError(f"{path} is plugged in as study {name!r}, and calls itself {study.name!r}")
    return study


def all_studies() -> dict[str, Callable[..., Study]]:
    """Return the functions that make all studies, by name; they may be given `Numbers`. Studies are those of papers,
    those that are plugged in, and those whose files this process has opened."""
    plugged = {name: partial(_plugged_in, name) for name in REGISTRY.names()}
    files = {name: own.studies[name] for name, own in opened.items()}
    return {**plugged, **files, **{name: study for paper in papers() for name, study in paper.studies.items()}}


def paper_of(study: str) -> Paper:
    """Return the paper that a study belongs to, or the study itself if a file defines it; an unknown study gets the
    first paper."""
    if study in opened:
        return opened[study]
    known = papers()
    return next((paper for paper in known if study in paper.studies), known[0])


def measures_of(study: str) -> Measures:
    return paper_of(study).measures(study)
