"""The SLURM way with submitit's local executor: same queue, same results."""

from dinorankclip.commands.study import main
from dinorankclip.study import definition
from dinorankclip.study.cells import Cell
from dinorankclip.study.results import Results
from tests.study.studying import FOLDER, tiny


def test_an_array_job_makes_the_same_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = tiny((Cell("clip", "clip"),), seeds=1, epochs=1, experiments=())
    monkeypatch.setitem(definition.STUDIES, "tiny", lambda: study)
    main(["run", "tiny", "--slurm", "--slurm.cluster", "debug"])
    assert sorted(Results.load(FOLDER).of("clip")) == [0]
    assert list((FOLDER / "slurm").iterdir())
