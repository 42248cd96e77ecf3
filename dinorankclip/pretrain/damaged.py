"""Which samples a run could not use: named in `damaged.tsv`, counted in the log, remembered over a resume."""

from __future__ import annotations

from pathlib import Path

from dinorankclip import comm
from dinorankclip.data.damage import CAUSES, DamageCount
from dinorankclip.data.pipes import PipeSource
from dinorankclip.run_files import DAMAGED, DAMAGED_OF_ALL
from dinorankclip.types import Source

ENCODING, ERRORS = "utf-8", "surrogateescape"  # files may be named by bytes that are no UTF-8


def damage_line(run: Path, train: Source | PipeSource) -> str:
    """How many images of the training part no process could use, and where they are named; "" if there were none."""
    keys = {key for path in run.glob(DAMAGED_OF_ALL) for key in _read(path)}
    if not keys:
        return ""
    of = "" if isinstance(train, PipeSource) else f" of {len(train)}"
    return f"{len(keys)}{of} training images could not be used: {run / DAMAGED}"


def _read(path: Path) -> dict[str, str]:
    lines = path.read_text(ENCODING, ERRORS).split("\n") if path.exists() else []
    split = (line.rpartition("\t") for line in lines)
    return {key: cause for key, _, cause in split if cause in CAUSES}


class DamagedFile:
    """The loader of this process counts; this keeps its list on disk, one file a process."""

    def __init__(self, run: Path, count: DamageCount):
        rank = comm.world().rank
        self.path = run / (f"damaged-{rank}.tsv" if rank else DAMAGED)
        self.count = count
        count.keys |= _read(self.path)
        self.written = len(count.keys)

    def append(self) -> None:
        """Write what is new."""
        news = list(self.count.keys.items())[self.written :]
        if news:
            with self.path.open("a", encoding=ENCODING, errors=ERRORS) as file:
                file.writelines(f"{key}\t{cause}\n" for key, cause in news)
            self.written += len(news)

    def numbers(self) -> dict[str, float]:
        """Different damaged samples by cause, over all processes, which must all ask."""
        counts = {f"damaged/{cause}": float(self.count.by_cause.get(cause, 0)) for cause in CAUSES}
        size = comm.world().size
        return {name: size * value for name, value in comm.mean_over_processes(counts).items() if value}
