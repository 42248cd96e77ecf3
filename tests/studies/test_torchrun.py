"""Several processes inside a cell: the same scores as one process gives."""

import pytest

from dinorankclip_studies.command import main
from dinorankclip_studies.papers.dinorankclip import plans
from dinorankclip_studies.results import Results
from dinorankclip_studies.study import Cell
from tests.studies.studying import tiny


@pytest.mark.long
def test_two_processes_in_a_cell_find_what_one_finds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = tiny((Cell("clip", "clip"),), seeds=1, epochs=1, experiments=())
    monkeypatch.setitem(plans.STUDIES, "tiny", lambda: study)
    main(["run", "tiny", "--folder", "one", "--workers", "1"])
    main(["run", "tiny", "--folder", "two", "--workers", "1", "--processes-per-cell", "2"])
    one, two = (Results.load(folder).of("clip")[0] for folder in ("one", "two"))
    assert one.key == two.key
    assert two.telemetry["loss"] == pytest.approx(one.telemetry["loss"], rel=1e-4)
    assert two.scores["scenes-pairs/cone separation"] == pytest.approx(
        one.scores["scenes-pairs/cone separation"], rel=1e-3
    )
