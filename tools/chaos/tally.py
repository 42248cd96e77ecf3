"""Counts of a campaign by kind of fault: as a table, and as a dated record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = ("trials", "faults", "survived", "lost")


@dataclass
class Tally:
    """Counts trials, those that were lost, and faults that took effect: some trials have several (a kill during the
    resumption, several damaged files), and a fault that was planted may come too late. `kills` counts killed processes
    of training whose weights were then compared with the undisturbed run's."""

    tried: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: dict[str, dict]) -> Tally:
        return cls(**{name: dict(value) if name == "skipped" else Counter(value) for name, value in record.items()})

    def record(self) -> dict[str, dict]:
        return {name: dict(value) for name, value in vars(self).items()}

    def add(self, other: Tally) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values()):
            mine.update(theirs)

    def row(self, name: str) -> tuple[int, ...]:
        return self.tried[name], self.struck[name], self.tried[name] - self.lost[name], self.lost[name]

    def rows(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the numbers of `COLUMNS` by kind, and their sums."""
        rows = {name: self.row(name) for name in names}
        return rows | {"all": tuple(map(sum, zip(*rows.values()))) or (0,) * len(COLUMNS)}

    def table(self, names: Sequence[str]) -> str:
        width = max(map(len, names), default=4)
        lines = [f"{'kind':<{width}}" + "".join(f"{column:>10}" for column in COLUMNS)]
        for name, numbers in self.rows(names).items():
            why = f"  skipped: {self.skipped[name]}" if name in self.skipped else ""
            lines.append(f"{name:<{width}}" + "".join(f"{number:>10}" for number in numbers) + why)
        return "\n".join(lines)

    def sentence(self) -> str:
        """Return how many kills were followed by a comparison of weights."""
        two = sum(count for name, count in self.kills.items() if name.startswith("two processes"))
        return f"{self.kills.total()} killed processes of training, {two} of them of a group of two: weights compared"


def write_record(tally: Tally, names: Sequence[str], seed: int, seconds: float, folder: Path) -> None:
    """Write `chaos-seed-N-DATE.json` and `.md`."""
    from bench.harness import in_words, machine, today, write_dated

    about = machine(1, ("torch", "numpy", "filelock"))
    table = [f"| {' | '.join(['kind', *COLUMNS])} |", "| --- " * (len(COLUMNS) + 1) + "|"]
    table += [f"| {name} | {' | '.join(map(str, numbers))} |" for name, numbers in tally.rows(names).items()]
    skipped = "".join(f"\nSkipped: {name} ({why}).\n" for name, why in tally.skipped.items())
    text = f"""# The campaign of faults

`python -m tools.chaos --seed {seed}`, {seconds / 60:.0f} minutes, {len(names)} kinds. "Faults" counts those
that took effect: a trial may have several, and a kill may come after the end. {tally.sentence()}.

{chr(10).join(table)}
{skipped}
Machine: {in_words(about)}.
"""
    record = {"seed": seed, "seconds": round(seconds), "kinds": list(names), **tally.record(), "machine": about}
    write_dated(folder, f"chaos-seed-{seed}", today(), record, text)
