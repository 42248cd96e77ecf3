import json
from pathlib import Path

from dinorankclip.methods import LABEL
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.extra_tables import student_costs
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from tests.studies.synthetic import made_up


def material(name: str, bench: Path) -> StudyMaterial:
    study = STUDIES[name]()
    return StudyMaterial(Path("nowhere"), study, made_up(study, seeds=1), bench)


def test_students_are_told_as_they_were_benched(tmp_path):
    rows = [
        {"student": "vit-micro", "parameters": 164_864, "p50 ms": 0.834},
        {"student": "resnet50", "parameters": 23_508_032, "p50 ms": 52.92},
        {"part": "image: trunk", "parameters": 1, "p50 ms": 1.0},
    ]
    (tmp_path / "latency-2026-01-02.json").write_text(json.dumps(rows))
    (tmp_path / "latency-2026-01-02.md").write_text("A machine, 2 threads. 60 rounds.\n\n| preset |\n")
    table = student_costs(material("full", tmp_path))
    told = {row[1]: row for row in table.rows}
    assert "A machine, 2 threads. 60 rounds." in table.notes and LABEL in table.headings[-1]
    # What the paper says of its students does not stand beside ours, which are smaller.
    assert told["vit-micro"] == ("full", "vit-micro", "0.16 M", "0.23 M", "0.83", "–", "–")
    assert told["resnet50"] == ("the paper's own", "resnet50", "23.51 M", "25.56 M", "52.92", "25.6 ‡", "12.4 ‡")
    assert told["mobilenetv3-large"][2:4] == ("2.97 M", "5.48 M")
    assert told["vit-tiny"][2:] == ("5.52 M", "5.72 M", "–", "5.7 ‡", "8.6 ‡")  # not benched here


def test_at_the_papers_scale_its_students_are_cells(tmp_path):
    table = student_costs(material("cc3m", tmp_path))
    assert [row[:2] for row in table.rows] == [
        ("full-resnet", "resnet50"), ("full-mobilenet", "mobilenetv3-large"), ("full", "vit-tiny"),
    ]  # fmt: skip
    assert "not measured yet" in table.notes
