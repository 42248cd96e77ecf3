"""Teacher features that runs of a study share: each cache is made once, by the first worker that needs it."""

from concurrent.futures import ThreadPoolExecutor

from dinorankclip.train.distil_setup import cache_spec_of
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import CELLS, RESULT
from dinorankclip_studies.run_cell import cache_is_ready, cache_key, cache_outcome, needed_caches
from dinorankclip_studies.run_queue import lock_run, take_runs
from dinorankclip_studies.study import Cell
from tests.studies.studying import tiny

FULL = (
    Cell("clip", "clip"),
    Cell("full", "dinorankclip"),
    Cell("full-2", "dinorankclip", {"loss.order": 2}),
    Cell("full-128", "dinorankclip", {"distil.teacher_size": 128}),
    Cell("full-mse", "dinorankclip", {"distil.criterion": "mse"}),
    Cell("full-no-text", "dinorankclip", {"distil.branches": "image"}),
    Cell("control", "dinorankclip", {"distil.cache": None}),
)


def test_cells_share_caches():
    wishes = [str(wish) for wish in needed_caches(tiny(FULL).runs())]
    assert wishes == [
        "efficientnet-lite0 at 224 px and minilm",
        "efficientnet-lite0 at 128 px and minilm",
        "efficientnet-lite0 at 224 px and minilm, with tokens",
        "efficientnet-lite0 at 224 px",
    ]


def test_a_study_prepares_what_its_runs_will_look_for():
    for run in STUDIES["full"]().runs():
        prepared = list(needed_caches([run]))
        assert prepared == ([cache_spec_of(run.settings)] if run.settings.distil.cache == "auto" else [])


def test_names_of_caches_stay_what_they_were():
    found = {cache_key(wish): str(wish) for wish in needed_caches(STUDIES["full"]().runs())}
    assert found == {
        "cache-66c45ddc4be0": "efficientnet-lite0 at 224 px and minilm",
        "cache-db62a914fe5b": "random-vit:0 at 112 px and random-text:0",
        "cache-1d8d7a67d7b8": "efficientnet-lite0 at 224 px",
        "cache-5c2781de58e8": "efficientnet-lite0 at 224 px and minilm, with tokens",
        "cache-b9847b512c17": "efficientnet-lite0 at 128 px and minilm",
    }


def test_a_run_whose_cache_somebody_makes_is_passed_over(tmp_path):
    runs = tiny(FULL[:2], seeds=1).runs()
    (wish,) = needed_caches(runs)
    other = lock_run(tmp_path, cache_key(wish))
    taken = []
    for run, _ in take_runs(tmp_path, runs, lambda run: cache_is_ready(tmp_path, run, lambda settings: None)):
        taken.append(run.cell)
        (tmp_path / CELLS / run.key).mkdir(parents=True)
        (tmp_path / CELLS / run.key / RESULT).touch()
        if run.cell == "clip":
            other.release()  # the other worker has gone, without having made it
    assert taken == ["clip", "full"]
    assert cache_outcome(tmp_path, wish)["cache"] == "efficientnet-lite0 at 224 px and minilm"


def test_each_cache_is_made_once_and_a_failure_is_told(tmp_path):
    runs, made = tiny(FULL).runs(), []

    def make(settings):
        made.append(settings.distil)
        if settings.distil.criterion == "mse":
            raise OSError("no weights")

    with ThreadPoolExecutor(4) as workers:
        for _ in range(2):
            list(workers.map(lambda run: cache_is_ready(tmp_path, run, make), runs))
    assert len(made) == len(set(made)) == 4
    assert all(cache_is_ready(tmp_path, run, make) for run in runs)
    outcomes = [cache_outcome(tmp_path, needed) for needed in needed_caches(runs)]
    assert [outcome.get("error") for outcome in outcomes] == [None, None, "OSError: no weights", None]
