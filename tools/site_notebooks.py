"""Turns the notebooks of examples/ into pages of the site: text cells as they are, code in fences, outputs below.

Notebooks are committed without outputs. `python -m tools.run_notebooks --keep FOLDER` stores executed ones; the site
shows their outputs where FOLDER is built/notebooks.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXECUTED = Path(os.environ.get("DINORANKCLIP_HOME", "built")) / "notebooks"


def notebook_files(folder: Path) -> dict[str, str | bytes]:
    """Return pages, notebooks to download and pictures by their names on the site."""
    files: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("*.ipynb")):
        executed = EXECUTED / path.name
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        if executed.is_file():
            cells = _with_outputs(cells, json.loads(executed.read_text(encoding="utf-8"))["cells"])
        files[f"notebooks/{path.name}"] = path.read_bytes()
        files[f"notebooks/{path.stem}.md"] = _page(path, cells, files)
    return files


def _with_outputs(cells: list[dict[str, Any]], executed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells with the outputs of an execution, unless it was one of other code."""
    done = [cell for cell in executed if cell["cell_type"] == "code"]
    asked = [cell for cell in cells if cell["cell_type"] == "code"]
    if ["".join(cell["source"]) for cell in done] != ["".join(cell["source"]) for cell in asked]:
        return cells
    outputs = iter(done)
    return [cell | {"outputs": next(outputs)["outputs"]} if cell["cell_type"] == "code" else cell for cell in cells]


def _page(path: Path, cells: list[dict[str, Any]], files: dict[str, str | bytes]) -> str:
    parts: list[str] = []
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts += [text, ""]
            if number == 0:
                parts += [f"[Download this notebook]({path.name}){{ download }}. CI executes it.", ""]
            continue
        parts += ["```python", text, "```", ""]
        for at, output in enumerate(_joined(cell.get("outputs", ()))):
            parts += _output(output, f"notebooks/{path.stem}-{number}-{at}.png", files)
    return "\n".join(parts)


def _joined(outputs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join what was printed in several pieces."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if "text" in output and "text" in last and last.get("name") == output.get("name"):
            last["text"] = [*last["text"], *output["text"]]
        else:
            joined.append(dict(output))
    return joined


def _output(output: dict[str, Any], picture: str, files: dict[str, str | bytes]) -> list[str]:
    data = output.get("data", {})
    if "image/png" in data:
        files[picture] = base64.b64decode("".join(data["image/png"]))
        return [f"![Output of the cell above]({Path(picture).name})", ""]
    text = "".join(output.get("text", data.get("text/plain", ""))).strip("\n")
    if not text or output.get("name") == "stderr":
        return []
    return ['<div class="notebook-output" markdown>', "", "```text", text, "```", "", "</div>", ""]
