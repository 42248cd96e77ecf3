"""A few pictures and captions to try a model on, drawn on the spot: an export is checked without any data at hand."""

from __future__ import annotations

from dinorankclip.data.scenes.samples import Job, Part, sample_files

SIZE = 128
_WIDELY = "a very long caption " * 30  # fills the whole context


def trial_pairs(count: int) -> tuple[list[bytes], list[str]]:
    """JPEGs of built-in scenes and as many captions, the shortest and the longest possible among them."""
    made = [sample_files(Job(Part("pairs", "test", count), index, 0, SIZE)) for index in range(count)]
    captions = [sample["txt"].decode().splitlines()[0] for sample in made]
    return [sample["jpg"] for sample in made], ["", _WIDELY, *captions][:count]
