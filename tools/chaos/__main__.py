"""A campaign of faults: kills, full disks, damaged bytes, lost processes. Prints one table: tried, survived, lost.

    make chaos                                   ten minutes
    python -m tools.chaos --minutes 60 --record docs/bench   an hour, with a dated record
    python -m tools.chaos --seed 7 --only kill   kinds whose names hold a word
    python -m tools.chaos --trial 'SEED KIND NUMBER'   one trial again, as a failure names it

Kinds take turns, so that each is tried as often as the others. All random choices of a trial come from its seed. A
trial that lost something keeps its folder and its output. The exit status is 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
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


def campaign(scratch: Path, options: argparse.Namespace) -> int:
    """Run trials until the time is over; return how many were lost."""
    from tools.chaos.jobs import Stage
    from tools.chaos.tally import write_record
    from tools.chaos.warm import warm_up
    from tools.chaos.workers import Campaign

    begun, seed, first, most = time.monotonic(), options.seed, 0, options.most
    warm_up()
    (scratch / "stage").mkdir()
    stage = Stage(scratch / "stage")
    kinds = {name: kind for name, kind in all_kinds(stage.pairs).items() if options.only.lower() in name.lower()}
    if options.trial is not None:
        word, _, rest = options.trial.partition(" ")
        name, _, number = rest.rpartition(" ")
        seed, kinds, first, most = int(word), {name: kinds[name]}, int(number), 1
    print(f"{len(kinds)} kinds; the stage took {time.monotonic() - begun:.0f} s", flush=True)
    ends = begun + 60 * options.minutes
    tally = Campaign(stage, kinds, seed, first, most, ends).run(scratch, options.workers)
    seconds = time.monotonic() - begun
    print(f"{tally.table(list(kinds))}\n{tally.sentence()}\nseed {seed}, {seconds:.0f} s")
    if options.record is not None:
        write_record(tally, list(kinds), seed, seconds, options.record)
    return tally.lost.total()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=SHORT, help="length of the campaign, the stage included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose names hold this text")
    parser.add_argument("--most", type=int, default=None, help="trials of each kind, at most")
    parser.add_argument("--trial", default=None, help="'SEED KIND NUMBER' of a failure: that trial alone")
    parser.add_argument("--workers", type=int, default=1, help="processes that try kinds at the same time")
    parser.add_argument("--record", type=Path, default=None, help="a folder for chaos-seed-N-DATE.json and .md")
    options = parser.parse_args()
    os.environ.pop("DINORANKCLIP_HOME", None)  # caches of a trial lie in its own folder
    scratch = Path(os.environ.get(children.ENV) or tempfile.mkdtemp(prefix="chaos-"))
    with_shim(scratch)
    lost = campaign(scratch, options)
    if lost:
        print(f"{lost} lost; their folders are in {scratch}", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
