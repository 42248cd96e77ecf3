"""Notebooks are committed without outputs, say how to make them longer, and use settings that exist.

`make notebooks` executes them (tools/run_notebooks.py); that takes about two minutes and is no part of this suite.
"""

import ast
import json
from pathlib import Path

import pytest

from dinorankclip.config import TrainSettings
from tools.site_notebooks import notebook_files

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path, kind):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_four():
    assert [path.stem for path in NOTEBOOKS] == [
        "fair_comparison",
        "look_inside",
        "loss_in_your_loop",
        "model_from_photos",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean_and_small(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert path.stat().st_size < 20_000 and notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert cells(path, "markdown")[0].startswith("# ") and any(
        "**Longer.**" in text for text in cells(path, "markdown")
    )
    for text in cells(path, "code"):
        ast.parse(text)


def test_settings_of_the_notebooks_exist(monkeypatch):
    """`train` is called with names of settings, at the top and in groups."""
    found = 0
    for path in NOTEBOOKS:
        for call in [n for text in cells(path, "code") for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]:
            if getattr(call.func, "id", "") != "train":
                continue
            for keyword in call.keywords:
                if keyword.arg is None:
                    continue
                settings = getattr(TrainSettings(), keyword.arg)
                if isinstance(keyword.value, ast.Dict):
                    assert all(hasattr(settings, key.value) for key in keyword.value.keys)
                    found += len(keyword.value.keys)
    assert found >= 8


def test_a_notebook_becomes_a_page_with_its_outputs(tmp_path, monkeypatch):
    code = {"cell_type": "code", "source": ["print(1)"], "outputs": []}
    text = {"cell_type": "markdown", "source": ["# Title\n", "words"]}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [text, code]}))
    monkeypatch.setattr("tools.site_notebooks.EXECUTED", tmp_path / "executed")
    files = notebook_files(tmp_path)
    assert (
        set(files) == {"notebooks/a.md", "notebooks/a.ipynb"} and "```python\nprint(1)\n```" in files["notebooks/a.md"]
    )
    outputs = [{"name": "stdout", "text": ["1\n"]}, {"data": {"image/png": "AAAA"}}]
    (tmp_path / "executed").mkdir()
    (tmp_path / "executed" / "a.ipynb").write_text(json.dumps({"cells": [text, code | {"outputs": outputs}]}))
    files = notebook_files(tmp_path)
    assert "```text\n1\n```" in files["notebooks/a.md"] and files["notebooks/a-1-1.png"] == b"\0\0\0"
    changed = {"cells": [text, code | {"source": ["print(2)"]}]}
    (tmp_path / "a.ipynb").write_text(json.dumps(changed))
    assert "```text" not in notebook_files(tmp_path)["notebooks/a.md"]  # outputs of other cells are not shown
