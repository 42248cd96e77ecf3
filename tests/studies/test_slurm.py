"""The SLURM way with submitit's local executor: same queue, same results."""

from dinorankclip_studies.command import SlurmSettings, gpus_of_a_run, main
from dinorankclip_studies.papers.dinorankclip import plans
from dinorankclip_studies.results import Results
from dinorankclip_studies.study import Cell
from tests.studies.studying import FOLDER, tiny


def test_an_array_job_makes_the_same_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = tiny((Cell("clip", "clip"),), seeds=1, epochs=1, experiments=())
    monkeypatch.setitem(plans.STUDIES, "tiny", lambda: study)
    main(["run", "tiny", "--slurm", "--slurm.cluster", "debug"])
    assert sorted(Results.load(FOLDER).of("clip")) == [0]
    assert list((FOLDER / "slurm").iterdir())


def test_a_cluster_gives_each_run_the_gpus_its_study_is_planned_for():
    planned = plans.STUDIES["cc3m"]().gpus
    cluster = SlurmSettings(submit=True)
    assert gpus_of_a_run(planned, cluster, None) == 8
    assert gpus_of_a_run(planned, cluster, 4) == 4
    assert gpus_of_a_run(planned, cluster, 0) == 0
    assert gpus_of_a_run(planned, SlurmSettings(submit=True, cluster="local"), None) == 0
    assert gpus_of_a_run(planned, SlurmSettings(), None) == 0
    assert gpus_of_a_run(plans.STUDIES["full"]().gpus, cluster, None) == 0
