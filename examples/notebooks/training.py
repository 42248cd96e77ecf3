"""`train` for the notebooks, with the settings as keywords: train(method="clip", budget={"steps": 50}, run="x").

It calls what the command `dinorankclip train` calls, in this process and without its progress bars.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip import load_model
from dinorankclip.commands.report import write_run
from dinorankclip.commands.train import parse, run
from dinorankclip.run_files import read_metrics, stored_scores


@dataclass(frozen=True)
class TrainedRun:
    """Holds a finished run: its folder, and its held-out scores as shares."""

    folder: Path
    scores: dict[str, float]

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def model(self) -> Any:
        return load_model(self.folder)

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder)


def train(**settings: Any) -> TrainedRun:
    """Train to the end, or resume; groups of settings are mappings: budget={"core_seconds": 30}."""
    words = []
    for name, value in settings.items():
        for flag, one in (
            ((f"{name}.{key}", v) for key, v in value.items()) if isinstance(value, dict) else [(name, value)]
        ):
            flag = flag.replace("_", "-")
            words += (
                [f"--{flag}" if one else f"--{flag.replace('.', '.no-')}"]
                if isinstance(one, bool)
                else [f"--{flag}", str(one)]
            )
    chosen, restart, dry = parse(words)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(chosen, restart, dry)
        folder = Path(str(chosen.run))
        write_run(folder, folder)
    return TrainedRun(folder, stored_scores(folder).get("scores", {}))
