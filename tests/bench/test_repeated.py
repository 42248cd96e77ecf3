"""Two runs beside each other."""

import json

from bench.all import RECORDS
from bench.repeated import table


def write_run(folder, least, most):
    """A record of every bench, with one ratio."""
    folder.mkdir()
    sides = {"base": {"ratio": None}, "ours": {"ratio": {"median": 2.0, "least": least, "most": most}}}
    for name in RECORDS:
        stored = {"date": "2026-01-02", "comparisons": [{"title": name, "base": "base", "sides": sides}]}
        (folder / f"{name}-2026-01-02.json").write_text(json.dumps(stored))
    return folder


def test_ranges_that_overlap_are_said_to_and_a_note_is_only_what_was_given(tmp_path):
    first, near = write_run(tmp_path / "first", 1.5, 2.5), write_run(tmp_path / "near", 2.4, 3.0)
    far = write_run(tmp_path / "far", 2.6, 3.0)
    lines = table(first, near).splitlines()
    assert lines[2] == "Medians (ranges) over alternating rounds within one run."
    assert lines[-1] == "| scaling | ours | 2.00 (1.50–2.50) | 2.00 (2.40–3.00) | yes |"
    noted = table(first, far, "Another job ran beside the first.").splitlines()
    assert noted[2].endswith("within one run. Another job ran beside the first.") and noted[-1].endswith("| no |")
