"""The teachers' own probes as an upper bound: which teachers, the table, and the command's lines."""

import json

from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.upper_bound import TEACHERS, probe_lines, teachers_of, upper_bounds

PROBE = {
    "teacher": "lite", "size": 224, "set": "fine", "accuracy": 0.954, "low": 0.941, "high": 0.968, "images": 1000,
    "classes": 66, "fingerprint": "x",
}  # fmt: skip


def test_every_teacher_with_weights_is_probed_once():
    assert teachers_of(STUDIES["full"]()) == [("efficientnet-lite0", 224), ("efficientnet-lite0", 128)]
    names = [name for name, _ in teachers_of(STUDIES["cc3m"]())]
    assert len(names) == 3 and all("dino" in name for name in names)


def test_the_table_says_what_was_measured_or_how_to_measure_it(tmp_path):
    (empty,) = upper_bounds(tmp_path, "full", {})
    assert empty.rows[0][0] == "not measured" and "study upper-bound full" in empty.notes
    (tmp_path / TEACHERS).write_text(json.dumps([PROBE]))
    (table,) = upper_bounds(tmp_path, "full", {"fine": 0.127})
    assert table.rows == (("lite at 224 px", "fine", "95.4", "94.1 to 96.8", "1,000", "12.7", "1.5"),)
    assert upper_bounds(tmp_path, "full", {})[0].rows[0][5] == "–"


def test_the_command_prints_a_line_for_each_probe():
    assert probe_lines([PROBE]) == ["lite at 224 px, fine: 95.4 % (94.1 to 96.8) of 1,000 images"]
