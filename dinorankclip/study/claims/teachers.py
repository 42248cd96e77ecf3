"""Who taught the cells of a claim, as their runs recorded it."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import Results

PAPER_TEACHER = "dinov3"
CONTROL = "random-"  # teachers of random weights are no teachers


def caveat(results: Results, cells: Sequence[str]) -> str:
    """What must be said beside a verdict that a teacher other than the paper's has a part in; empty if none has."""
    told: dict[str, str] = {}
    for run in (run for cell in cells for run in results.of(cell).values()):
        name = run.settings["distil"]["teacher"]
        if run.teacher and not name.startswith(CONTROL) and PAPER_TEACHER not in name:
            told[name] = max(run.teacher, told.get(name, ""), key=len)  # with the captions' teacher, where there is one
    return f"teacher {'; '.join(told.values())}: not DINOv3" if told else ""
