"""The arithmetic of comparisons, and sides that live in processes of their own."""

import json
import os
from functools import partial

import pytest

from bench import all as every_bench
from bench.harness import Comparison, arguments, machine_now, write_record
from bench.scaling import panels
from bench.sides import running


def speed(**more):
    seconds = {"theirs": [4.0, 6.0, 5.0], "ours": [2.0, 2.0, 1.0]}
    return Comparison("a step", seconds, "theirs", items=10, **more)


def test_a_ratio_is_taken_within_a_round_and_its_median_reported():
    faster = speed(wanted={"ours": 3.0})
    assert faster.ratio("ours") == {"median": 3.0, "least": 2.0, "most": 5.0}
    assert faster.noise("ours") == pytest.approx(0.5)  # (2 - 1) / 2
    assert faster.met("ours") is True and faster.met("theirs") is None
    assert speed(wanted={"ours": 3.1}).met("ours") is False
    longer = Comparison("orders", {"0": [1.0, 2.0], "3": [2.0, 3.0]}, "0", 1, cost=True, wanted={"3": 1.75})
    assert longer.ratio("3") == {"median": 1.75, "least": 1.5, "most": 2.0} and longer.met("3") is True


def test_a_record_names_no_folders(tmp_path):
    options = arguments("").parse_args(["--pairs", str(tmp_path / "photos"), "--out", str(tmp_path), "--threads", "1"])
    write_record("trial", [speed(wanted={"ours": 2.0})], options, machine_now(1))
    written = {file.suffix: file.read_text() for file in tmp_path.glob("trial-*")}
    assert set(written) == {".json", ".md"}
    assert not any(str(tmp_path) in text for text in written.values())
    record = json.loads(written[".json"])
    assert record["options"]["pairs"] == "photos" and record["machine"]["threads"] == 1
    assert "| ours | 2 | 5 | 50% | 3.00 (2.00–5.00) | ≥ 2 |" in written[".md"]
    assert "| a step | ours | 3.00 (2.00–5.00) | 50% | ≥ 2 | yes |" in every_bench.summary([record])


def counting(start):
    """Built in another process: tells its number, counts its runs, fails at the third."""
    runs = []

    def run():
        runs.append(start)
        if len(runs) == 3:
            raise ValueError("three is too many")

    return run, {"process": os.getpid(), "start": start}


def test_sides_live_in_processes_of_their_own_and_say_why_they_fail():
    with running({"a": partial(counting, 1), "b": partial(counting, 2)}, threads=1) as sides:
        processes = {side.facts["process"] for side in sides.values()}
        assert len(processes | {os.getpid()}) == 3
        assert sides["b"].facts["start"] == 2
        measured = [sides["a"]() for _ in range(2)]
        assert all(one["seconds"] >= 0 and one["bytes"] >= 0 for one in measured)
        with pytest.raises(SystemExit, match="three is too many"):
            sides["a"]()


def test_a_figure_places_points_on_logarithmic_axes():
    drawn = panels({"time": ("s", {"order 0": {64: 0.1, 256: 10.0}})}, "pairs")
    first, last = drawn.split('points="')[1].split('"')[0].split()
    assert first == "62.0,276.0" and last == "334.0,34.0"  # lower left and upper right corner of the panel
