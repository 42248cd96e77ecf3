"""Samples that cannot be used: why, which, and how many are too many.

A source or the decoder raises `Damage(cause)` for one sample. The loader puts another sample in its place and
reports the pair (key, cause); `DamageCount` adds these up and stops a run whose data is mostly broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dinorankclip.types import UserError

CAUSES = {
    "truncated": "the image, or the shard it is in, ends too early",
    "not-an-image": "no known image format",
    "corrupt": "the image's data contradict themselves",
    "too-many-pixels": "larger than reading.max_pixels; refused before decoding",
    "empty-image": "zero bytes or zero pixels",
    "missing-image": "a caption without its image",
    "no-caption": "an image without a caption",
    "empty-caption": "a caption that is blank",
    "not-utf8": "a caption in another encoding; convert it to UTF-8",
    "bad-json": "a .json caption file that is not JSON, or has no 'caption'",
    "unreadable": "the operating system refused to read the file",
}

PASSING = "unreadable"  # the one cause that may be gone the next time without any other sign: the disk was away

FEWEST_SEEN = 200  # before this many samples a share says little
NAMED = 5  # keys kept for each cause, to be looked at by a person


def printable(key: str) -> str:
    """A key as a terminal can show it: bytes of a file's name that are no UTF-8 become question marks."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if not key.isascii() else key


class Damage(Exception):
    """One sample cannot be used. `cause` is one of `CAUSES`."""

    def __init__(self, cause: str, detail: str = "") -> None:
        assert cause in CAUSES, cause
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.cause} ({self.detail})" if self.detail else self.cause


def refuse_passing(damaged: Iterable[tuple[str, str]]) -> None:
    """For whoever would keep (key, cause) for ever: what can perhaps be read the next time stops the work instead."""
    unread = [key for key, cause in damaged if cause == PASSING]
    if unread:
        raise UserError(
            f"{len(unread)} of the files cannot be read now, the first is {printable(unread[0])}. Is the disk or "
            "network away, or is the file not yours to read? Mend that, or take it out of the data; the same command "
            "then goes on."
        )


@dataclass
class DamageCount:
    """Counts damaged samples by cause.

    A damaged sample that comes back (next epoch, or drawn as a replacement) is *one* damaged sample, so
    `by_cause` counts different keys; `share` is about encounters: replacements made per sample looked at.
    """

    max_damaged: float = 0.05
    seen: int = 0  # samples looked at, good and damaged, with repetition
    replaced: int = 0  # damaged ones among them, with repetition
    keys: dict[str, str] = field(default_factory=dict)  # key → cause

    def add(self, good: int, damaged: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
        """Count `good` usable samples and some damaged ones; returns the (key, cause) not met before."""
        self.seen += good + len(damaged)
        self.replaced += len(damaged)
        news = []
        for key, cause in damaged:
            if key not in self.keys:
                self.keys[key] = cause
                news.append((key, cause))
        return news

    @property
    def share(self) -> float:
        return self.replaced / self.seen if self.seen else 0.0

    @property
    def by_cause(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for cause in self.keys.values():
            counts[cause] = counts.get(cause, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def examples(self, cause: str) -> list[str]:
        """The first few keys with this cause."""
        found = []
        for key, its_cause in self.keys.items():
            if its_cause == cause:
                found.append(key)
                if len(found) == NAMED:
                    break
        return found

    def summary(self) -> str:
        """One line a cause: `  12 truncated: a, b, …`; empty when nothing was damaged."""
        lines = []
        for cause, count in self.by_cause.items():
            names = ", ".join(map(printable, self.examples(cause))) + (", …" if count > NAMED else "")
            lines.append(f"{count:6d} {cause} ({CAUSES[cause]}): {names}")
        return "\n".join(lines)

    def stop_if_too_many(self) -> None:
        if self.seen >= FEWEST_SEEN and self.share > self.max_damaged:
            raise UserError(
                f"{self.replaced} of {self.seen} samples ({self.share:.1%}) could not be used, more than "
                f"reading.max_damaged = {self.max_damaged:.1%} allows:\n{self.summary()}\n"
                "Mend or remove them, or allow more with --reading.max-damaged."
            )
