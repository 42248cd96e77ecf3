"""All that the paper prints can be read on a study's page: beside ours, or in the appendix, never without its label."""

from pathlib import Path

import pytest

from dinorankclip.methods import LABEL
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.extra_tables import best_orders, cost_tables, paper_only
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from tests.studies.synthetic import made_up


def material_of(name: str) -> StudyMaterial:
    study = STUDIES[name]()
    return StudyMaterial(Path("nowhere"), study, made_up(study, seeds=1), Path("no-bench"))


@pytest.mark.parametrize("name", ["full", "flickr8k", "cc3m"])
def test_every_value_stands_somewhere_once(name):
    material = material_of(name)
    plain = (*best_orders(material), *cost_tables(material))
    beside = {value.place for table in material.tables for row in table.rows for value in row.paper if value}
    beside |= {value.place for table in plain for value in table.paper}
    note, tables = paper_only(material)
    numbers = [cell for table in tables for row in table.rows for cell in row[1:] if cell != "–"]
    values = sum(len(told) for rows in PAPER.values.values() for told in rows.values())
    assert len(numbers) + len(beside - {None}) == values
    for table in tables:
        assert all(heading.endswith(LABEL) for heading in table.headings[1:])
    assert "‡: printed as a result" in note and "are projections" in note


def test_what_the_small_studies_have_no_cell_for():
    tables = {table.name: table for table in paper_only(material_of("full"))[1]}
    assert [row[0] for row in tables["tab:teacher"].rows] == ["DINOv1", "DINOv2"]
    assert len(tables["tab:per-dataset-order"].rows) == 12
    assert tables["tab:ood-fg"].rows[0][:3] == ("clip", "7.53 ‡", "8.89 ‡")
    assert "FG-avg" not in " ".join(tables["tab:ood-fg"].headings)
    assert "total printed" not in [row[0] for row in tables["tab:compute"].rows]
    assert PAPER.values.titles.keys() == PAPER.values.keys()
    assert tables["tab:teacher"].markdown(level=3).startswith("### Teacher (tab:teacher)")
