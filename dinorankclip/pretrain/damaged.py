"""Which samples a run could not use: named in `damaged.tsv`, counted in the log, remembered over a resume."""

from __future__ import annotations

from pathlib import Path

from dinorankclip import comm
from dinorankclip.data.damage import CAUSES, DamageCount
from dinorankclip.run_files import DAMAGED

NAMES = {"encoding": "utf-8", "errors": "surrogateescape"}  # files may be named by bytes that are no UTF-8


class DamagedFile:
    """The loader of this process counts; this keeps its list on disk, one file a process."""

    def __init__(self, run: Path, count: DamageCount):
        rank = comm.world().rank
        self.path = run / (f"damaged-{rank}.tsv" if rank else DAMAGED)
        self.count = count
        for line in self.path.read_text(**NAMES).split("\n") if self.path.exists() else []:
            key, _, cause = line.rpartition("\t")
            if cause in CAUSES:
                count.keys[key] = cause
        self.written = len(count.keys)

    def append(self) -> None:
        """Write what is new."""
        news = list(self.count.keys.items())[self.written :]
        if news:
            with self.path.open("a", **NAMES) as file:
                file.writelines(f"{key}\t{cause}\n" for key, cause in news)
            self.written += len(news)

    def numbers(self) -> dict[str, float]:
        """Different damaged samples by cause, over all processes, which must all ask."""
        counts = {f"damaged/{cause}": float(self.count.by_cause.get(cause, 0)) for cause in CAUSES}
        size = comm.world().size
        return {name: size * value for name, value in comm.mean_over_processes(counts).items() if value}
