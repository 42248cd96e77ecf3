"""`dinorankclip doctor`: check the machine, data, a run or what was written; each finding says what to do.

Without PATH it needs the core packages alone, since it is what tells which others are missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from dinorankclip.types import Finding

MARKS = {"fine": "ok  ", "note": "note", "problem": "BAD "}


def main(argv: list[str]) -> None:
    if argv:
        from dinorankclip.commands.doctor_path import doctor
        from dinorankclip.commands.shared import call_verb

        call_verb(doctor, "doctor", argv)
    else:
        from dinorankclip.report.machine_findings import examine_machine

        print_findings(examine_machine())


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings and their number of problems; exit with status 1 if there are any."""
    problems = 0
    for finding in findings:
        print_finding(finding)
        problems += finding.level == "problem"
    print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'} found")
    if problems:
        sys.exit(1)


def print_finding(finding: Finding) -> None:
    print(f"{MARKS[finding.level]}  {finding.what}", flush=True)
    if finding.advice:
        print(f"      → {finding.advice}", flush=True)
