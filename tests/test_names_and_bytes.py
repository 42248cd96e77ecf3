"""Names and bytes that files elsewhere depend on stay as they are: parameters, keys of studies' runs, scenes, tables.

`python -m tests.test_names_and_bytes` records them anew, which is right only after a change that is meant to change
them: stored models, finished studies and records of results belong to the old ones.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.command_line import ROOT, run_all
from tests.golden_curves import FILES, cache_command, train_command

HIGHEST_ORDER = "5"
COUNTS = {"train": 6, "val": 3, "test": 4, "kinds_train": 6, "kinds_test": 6, "fine_train": 6, "fine_test": 6}


def studies() -> dict[str, Any]:
    """Return the named studies; this function alone knows in which module they are."""
    from dinorankclip_studies.papers.dinorankclip.plans import STUDIES

    return {name: define() for name, define in STUDIES.items()}


def draw_scenes(folder: Path) -> Path:
    """Make a few scenes of each kind of set, fewer than `data make` can be asked for; this function alone knows the
    module that draws them."""
    from dinorankclip.data.scenes.make import make_scenes

    return make_scenes(folder, seed=0, size=64, workers=1, **COUNTS)


def parameter_names(folder: Path) -> dict[str, list]:
    """Return names, types and shapes of all stored tensors of a full model and of its loss at the highest order."""
    order = ("--loss.order", HIGHEST_ORDER, "--budget.epochs", "1")
    flags = ("--method", "dinorankclip", "--distil.cache", "cache", *order)
    run_all([cache_command(), train_command("run", *flags)], folder)
    tensors = {}
    for name in ("model", "training"):
        with safe_open(folder / "run" / "checkpoints" / "last" / f"{name}.safetensors", "pt") as file:
            for entry in sorted(file.keys()):
                if not entry.startswith("random/"):
                    stored = file.get_slice(entry)
                    tensors[f"{name}: {entry}"] = [stored.get_dtype(), stored.get_shape()]
    return tensors


def cell_keys(_: Path) -> dict[str, dict[str, str]]:
    """Return the key of each run by study, cell and seed; runs that look for a learning rate have their rate, too."""
    keys = {}
    for name, study in studies().items():
        runs = {f"{run.cell}, seed {run.seed}": run.key for run in study.runs()}
        tuning = {f"{run.cell}, seed {run.seed}, rate {run.settings.optim.lr}": run.key for run in study.tuning()}
        keys[name] = runs | tuning
    return keys


def scene_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a small set of scenes."""
    made = draw_scenes(folder / "scenes")
    return hashes((path for path in made.rglob("*") if path.is_file()), made)


def study_tables(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each table, and of the verdicts, that `report` makes of the full study's results."""
    (folder / "study").mkdir()
    shutil.copyfile(ROOT / "docs" / "study" / "full" / "results.json", folder / "study" / "results.json")
    run_all([["report", "study", "--out", "written", "--bench", "none"]], folder)
    written = folder / "written"
    return hashes([*(written / "tables").iterdir(), written / "claims.md"], written)


def hashes(files: Iterable[Path], root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


RECORDS = {
    "parameter_names.json": parameter_names,
    "cell_keys.json": cell_keys,
    "scene_hashes.json": scene_hashes,
    "study_tables.json": study_tables,
}


def in_lines(record: dict[str, Any]) -> str:
    """Write JSON with one line for each entry of the innermost objects."""
    lines = []
    for name, value in record.items():
        nested = isinstance(value, dict)
        text = "{\n" + _entries(value, "  ") + "\n }" if nested else json.dumps(value)
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entries(value: dict[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(one)}" for name, one in value.items())


@pytest.mark.parametrize("name", RECORDS)
def test_names_and_bytes_are_those_on_record(name, tmp_path):
    expected = json.loads((FILES / name).read_text())
    assert RECORDS[name](tmp_path) == expected


def test_the_records_cover_what_they_should():
    stored = {name: json.loads((FILES / name).read_text()) for name in RECORDS}
    parts = ("trunk", "image_student", "text_student", "image_fusion", "text_fusion")
    assert all(any(name.startswith(f"model: {part}.") for name in stored["parameter_names.json"]) for part in parts)
    assert any(name.startswith("training: objective/ranking") for name in stored["parameter_names.json"])
    assert set(stored["cell_keys.json"]) == {"small", "full", "tuned", "flickr8k", "cc3m"}
    assert {name.split("/")[0] for name in stored["scene_hashes.json"]} >= {"pairs", "kinds", "fine", "scenes.json"}


if __name__ == "__main__":
    for name, record in RECORDS.items():
        with tempfile.TemporaryDirectory() as scratch:
            (FILES / name).write_text(in_lines(record(Path(scratch))))
