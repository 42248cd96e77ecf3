"""Takes the upper bound of a study's distillation: the linear probes of its teachers themselves.

`dinorankclip study upper-bound NAME` writes teachers.json into the folder of the study; its report and the committed
copy show it as a table beside the Fine-grained Probe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dinorankclip.formatting import MISSING
from dinorankclip.io import write_json
from dinorankclip.types import UserError
from dinorankclip_studies.claim import CONTROL
from dinorankclip_studies.papers import measures_of
from dinorankclip_studies.run_cell import needed_caches
from dinorankclip_studies.runners import CATALOGUE_SETS, make_scenes
from dinorankclip_studies.study import Study
from dinorankclip_studies.study_tables import PlainTable

TEACHERS = "teachers.json"  # in the folder of a study, and in its committed copy
COMMAND = "dinorankclip study upper-bound"


def teachers_of(study: Study) -> list[tuple[str, int | None]]:
    """Return (teacher, size of its images) of all cells that have a teacher, without random weights."""
    specs = ((spec.teacher, spec.input_size) for spec in needed_caches(study.runs()))
    return [spec for spec in dict.fromkeys(specs) if not spec[0].startswith(CONTROL)]


def probe_teachers(study: Study, folder: Path, device: str = "auto") -> list[dict[str, Any]]:
    """Probe every teacher of a study on the sets that its tables probe, and write teachers.json."""
    from dinorankclip.commands.score import locate_sets
    from dinorankclip.data.benchmark_sets import open_set
    from dinorankclip.device import choose
    from dinorankclip.evaluate.teacher_probe import probe_teacher
    from dinorankclip.teachers.registry import open_teacher

    if study.scenes is not None:
        make_scenes(study.scenes)
    measures = measures_of(study.name)
    wanted = dict.fromkeys((measures.fine, *measures.family_sets, measures.coarse))
    places = [place for where in study.sets for place in locate_sets(where, Path(CATALOGUE_SETS))]
    sets = [open_set(place) for place in places if place.name in wanted]
    if not sets:
        raise UserError(f"study {study.name}: none of its sets has {' or '.join(wanted)} to probe")
    probes = []
    for name, size in teachers_of(study):
        teacher = open_teacher(name, size).to(choose(device, "fp32").device)
        probes += [asdict(probe_teacher(teacher, benchmark)) for benchmark in sets]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TEACHERS, probes)
    return probes


def probe_lines(probes: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each probe: `efficientnet-lite0 at 224 px, scenes-fine: 61.2 % (59.8 to 62.5)`."""
    return [
        f"{probe['teacher']} at {probe['size']} px, {probe['set']}: {100 * probe['accuracy']:.1f} % "
        f"({100 * probe['low']:.1f} to {100 * probe['high']:.1f}) of {probe['images']:,} images"
        for probe in probes
    ]


def read_probes(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured; empty before that."""
    path = folder / TEACHERS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def upper_bounds(folder: Path, study: str, best: dict[str, float]) -> list[PlainTable]:
    """Return the table of the teachers' probes. `best`: set → the highest mean accuracy of a cell of the study."""
    rows: list[tuple[str, ...]] = [
        (
            f"{probe['teacher']} at {probe['size']} px", probe["set"], f"{100 * probe['accuracy']:.1f}",
            f"{100 * probe['low']:.1f} to {100 * probe['high']:.1f}", f"{probe['images']:,}",
            f"{100 * best[probe['set']]:.1f}" if probe["set"] in best else MISSING, f"{100 / probe['classes']:.1f}",
        )
        for probe in read_probes(folder)
    ]  # fmt: skip
    note = (
        "The linear probe of the teacher's own summary features, as cells are probed: what a student of this teacher "
        "could know about the set. The best cell is the highest mean over seeds, of all cells. Interval: 95 %, over "
        f"images. `{COMMAND} {study}` measures it."
    )
    headings = ("teacher", "set", "probe, %", "interval", "images", "best cell, %", "chance, %")
    if not rows:
        rows, note = [("not measured", *[MISSING] * (len(headings) - 1))], f"`{COMMAND} {study}` measures it."
    return [PlainTable("upper-bound", "Upper bound: the teacher's own linear probe", headings, tuple(rows), note)]
