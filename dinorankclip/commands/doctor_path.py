"""`dinorankclip doctor PATH`: check data, a run or what was written, with the flags of `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro

from dinorankclip.commands.doctor import print_findings
from dinorankclip.config import CheckingSettings
from dinorankclip.report.machine_findings import examine_machine
from dinorankclip.run_files import CONFIG, is_run
from dinorankclip.types import Finding, UserError

SHOWN_RUNS = 8  # names of runs in a message


def doctor(
    path: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PATH]")] = None,
    samples: int = 2000,
    reading: CheckingSettings = CheckingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Check this machine (no PATH), a run, an export, a cache, or data. Exit status 1 if there is a problem.

    Examples:
      dinorankclip doctor
      dinorankclip doctor scenes
      dinorankclip doctor runs/quickstart
      dinorankclip doctor exported/first

    Args:
        path: A run, a model folder, a teacher cache or embeddings, whose bytes are compared with their hashes; or
            anything that --data of train takes.
        samples: Samples of each part to decode, at most.
        reading: How pairs are found, as in train. More damaged pairs than max-damaged are a problem.
    """
    print_findings(examine(path, samples, reading))


def examine(path: str | None, samples: int, reading: CheckingSettings) -> Iterator[Finding]:
    """Yield findings on the machine (no path), a run, or data."""
    if path is None:
        yield from examine_machine()
        return
    if is_run(Path(path)):
        from dinorankclip.report.folder_findings import examine_checkpoints
        from dinorankclip.report.run_findings import examine_run

        yield from examine_run(Path(path))
        yield from examine_checkpoints(Path(path))
        return
    if Path(path).is_dir():
        from dinorankclip.report.folder_findings import examiner_of

        if (examine_folder := examiner_of(Path(path))) is not None:
            yield from examine_folder(Path(path))
            return
    if runs := sorted(file.parent.name for file in Path(path).glob(f"*/{CONFIG}") if is_run(file.parent)):
        shown = ", ".join(runs[:SHOWN_RUNS]) + (", …" if len(runs) > SHOWN_RUNS else "")
        raise UserError(f"{path} holds runs: {shown}; name one, e.g. dinorankclip doctor {Path(path) / runs[0]}")
    from dinorankclip.data.inspect import examine_data

    try:
        yield from examine_data(path, reading, samples)
    except UserError as error:
        if Path(path).exists():
            raise
        raise UserError(f"{error}\ndoctor takes pairs, a run folder, or nothing to check the machine") from None
