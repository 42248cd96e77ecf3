"""Missing packages are named by one line with the pip command that mends it; the table of extras is pyproject's."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dinorankclip
from dinorankclip.commands.entry import main
from dinorankclip.extras import EXTRAS, MissingPackage, demand_extra, extra_of, naming_extras
from dinorankclip.report.machine_findings import NEEDED_BY, fits, requirement
from dinorankclip.types import UserError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Hides every package but torch, numpy and what torch brings, as in an environment with the core alone.
CORE_ALONE = """
import sys
from dinorankclip.extras import EXTRAS
HIDDEN = {module for extra, modules in EXTRAS.items() if extra != "core" for module in modules} - {"jinja2", "filelock"}
sys.modules |= dict.fromkeys(HIDDEN)
"""


def in_core_alone(code):
    run = [sys.executable, "-c", CORE_ALONE + code]
    return subprocess.run(run, capture_output=True, encoding="utf-8", cwd=ROOT, timeout=600)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_table_is_that_of_pyproject():
    optional = PROJECT["optional-dependencies"]
    stated = {"core": PROJECT["dependencies"]} | {extra: optional[extra] for extra in EXTRAS if extra != "core"}
    for extra, lines in stated.items():
        names = {normal(requirement(line)[0]) for line in lines} - {"dinorankclip"}
        assert {normal(package) for package in EXTRAS[extra].values()} == names, extra
    assert stated["core"] == ["torch>=2.6", "numpy>=1.26"]
    assert set(NEEDED_BY) == {*EXTRAS} - {"core"}


def test_every_extra_brings_what_the_commands_need():
    optional = PROJECT["optional-dependencies"]
    for extra, lines in optional.items():
        if extra not in ("train", "release"):
            assert any(line.startswith("dinorankclip[") for line in lines), extra
    assert set(re.findall(r"[\w-]+", optional["all"][0])) == {"dinorankclip", *EXTRAS} - {"core", "train"}


def test_pinned_versions_are_inside_the_bounds():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    pins = {normal(name): version for name, version in pins.items()}
    lines = [line for lines in PROJECT["optional-dependencies"].values() for line in lines] + PROJECT["dependencies"]
    bounds = {normal(name): bound for name, bound in map(requirement, lines) if name != "dinorankclip"}
    assert {name for name in bounds if name not in pins} == set()
    assert {name: pins[name] for name, bound in bounds.items() if not fits(pins[name], bound)} == {}


def test_open_clip_is_bounded_above_by_the_minor_version_after_the_tested_one():
    (bound,) = [line for line in PROJECT["optional-dependencies"]["train"] if line.startswith("open_clip_torch")]
    pin = re.search(r"^open_clip_torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert bound.endswith(f"<{pin[1]}.{int(pin[2]) + 1}")


@pytest.mark.parametrize(
    ("number", "bounds", "held"),
    [
        ("3.3.0", ">=3.0,<3.4", True),
        ("3.4.0", "<3.4,>=3.0", False),
        ("3.4", "<3.4", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.1", "==2.13.*", True),
        ("2.12", ">=2.6", True),
        ("2.6rc1", ">=2.6", True),
        ("1.0", "!=1.0", False),
        ("9", "", True),
    ],
)
def test_versions_are_compared_as_numbers(number, bounds, held):
    assert fits(number, bounds) == held


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)  # another test may have imported it
    with pytest.raises(MissingPackage) as error, naming_extras("reading Parquet"):
        importlib.import_module("pyarrow.parquet")
    assert str(error.value) == "reading Parquet needs pyarrow: pip install 'dinorankclip[parquet]'"
    assert isinstance(error.value, UserError) and isinstance(error.value, ImportError)
    with pytest.raises(MissingPackage, match=r"^x needs pyarrow: pip install 'dinorankclip\[parquet\]'$"):
        demand_extra("parquet", "x")


def test_the_wider_extra_is_named_where_it_is_needed():
    for name, line in (("tyro", "serve"), ("uvicorn", "serve"), ("scipy", "studies")):
        with pytest.raises(MissingPackage, match=rf"dinorankclip\[{line}\]"), naming_extras("it", "serve"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def test_a_package_of_another_version_is_to_be_upgraded():
    with pytest.raises(MissingPackage) as error, naming_extras("hf:model"):
        importlib.import_module("timm.no_such_module")
    assert re.fullmatch(
        r"hf:model needs another version of timm than [\d.]+ \(No module named 'timm.no_such_module'\): "
        r"pip install -U 'dinorankclip\[train\]'",
        str(error.value),
    )
    with pytest.raises(MissingPackage, match="another version of tqdm"), naming_extras("it"):
        from tqdm import no_such_name  # noqa: F401


def test_imports_of_ours_stay_errors_of_ours():
    for module in ("dinorankclip.no_such_module", "no_such_package"):
        with pytest.raises(ModuleNotFoundError, match="No module named") as error, naming_extras("this"):
            importlib.import_module(module)
        assert not isinstance(error.value, UserError)
    assert extra_of("starlette.types") == "serve" and extra_of("torch.nn") == "core" and extra_of("json") is None


def test_the_core_alone_is_enough_for_every_loss():
    code = """
import torch
from dinorankclip import RankingLoss
from dinorankclip import losses
for name in losses.__all__:
    getattr(losses, name)
loss = RankingLoss(8, order=3)
loss.set_progress(1, 2, 64)
loss(torch.randn(4, 8, requires_grad=True), torch.randn(4, 8), torch.tensor(9.0)).total.backward()
assert all(sys.modules[name] is None for name in HIDDEN)
try:
    from dinorankclip import load_model
except ImportError as error:
    print(error)
"""
    ended = in_core_alone(code)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(
        r"dinorankclip\.load_model needs tyro, torchvision, open_clip_torch and \d+ more packages: "
        r"pip install 'dinorankclip\[train\]'\n",
        ended.stdout,
    )


@pytest.mark.parametrize(("verb", "extra"), [("train", "train"), ("score", "train"), ("explore", "serve")])
def test_a_command_with_the_core_alone_is_one_line(verb, extra):
    ended = in_core_alone(f"from dinorankclip.commands.entry import main; main(['{verb}', '--help'])")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith(f"error: dinorankclip {verb} needs tyro, ")
    assert ended.stderr.endswith(f": pip install 'dinorankclip[{extra}]'\n") and ended.stderr.count("\n") == 1


def test_help_and_doctor_answer_with_the_core_alone():
    ended = in_core_alone("from dinorankclip.commands.entry import main; main(['--help']); main(['doctor'])")
    assert ended.returncode == 0, ended.stderr
    assert "usage: dinorankclip VERB" in ended.stdout
    assert "note  the extra train is not installed; it is needed for the commands train, score, search" in ended.stdout
    assert "→ pip install 'dinorankclip[train]'" in ended.stdout and "no problems found" in ended.stdout


def test_a_terminal_without_arrows_gets_other_characters():
    run = [sys.executable, "-c", "from dinorankclip.commands.entry import main; main(['--help'])"]
    ended = subprocess.run(run, capture_output=True, cwd=ROOT, env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert ended.returncode == 0 and b"usage: dinorankclip VERB ?" in ended.stdout


def test_a_package_that_vanishes_inside_a_command_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit) as end:
        main(["doctor", "nowhere", "--samples", "1"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: dinorankclip doctor needs tyro: pip install 'dinorankclip[train]'\n"


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert cited[1] == dinorankclip.__version__  # a copy for people who cite
