"""A campaign of faults: kills, full disks, damaged bytes, lost processes. Prints one table: tried, survived, lost.

    make chaos                                   ten minutes
    python -m tools.chaos --minutes 60           an hour, at least 1,000 faults on one core
    python -m tools.chaos --seed 7 --only kill   kinds whose names hold a word
    python -m tools.chaos --trial 'SEED KIND NUMBER'   one trial again, as a failure names it

Kinds take turns, so that each is tried as often as the others. All random choices of a trial come from its seed. A
trial that lost something keeps its folder and its output. The exit status is 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.chaos import children

SHORT = 10.0  # minutes


def with_shim(scratch: Path) -> None:
    """Start this program again with the shim preloaded, if a C compiler is there; otherwise go on without it."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if children.has_shim() or compiler is None:
        return
    library = scratch / "chaos-shim.so"
    source = Path(__file__).with_name("shim.c")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], capture_output=True)
    if built.returncode:
        print(f"no shim, so kinds of failing disks are left out: {built.stderr.decode()[:300]}")
        return
    os.environ |= {"LD_PRELOAD": str(library), children.ENV: str(scratch), "OMP_NUM_THREADS": "1"}
    os.execv(sys.executable, [sys.executable, "-m", "tools.chaos", *sys.argv[1:]])


def all_kinds(pairs: Path) -> dict:
    from tools.chaos import flips, hostile, kinds, two_processes

    return kinds.kinds() | flips.kinds(pairs) | two_processes.kinds() | hostile.kinds()


def campaign(scratch: Path, minutes: float, seed: int, only: str, most: int | None, trial: str | None) -> int:
    """Run trials until the time is over; return how many were lost."""
    from tools.chaos.jobs import Stage
    from tools.chaos.kinds import Skipped, Trial
    from tools.chaos.warm import warm_up

    begun = time.monotonic()
    warm_up()
    (scratch / "stage").mkdir()
    stage = Stage(scratch / "stage")
    kinds = {name: kind for name, kind in all_kinds(stage.pairs).items() if only.lower() in name.lower()}
    if trial is not None:
        word, _, rest = trial.partition(" ")
        name, _, number = rest.rpartition(" ")
        seed, kinds, first, most = int(word), {name: kinds[name]}, int(number), 1
    else:
        first = 0
    print(f"{len(kinds)} kinds; the stage took {time.monotonic() - begun:.0f} s", flush=True)
    tried, lost, skipped = Counter(), Counter(), dict[str, str]()
    turn = first
    while (most is None or turn - first < most) and time.monotonic() - begun < 60 * minutes:
        for name, kind in kinds.items():
            if name in skipped or time.monotonic() - begun > 60 * minutes:
                continue
            folder = scratch / f"trial-{len(tried)}-{tried.total()}"
            try:
                kind(Trial(stage, folder, random.Random(f"{seed} {name} {turn}")))
            except Skipped as reason:
                skipped[name] = str(reason)
                continue
            except children.Lost as error:
                lost[name] += 1
                print(f"LOST  --trial '{seed} {name} {turn}'  ({folder}): {error}\n", flush=True)
            tried[name] += 1
            if not lost[name]:
                shutil.rmtree(folder, ignore_errors=True)
                for output in scratch.glob(f"{folder.name}.output-*"):
                    output.unlink()
        turn += 1
    print(table(list(kinds), tried, lost, skipped))
    print(f"seed {seed}, {time.monotonic() - begun:.0f} s")
    return lost.total()


def table(names: list[str], tried: Counter, lost: Counter, skipped: dict[str, str]) -> str:
    width = max(map(len, names), default=4)
    lines = [f"{'kind':<{width}}  {'tried':>6}  {'survived':>8}  {'lost':>5}"]
    for name in names:
        why = f"  skipped: {skipped[name]}" if name in skipped else ""
        lines.append(f"{name:<{width}}  {tried[name]:>6}  {tried[name] - lost[name]:>8}  {lost[name]:>5}{why}")
    total, gone = tried.total(), lost.total()
    return "\n".join([*lines, f"{'all':<{width}}  {total:>6}  {total - gone:>8}  {gone:>5}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=SHORT, help="length of the campaign, the stage included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose names hold this text")
    parser.add_argument("--most", type=int, default=None, help="trials of each kind, at most")
    parser.add_argument("--trial", default=None, help="'SEED KIND NUMBER' of a failure: that trial alone")
    options = parser.parse_args()
    scratch = Path(os.environ.get(children.ENV) or tempfile.mkdtemp(prefix="chaos-"))
    with_shim(scratch)
    lost = campaign(scratch, options.minutes, options.seed, options.only, options.most, options.trial)
    if lost:
        print(f"{lost} lost; their folders are in {scratch}", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
