"""Methods, teachers, readers and scorers from other packages and from notebooks; broken ones harm nothing else."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import dinorankclip
from dinorankclip import io, plugins
from dinorankclip.data import readers
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.python_pairs import PythonPairs
from dinorankclip.evaluate import suite
from dinorankclip.losses.objective import Inputs
from dinorankclip.methods import REGISTRY, MethodTraits, register_method, traits_of, traits_of_stored
from dinorankclip.recipes import check_recipe
from dinorankclip.teachers import registry as teachers
from dinorankclip.types import Embeddings, Progress, UserError
from tests.api.making import TINY, pairs
from tests.plugged import EXAMPLE, dist_info, example_path


@pytest.fixture(autouse=True)
def as_before(tmp_path, monkeypatch):
    """Forget what a test registers and installs."""
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")
    for registry in (REGISTRY, teachers.REGISTRY, readers.REGISTRY, suite.REGISTRY):
        for name in ("_registered", "_loaded", "_reported"):
            monkeypatch.setattr(registry, name, type(getattr(registry, name))())
    plugins.forget_installed()
    yield
    monkeypatch.undo()
    plugins.forget_installed()


@pytest.fixture
def example(tmp_path, monkeypatch):
    for folder in example_path(tmp_path / "installed"):
        monkeypatch.syspath_prepend(folder)
    plugins.forget_installed()


def test_the_example_adds_a_method_and_a_teacher(example):
    assert REGISTRY.names()[-1] == "margin" and REGISTRY.origin("margin") == "dinorankclip-colour-plugin 0.1.0"
    assert traits_of("margin").terms == ("contrastive", "margin") and traits_of("clip").terms == ("contrastive",)
    teacher = teachers.open_teacher("colour-grid", 56)
    features = teacher.dense(torch.zeros(2, 3, 56, 56, dtype=torch.uint8))
    assert features.tokens.shape == (2, 49, 6) and features.summary.shape == (2, 24)
    assert torch.allclose(features.tokens[..., :3], torch.tensor(-2.0)) and not features.tokens[..., 3:].any()
    assert "colour-grid[:]" in teachers.usages("image")


def test_the_margin_of_the_example_by_hand(example):
    from colour_plugin.loss import margin

    image = torch.eye(3)
    text = torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 1]]), dim=1)
    inputs = Inputs(Embeddings({"image": image, "text": text}), torch.tensor(1.0), Progress(0, 1, 1), False, {})
    values, report = margin(None, inputs)
    # Right: 1, 1, √½. Image 1 meets text 2 at √½, text 2 meets image 1 at √½: both within 0.2 of a right match.
    half = 0.5**0.5
    by_hand = [0, max(0, 0.2 + half - 1) / 2, (max(0, 0.2 + 0 - half) + 0.2) / 2]
    assert values["margin"].item() == pytest.approx(sum(by_hand) / 3) and report["violated"] == pytest.approx(1 / 3)


def test_the_example_is_short():
    files = [*(EXAMPLE / "colour_plugin").glob("*.py"), EXAMPLE / "colour_plugin" / "study.toml"]
    assert {file.name: len(file.read_text().splitlines()) <= 40 for file in files} == dict.fromkeys(
        ("__init__.py", "loss.py", "teacher.py", "study.toml"), True
    )


def test_a_broken_plugin_is_named_and_the_others_work(example, tmp_path, monkeypatch, caplog):
    groups = {
        "dinorankclip.methods": {"torn": "no_such_module:METHOD", "wrong": "json:dumps", "clip": "json:loads"},
        "dinorankclip.teachers": {"torn-teacher": "no_such_module:T"},
        "dinorankclip.scorers": {"torn-scorer": "json:dumps"},
    }
    monkeypatch.syspath_prepend(dist_info(tmp_path / "torn", "torn-plugin", "2.0", groups))
    plugins.forget_installed()
    with pytest.raises(UserError) as error:
        traits_of("torn")
    assert str(error.value) == (
        "the method 'torn' of the plug-in torn-plugin 2.0 cannot be loaded: ModuleNotFoundError: No module named "
        "'no_such_module'"
    )
    with pytest.raises(UserError, match="method 'wrong' must be a MethodTraits, not function"):
        traits_of("wrong")
    assert traits_of("margin").own_terms and traits_of("clip").words == "contrastive loss (CLIP)"
    assert traits_of_stored("torn").words == "torn"
    assert "torn-plugin 2.0 has a method 'clip', which is built in; it is left out" in caplog.text
    assert [kind.name for kind in teachers.kinds_of("image")][-1] == "colour-grid"
    assert len(suite.all_scorers()) == 6 and len(suite.all_scorers()) == 6
    assert caplog.text.count("'torn-teacher' of the plug-in torn-plugin 2.0") == 1
    assert caplog.text.count("'torn-scorer' of the plug-in torn-plugin 2.0") == 1


def test_nothing_is_loaded_or_looked_for_before_it_is_used():
    code = (
        "import sys, dinorankclip; from dinorankclip import plugins; from dinorankclip.commands import train; "
        "train._defaults(['--method', 'rank']); "
        "print('torch' in sys.modules, plugins._entry_points.cache_info().currsize)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False 0\n"


def test_a_method_of_a_notebook_trains_resumes_and_is_recorded(tmp_path):
    def pull(objective, inputs):
        return {"pull": 0.1 * (1 - (inputs.image * inputs.text).sum(1)[inputs.own]).mean()}, {}

    register_method("pull", MethodTraits("a pull", ("contrastive", "pull"), fixed_order=0, own_terms={"pull": pull}))
    with pytest.raises(UserError, match="method 'clip' is built in"):
        register_method("clip", MethodTraits("mine"))
    with pytest.raises(UserError, match="method 'x' must be a MethodTraits, not int"):
        register_method("x", 5)
    with pytest.raises(UserError, match="--recipe aligned is for"):
        check_recipe("aligned", "pull")
    register_method("pull-aligned", MethodTraits("a pull", recipes=("aligned",), fixed_order=0))
    check_recipe("aligned", "pull-aligned")
    given = TINY | {"method": "pull"}
    run = dinorankclip.train(
        given, data=pairs(), run=tmp_path / "run", callbacks=[lambda event: event.step == 2 and event.stop()]
    )
    environment = json.loads((run.folder / "environment.json").read_text())
    assert not run.finished and environment["plugins"] == {"method pull": "registered in Python"}
    run = dinorankclip.train(given, data=pairs(), run=tmp_path / "run")
    assert run.finished and all("loss/pull" in line for line in run.metrics() if "loss" in line)
    REGISTRY._registered.clear()  # another program, without the plug-in
    with pytest.raises(UserError, match=r"--method pull of the plug-in registered in Python, which is not installed"):
        dinorankclip.train(run.folder / "config.json", data=pairs(), run=run.folder)
    assert run.model("cpu").dim > 0 and dinorankclip.train.__name__ == "dinorankclip.train"


def test_a_method_with_an_unknown_term_is_refused(tmp_path):
    register_method("odd", MethodTraits("odd", ("contrastive", "nowhere"), fixed_order=0))
    with pytest.raises(UserError, match="term 'nowhere' is unknown: it is none of contrastive, sigmoid"):
        dinorankclip.train(TINY | {"method": "odd"}, data=pairs(), run=tmp_path / "run")


def test_a_reader_opens_its_own_data():
    dinorankclip.register_reader("numbers", lambda argument, reading: PythonPairs(pairs(int(argument))))
    assert len(open_pairs("numbers:20", split="all")) == 20
    dinorankclip.register_reader("parts", lambda argument, reading: {"train": lambda: 1, "exam": lambda: 2})
    with pytest.raises(UserError, match="reader 'parts' must give some of train, val, test, all"):
        open_pairs("parts:")
    with pytest.raises(UserError, match="there is no numbrs:20"):
        open_pairs("numbrs:20")
    with pytest.raises(UserError, match="must be a function of"):
        dinorankclip.register_reader("seven", 7)


def test_a_scorer_joins_the_others():
    class Count:
        name, version = "count of images", 1

        def applies(self, embedded):
            return True

        def __call__(self, embedded):
            yield suite.Score("images", len(embedded.indices()), 1)

    dinorankclip.register_scorer(Count())
    assert suite.all_scorers()[-1].name == "count of images"
    with pytest.raises(UserError, match=r"scorer 'half' must have what `Scorer`.*it lacks version, applies, __call__"):
        dinorankclip.register_scorer(SimpleNamespace(name="half"))


def test_the_command_knows_an_installed_method_and_says_when_it_is_missing(tmp_path):
    def words(*flags, path=()):
        env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", ""), *sys.path])}
        command = [sys.executable, "-m", "dinorankclip", "train", *flags]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)

    run = tmp_path / "run"
    run.mkdir()
    (run / "environment.json").write_text('{"plugins": {"method margin": "dinorankclip-colour-plugin 0.1.0"}}')
    done = words("--method", "margin", "--run", str(run))
    assert done.returncode == 2 and "--method margin of the plug-in dinorankclip-colour-plugin 0.1.0" in done.stderr
    done = words("--method", "margin")
    assert done.returncode == 2 and "--method margin: there are clip" in done.stderr
    done = words("--method", "margin", "--data", "none.csv", path=example_path(tmp_path / "installed"))
    assert done.returncode == 2 and "there is no none.csv" in done.stderr
