"""A study goes on from another machine's results, on a SLURM cluster, and with several processes a run."""

import json
from dataclasses import asdict, replace

import pytest

from dinorankclip.config import as_dict
from dinorankclip.types import UserError
from dinorankclip_studies.command import SlurmSettings, gpus_of_a_run, main
from dinorankclip_studies.papers.dinorankclip import plans
from dinorankclip_studies.results import (
    CELLS,
    Results,
    RunRecord,
    collect,
    rates,
    read_record,
    read_tuned,
    write_record,
)
from dinorankclip_studies.run_queue import is_finished
from dinorankclip_studies.runners import adopt_rates, adopt_runs, reopen_runs_without_model
from dinorankclip_studies.study import Cell
from tests.studies.studying import FOLDER, run_tiny, tiny

TUNED = {"clip": {"chosen": 1e-3, "tried": {"0.001": 0.2}}, "rank": {"chosen": 1e-3, "tried": {"0.001": 0.1}}}


def recorded(runs, name="tiny") -> Results:
    found = []
    for run in runs:
        settings, scores = json.loads(json.dumps(as_dict(run.settings))), {"val/mean R@1": 0.1 + run.seed}
        reported = (f"cells/{run.key}", "abc", settings, scores, {"loss": 2.0}, 3.0, 128, 8, {"model": 5})
        found.append(RunRecord(run.cell, run.seed, run.key, *reported))
    return Results(name, tuple(found), TUNED)


def test_records_become_finished_runs_and_come_out_as_they_went_in(tmp_path):
    runs = tiny().runs()
    given = recorded(runs[:3])
    assert adopt_runs(tmp_path, given, runs) == 3
    assert [is_finished(tmp_path, run.key) for run in runs] == [True, True, True, False]
    wanted = [(run.cell, run.seed, run.key) for run in runs]
    assert collect("tiny", "", tmp_path, wanted, TUNED) == given
    assert adopt_runs(tmp_path, given, runs) == 0  # doing it again changes nothing


def test_what_adopted_results_knew_of_chance_is_not_lost(tmp_path):
    runs = tiny().runs()
    given = replace(recorded(runs[:3]), chances={"a/T@1": 0.1})
    adopt_runs(tmp_path, given, runs)
    wanted = [(run.cell, run.seed, run.key) for run in runs]
    assert collect("tiny", "", tmp_path, wanted, TUNED).chances == {"a/T@1": 0.1}


def test_runs_whose_models_pictures_need_are_made_again(tmp_path):
    runs = tiny().runs()
    adopt_runs(tmp_path, recorded(runs), runs)
    (tmp_path / CELLS / runs[1].key / "checkpoints").mkdir()  # the model of rank-2, seed 0, is here
    again = reopen_runs_without_model(tmp_path, runs, ("clip", "rank-2"))
    assert [(run.cell, run.seed) for run in again] == [("clip", 0)]
    assert [run for run in runs if not is_finished(tmp_path, run.key)] == again
    place = tmp_path / CELLS / again[0].key
    earlier = read_record(place)  # counts until the new one is there
    assert earlier.scores == {"val/mean R@1": 0.1} and not list(place.iterdir())
    assert adopt_runs(tmp_path, recorded(runs), runs) == 0 and not is_finished(tmp_path, again[0].key)
    write_record(place, replace(earlier, seconds=9.0))
    assert read_record(place).seconds == 9.0 and not list((tmp_path / "earlier").iterdir())


def test_a_run_of_here_and_one_of_other_settings_stay_as_they_are(tmp_path):
    runs = tiny().runs()
    adopt_runs(tmp_path, recorded(runs[:1]), runs)
    before = read_record(tmp_path / CELLS / runs[0].key)
    other = recorded(tiny(epochs=3).runs())  # other keys
    assert adopt_runs(tmp_path, other, runs) == 0
    newer = replace(recorded(runs[:1]), runs=(replace(recorded(runs[:1]).runs[0], seconds=99.0),))
    assert adopt_runs(tmp_path, newer, runs) == 0
    assert asdict(read_record(tmp_path / CELLS / runs[0].key)) == asdict(before)


def test_rates_are_taken_over_unless_others_were_chosen_here(tmp_path):
    adopt_rates(tiny(), tmp_path / "new", recorded([]))
    assert rates(read_tuned(tmp_path / "new")) == {"clip": 1e-3, "rank": 1e-3}
    other = replace(recorded([]), tuned=TUNED | {"clip": {"chosen": 2e-3, "tried": {}}})
    with pytest.raises(UserError, match="other learning rates"):
        adopt_rates(tiny(), tmp_path / "new", other)
    with pytest.raises(UserError, match="study 'full', not of 'tiny'"):
        adopt_rates(tiny(), tmp_path / "new", recorded([], name="full"))


def test_study_run_adopts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recorded(tiny().runs()).save(tmp_path / "results.json")
    run_tiny("--adopt", "results.json")
    assert "4 finished runs taken over from results.json" in capsys.readouterr().out
    assert len(Results.load(FOLDER).runs) == 4
    with monkeypatch.context() as nobody_works:
        nobody_works.setattr("dinorankclip_studies.runners.run_locally", lambda *args: True)
        with pytest.raises(SystemExit):  # seed 0 of clip is to be made again: its model is pictured
            run_tiny("--models")
    assert "1 runs are made again" in capsys.readouterr().out
    assert len(Results.load(FOLDER).runs) == 4  # and nothing is lost meanwhile
    run_tiny("--models")
    made = Results.load(FOLDER).of("clip")[0]
    assert made.seconds != 3.0 and (FOLDER / made.folder / "checkpoints").is_dir()


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
