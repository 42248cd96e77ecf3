"""Makes a study file usable wherever a study of a paper is: it has claims and tables, and no printed values.

The folder of such a study keeps the file (`study.toml`), so that its report needs nothing else, and the dates at which
the plan was first seen and changed (`plans.json`): a reader can tell claims made before the runs from later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.checked_files import read_json
from dinorankclip.io import digest, write_json, write_text
from dinorankclip.types import UserError
from dinorankclip_studies.papers import Paper, papers
from dinorankclip_studies.papers import opened as opened_studies
from dinorankclip_studies.papers.paper_data import Measures
from dinorankclip_studies.study import Numbers, Study
from dinorankclip_studies.study_file import PlannedPower, StudyFile, read_study_file

if TYPE_CHECKING:
    from dinorankclip.report.figures import Drawn
    from dinorankclip_studies.claim import Claim
    from dinorankclip_studies.material import StudyMaterial
    from dinorankclip_studies.study_tables import PlainTable

FILE, PLANS = "study.toml", "plans.json"  # in the folder of a study


class OwnStudy(Paper):
    """Stands in the place of a paper for a study that one file defines."""

    own = True

    def __init__(self, file: StudyFile) -> None:
        cells = tuple(cell.name for cell in file.study.cells)
        super().__init__("", "", (cells[0], cells[-1]), (), "", "")
        self.file = file

    @property
    def power(self) -> tuple[PlannedPower, ...]:
        return self.file.power

    def measures(self, study: str) -> Measures:
        """Return measures that name no set: scores of an own study have their full names."""
        sets: dict[str, Any] = {
            "retrieval": "val",
            "zero_shot": "",
            "shift_base": "",
            "fine": "",
            "coarse": "",
            "renditions": (),
        }
        return Measures("own", (study,), **sets, zero_shot_kinds=1, base_kinds=1, rendition_kinds=(1,), graded=False)

    @property
    def contradictions(self) -> str:
        return ""

    @property
    def studies(self) -> dict[str, Callable[..., Study]]:
        return {self.file.study.name: partial(open_study, Path(self.file.study.file))}

    @property
    def pictured(self) -> tuple[str, ...]:
        return ()

    @property
    def profile(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    @property
    def claims(self) -> tuple[Claim, ...]:
        return self.file.claims

    def claims_of(self, measures: Measures) -> tuple[Claim, ...]:
        return self.file.claims

    def difference_tables(self, material: StudyMaterial) -> list[PlainTable]:
        return []

    def named_tables(self, material: StudyMaterial) -> list[PlainTable]:
        return []

    def cost_tables(self, material: StudyMaterial) -> list[PlainTable]:
        return []

    def paper_only(self, material: StudyMaterial) -> tuple[str, list[PlainTable]]:
        return "", []

    def figures(self, material: StudyMaterial) -> dict[tuple[str, str], Callable[[], Drawn]]:
        return {}


def open_study(path: Path, numbers: Numbers = Numbers()) -> Study:  # noqa: B008 (frozen)
    """Open the study of a file and make it known by its name."""
    file = read_study_file(path, numbers)
    name = file.study.name
    if any(name in paper.studies for paper in papers()):
        raise UserError(f"{path}: a study called {name!r} is built in; choose another name")
    opened_studies[name] = OwnStudy(file)
    return file.study


def power_lines(name: str) -> list[str]:
    """Return a line about each claim of an own study: what its seeds can show."""
    own = opened_studies.get(name)
    return [f"  {planned.words()}" for planned in own.power] if isinstance(own, OwnStudy) else []


def remember_plan(name: str, folder: Path, finished: int) -> None:
    """Keep the file in the study's folder, and the date of every plan with the number of runs that were finished."""
    own = opened_studies.get(name)
    if not isinstance(own, OwnStudy):
        return
    folder.mkdir(parents=True, exist_ok=True)
    plans, identity = plans_of(folder), digest(own.file.text)[:12]
    if not plans or plans[-1]["plan"] != identity:
        plans.append({"plan": identity, "date": time.strftime("%Y-%m-%d %H:%M:%S"), "finished_runs": finished})
        write_json(folder / PLANS, plans)
    write_text(folder / FILE, own.file.text)


def plans_of(folder: Path) -> list[dict[str, Any]]:
    return read_json(folder / PLANS) if (folder / PLANS).is_file() else []


def when_planned(folder: Path) -> str:
    """Return a sentence that tells if the plan is older than every run."""
    plans = plans_of(folder)
    if not plans:
        return "It is not known when this plan was made."
    later = [plan for plan in plans if plan["finished_runs"]]
    if not later:
        return f"The plan was written before the first run had finished ({plans[-1]['date']})."
    runs = ", ".join(f"{plan['date']} ({plan['finished_runs']} runs were finished)" for plan in later)
    return f"The plan was CHANGED after runs had finished: {runs}. Claims may have been chosen by their results."
