"""What records say of options and of the machine, and which of several counts."""

from argparse import Namespace
from pathlib import Path

import pytest

from bench.harness import LOAD, in_words, machine, machine_now, newest, options_record, write_dated


def test_options_are_told_without_paths():
    options = Namespace(data="/home/me/photos", cache=None, out=Path("/tmp/found"), teacher="minilm", sizes=[64])
    assert options_record(options) == {
        "data": "photos",
        "cache": None,
        "out": "found",
        "teacher": "minilm",
        "sizes": [64],
    }


def test_the_newest_record_counts_and_trials_do_not(tmp_path):
    for date in ("2026-01-02", "2025-12-31"):
        write_dated(tmp_path, "step", date, {"date": date}, "text")
    write_dated(tmp_path, "step-quick", "2027-01-01", {"date": "a trial"}, "text")
    assert newest(tmp_path, "step") == {"date": "2026-01-02"}
    assert (tmp_path / "step-2026-01-02.md").read_text() == "text\n"
    with pytest.raises(SystemExit, match="no record of orders"):
        newest(tmp_path, "orders")


def test_only_the_load_changes_from_run_to_run():
    about, now = machine(1, ("torch",)), machine_now(1, ("torch",))
    assert now == about | {LOAD: now[LOAD]}
    assert LOAD not in in_words(about) and f", {LOAD} {now[LOAD]}; torch " in in_words(now)
