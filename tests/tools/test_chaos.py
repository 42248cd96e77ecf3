"""The campaign of faults in its short form: a trial of as many kinds as fit into seconds, and nothing is lost."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter

from tools.chaos.flips import damaged
from tools.chaos.tally import Tally, write_record

SECONDS = 22


def test_a_short_campaign_loses_nothing(tmp_path):
    words = [sys.executable, "-m", "tools.chaos", "--minutes", str(SECONDS / 60), "--most", "1", "--seed", "3"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "DINORANKCLIP_HOME": str(tmp_path / "other")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = re.findall(r"^(.+?)  +(\d+)  +(\d+)  +(\d+)  +(\d+)(?:  skipped.*)?$", done.stdout, flags=re.MULTILINE)
    assert len(kinds) > 30 and kinds[-1][0].strip() == "all"
    assert kinds[-1][1] == kinds[-1][3] and kinds[-1][4] == "0"
    assert list(tmp_path.iterdir()) == []


def test_damage_changes_bytes_and_depends_on_the_seed_alone():
    data = bytes(range(256)) * 4
    changed = [damaged(data, random.Random(seed)) for seed in range(200)]
    assert changed == [damaged(data, random.Random(seed)) for seed in range(200)]
    assert sum(each != data for each in changed) > 190 and any(len(each) < len(data) for each in changed)
    assert damaged(b"", random.Random(0)) == b"\0"


def test_the_tally_counts_and_is_recorded(tmp_path):
    kills = Counter({"a": 2, "two processes, one killed": 3})
    tally = Tally(Counter(a=3, b=2), Counter(a=2, b=2), Counter(b=1), kills, {"b": "no disk"})
    assert [line.split() for line in tally.table(["a", "b"]).splitlines()] == [
        ["kind", "trials", "faults", "survived", "lost"], ["a", "3", "2", "3", "0"],
        ["b", "2", "2", "1", "1", "skipped:", "no", "disk"], ["all", "5", "4", "4", "1"],
    ]  # fmt: skip
    assert tally.sentence() == "5 killed processes of training, 3 of them of a group of two: weights compared"
    both = Tally.from_record(json.loads(json.dumps(tally.record())))
    both.add(tally)
    assert both.rows(["a", "b"])["all"] == (10, 8, 8, 2) and both.skipped == {"b": "no disk"}
    write_record(tally, ["a", "b"], 7, 90.0, tmp_path)
    text, record = (next(tmp_path.glob(f"chaos-*.{end}")).read_text() for end in ("md", "json"))
    assert "| all | 5 | 4 | 4 | 1 |" in text and "Skipped: b (no disk)." in text
    assert json.loads(record)["tried"] == {"a": 3, "b": 2} and str(tmp_path) not in text + record
