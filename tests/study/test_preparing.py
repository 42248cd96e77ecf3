from concurrent.futures import ThreadPoolExecutor

from dinorankclip.study.cells import Cell
from dinorankclip.study.preparing import cache_wishes, make_caches, told_of
from tests.study.studying import tiny

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
    wishes = [str(wish) for wish in cache_wishes(tiny(FULL).runs())]
    assert wishes == [
        "efficientnet-lite0 at 224 px and minilm",
        "efficientnet-lite0 at 128 px and minilm",
        "efficientnet-lite0 at 224 px and minilm, with tokens",
        "efficientnet-lite0 at 224 px",
    ]


def test_each_cache_is_made_once_and_a_failure_is_told(tmp_path):
    runs, made = tiny(FULL).runs(), []

    def make(settings):
        made.append(settings.distil)
        if settings.distil.criterion == "mse":
            raise OSError("no weights")

    with ThreadPoolExecutor(4) as workers:
        for done in [workers.submit(make_caches, tmp_path, runs, make) for _ in range(4)]:
            done.result()
    assert len(made) == len(set(made)) == 4
    told = [told_of(tmp_path, wish) for wish in cache_wishes(runs)]
    assert [one.get("error") for one in told] == [None, None, "OSError: no weights", None]
