"""The campaign of faults in its short form: a trial of as many kinds as fit into seconds, and nothing is lost."""

import os
import random
import re
import subprocess
import sys

from tools.chaos.__main__ import table
from tools.chaos.flips import damaged

SECONDS = 22


def test_a_short_campaign_loses_nothing(tmp_path):
    words = [sys.executable, "-m", "tools.chaos", "--minutes", str(SECONDS / 60), "--most", "1", "--seed", "3"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = re.findall(r"^(.+?)  +(\d+)  +(\d+)  +(\d+)(?:  skipped.*)?$", done.stdout, flags=re.MULTILINE)
    assert len(kinds) > 30 and kinds[-1][0].strip() == "all"
    assert kinds[-1][1] == kinds[-1][2] and kinds[-1][3] == "0"
    assert list(tmp_path.iterdir()) == []


def test_damage_changes_bytes_and_depends_on_the_seed_alone():
    data = bytes(range(256)) * 4
    changed = [damaged(data, random.Random(seed)) for seed in range(200)]
    assert changed == [damaged(data, random.Random(seed)) for seed in range(200)]
    assert sum(each != data for each in changed) > 190 and any(len(each) < len(data) for each in changed)
    assert damaged(b"", random.Random(0)) == b"\0"


def test_the_table_counts():
    from collections import Counter

    text = table(["a", "b"], Counter(a=3, b=2), Counter(b=1), {})
    assert [line.split() for line in text.splitlines()] == [
        ["kind", "tried", "survived", "lost"], ["a", "3", "3", "0"], ["b", "2", "1", "1"], ["all", "5", "4", "1"],
    ]  # fmt: skip
