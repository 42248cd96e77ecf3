"""The simulated cluster against formulas, the page of scale against its script, the report of a GPU's owner."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench import gpu_parts, scale_page
from bench.cluster_simulation import Cluster, daly, expected_share, mean_share, record_of, simulated_share, young
from bench.harness import newest

RELIABLE = Cluster(nodes=4, node_mtbf=1e12, work=10.0, checkpoint=0.5)


def test_without_failures_checkpoints_alone_cost_time():
    assert simulated_share(RELIABLE, 2.0, random.Random(0)) == pytest.approx(10 / (10 + 4 * 0.5))  # none after the last
    assert simulated_share(RELIABLE, 20.0, random.Random(0)) == 1.0


def test_the_simulation_agrees_with_dalys_formula_and_its_optimum():
    cluster = Cluster(work=24.0 * 30, spares=100)
    assert mean_share(cluster, young(cluster), 20) == pytest.approx(expected_share(cluster, young(cluster)), abs=0.004)
    best = max((expected_share(cluster, daly(cluster) * f), f) for f in (0.8, 0.9, 1.0, 1.1, 1.2))
    assert best[1] == 1.0
    assert young(Cluster(nodes=8, node_mtbf=800.0, checkpoint=0.02)) == pytest.approx(2.0)  # √(2 · 0.02 · 100)


def test_a_group_without_spares_waits_for_repairs():
    waits = Cluster(nodes=100, node_mtbf=1000.0, lost=1.0, spares=0, work=200.0)
    assert mean_share(waits, 1.0, 10) < mean_share(replace(waits, spares=20), 1.0, 10) / 2


def test_a_seed_gives_the_same_record():
    small = Cluster(nodes=100, work=24.0)
    assert record_of(small, 2) == record_of(small, 2)


def test_the_page_is_what_its_script_writes():
    known = scale_page.constants()
    simulated = newest(scale_page.RECORDS, "cluster-simulation")
    simulated["date"] = max(scale_page.RECORDS.glob("cluster-simulation-2*.json")).stem[-10:]
    values = {name: constant.value for name, constant in known.items()}
    found = [scale_page.planned(plan, values) for plan in scale_page.PLANS]
    assert scale_page.PAGE.read_text() == scale_page.page(found, known, simulated)
    assert found[0]["gflops"] == pytest.approx(14.78, abs=0.05)  # as open_clip's table of models has it


def test_a_failed_part_is_in_the_report_of_a_gpus_owner(tmp_path):
    (tmp_path / "part-loss.json").write_text(
        json.dumps({"64 pairs": {"seconds": 0.5}, "128 pairs": {"error": "memory"}})
    )
    for name, status in (("loss", 0), ("teacher", 124)):
        (tmp_path / f"part-{name}-status.json").write_text(json.dumps({"status": status, "seconds": 3}))
    text = gpu_parts.report(tmp_path, tiny=True)
    assert "| 64 pairs | 0.5 | – |" in text and '| 128 pairs | – | "memory" |' in text
    assert "## teacher\nfailed: {'status': 124" in text and "No GPU was measured" in text
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["parts"]["teacher"] == {"ended": {"status": 124, "seconds": 3}, "result": None}
    assert Path("bench/gpu.sh").stat().st_mode & 0o100
