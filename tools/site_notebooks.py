"""Turns the notebooks of examples/ into pages of the site: text cells as they are, code in fences, outputs below.

Notebooks are committed without outputs. `python -m tools.run_notebooks --keep FOLDER` stores executed ones; the site
shows their outputs where FOLDER is built/notebooks.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

EXECUTED = Path(os.environ.get("DINORANKCLIP_HOME", "built")) / "notebooks"


def notebook_files(folder: Path) -> dict[str, str | bytes]:
    """Return pages, notebooks to download and pictures by their names on the site."""
    files: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("*.ipynb")):
        executed = EXECUTED / path.name
        source = json.loads(path.read_text(encoding="utf-8"))
        shown = json.loads(executed.read_text(encoding="utf-8")) if executed.is_file() else source
        if [cell["source"] for cell in shown["cells"]] != [cell["source"] for cell in source["cells"]]:
            shown = source  # executed before it was changed
        files[f"notebooks/{path.name}"] = path.read_bytes()
        files[f"notebooks/{path.stem}.md"] = _page(path, shown["cells"], files)
    return files


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
        for at, output in enumerate(cell.get("outputs", ())):
            parts += _output(output, f"notebooks/{path.stem}-{number}-{at}.png", files)
    return "\n".join(parts)


def _output(output: dict[str, Any], picture: str, files: dict[str, str | bytes]) -> list[str]:
    data = output.get("data", {})
    if "image/png" in data:
        files[picture] = base64.b64decode("".join(data["image/png"]))
        return [f"![Output of the cell above]({Path(picture).name})", ""]
    text = "".join(output.get("text", data.get("text/plain", ""))).strip("\n")
    if not text or output.get("name") == "stderr":
        return []
    return ['<div class="notebook-output" markdown>', "", "```text", text, "```", "", "</div>", ""]
