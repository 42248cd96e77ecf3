"""Names and counts samples that cannot be used.

A damaged image is handled like this: its source (`read_at` in tar_shards.py, `read_file` in folders_and_tables.py) or
decode.py raises `Damage(cause)` for this sample alone. In training, `_Steps._sample` of loader.py draws another pair in
its place and sends (key, cause) along in `Batch.damage`; `PairLoader` counts these, logs the first few and stops the
run with a `UserError` once more than `reading.max_damaged` of the samples were damaged; train/run_folder.py writes the
list to `damaged.tsv`. Evaluation (`iterate_pairs` in samples.py) leaves the image out and counts it; `score` refuses a
set with damaged images (`refuse_damage`). Code that stores results permanently calls `refuse_transient` first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dinorankclip.types import UserError

CAUSES = {
    "truncated": "the image, or the shard it is in, ends too early",
    "not-an-image": "no known image format",
    "corrupt": "the image's data contradict themselves",
    "too-many-pixels": "larger than reading.max_pixels; refused before decoding",
    "empty-image": "zero bytes or zero pixels",
    "missing-image": "a caption whose image is not there: no such file, or no such entry of the shard",
    "no-caption": "an image without a caption",
    "empty-caption": "a caption that is blank",
    "not-utf8": "a caption in another encoding; convert it to UTF-8",
    "bad-json": "a .json caption file that is not JSON, or has no 'caption'",
    "unreadable": "the operating system refused to read the file",
    "no-second-caption": "an image without a second caption (--reading.second-captions)",
    "too-large": "more bytes than are read of an image or a caption file; refused before reading",
}
IMAGE_BYTES = 1 << 30  # most bytes of an encoded image
CAPTION_BYTES = 1 << 24  # most bytes of a caption file, or of a text beside an image
TRANSIENT = "unreadable"  # the only cause that may disappear: a disk that was away comes back
FEWEST_SEEN = 200  # below this many samples, a share says little
NAMED = 5  # keys that a message names for each cause


class Damage(Exception):
    """One sample cannot be used. `cause` is one of `CAUSES`."""

    def __init__(self, cause: str, detail: str = "") -> None:
        assert cause in CAUSES, cause
        super().__init__(cause, detail)
        self.cause, self.detail = cause, detail

    def __str__(self) -> str:
        return f"{self.cause} ({self.detail})" if self.detail else self.cause


@dataclass
class DamageCount:
    """Counts damaged samples by cause.

    A damaged sample that comes back (next epoch, or drawn as a replacement) is *one* damaged sample, so
    `by_cause` counts different keys; `share` counts encounters: replacements made per sample read.
    """

    max_damaged: float = 0.05
    seen: int = 0  # samples read, good and damaged, with repetition
    replaced: int = 0  # damaged samples among them, with repetition
    keys: dict[str, str] = field(default_factory=dict)  # key → cause

    def add(self, good: int, damaged: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
        """Count `good` usable samples and some damaged ones; return each (key, cause) that is new."""
        self.seen += good + len(damaged)
        self.replaced += len(damaged)
        new = []
        for key, cause in damaged:
            if key not in self.keys:
                self.keys[key] = cause
                new.append((key, cause))
        return new

    @property
    def share(self) -> float:
        return self.replaced / self.seen if self.seen else 0.0

    @property
    def by_cause(self) -> dict[str, int]:
        """Return the number of damaged samples of each cause, the most frequent cause first."""
        return dict(sorted(Counter(self.keys.values()).items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """Return a line for each cause: `  12 truncated: a, b, …`; empty when nothing was damaged."""
        return "\n".join(
            f"{count:6d} {cause} ({CAUSES[cause]}): {_names([key for key in self.keys if self.keys[key] == cause])}"
            for cause, count in self.by_cause.items()
        )

    def stop_if_too_many(self) -> None:
        if self.seen >= FEWEST_SEEN and self.share > self.max_damaged:
            raise UserError(
                f"{self.replaced} of {self.seen} samples ({self.share:.1%}) could not be used, more than "
                f"reading.max_damaged = {self.max_damaged:.1%} allows:\n{self.summary()}\n"
                "Mend or remove them, or allow more with --reading.max-damaged."
            )


def refuse_damage(name: str, damaged: Sequence[tuple[str, str]], total: int, most: float = 0.0) -> None:
    """Refuse to score a set of which more than the share `most` is damaged: fewer items give another score."""
    if len(damaged) <= most * total:
        return
    count = DamageCount()
    count.add(0, damaged)
    raise UserError(
        f"{len(damaged)} of {total} samples of {name} are damaged:\n{count.summary()}\n"
        "Fetch or pack the set again; --max-damaged 0.01 would score the others."
    )


def refuse_transient(damaged: Iterable[tuple[str, str]]) -> None:
    """Refuse to store (key, cause) permanently where the file can perhaps be read the next time."""
    if unread := [key for key, cause in damaged if cause == TRANSIENT]:
        raise UserError(
            f"{len(unread)} of the files cannot be read now, the first is {_names(unread[:1])}. Is the disk or "
            "network away, or do you lack permission to read the file? Mend that, or take the file out of the data; "
            "the same command then goes on."
        )


def _names(keys: Sequence[str]) -> str:
    """Join the first keys as a terminal can show them: bytes of a name that are no UTF-8 become question marks."""
    shown = (key.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for key in keys[:NAMED])
    return ", ".join(shown) + (", …" if len(keys) > NAMED else "")
