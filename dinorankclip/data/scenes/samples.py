"""The sets the generator writes, and any sample of them by number: a pure function of seed, split and index."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .captions import caption_scene
from .chance import Chance
from .compose import compose, compose_single
from .kinds import FAMILIES, KINDS, members
from .render import jpeg, render
from .renditions import RENDITIONS
from .scene import Captioned, to_json

OTHER_RENDITIONS = tuple(name for name in RENDITIONS if name != "plain")
FINE_KINDS = tuple(name for name in KINDS if KINDS[name].family is not None)

# Words in front of {c} are ones that captions use; none of them asks for "a" or "an" before the class name.
TEMPLATES = (
    "A picture of one {c}.",
    "One {c}.",
    "A small {c}.",
    "A large {c}.",
    "A red {c}.",
    "A blue {c}.",
    "A green {c}.",
    "A yellow {c}.",
    "A white {c}.",
    "A black {c}.",
    "A brown {c}.",
    "A grey {c}.",
)


@dataclass(frozen=True)
class Part:
    """One split of one set: `folder`/`split`, with `count` samples."""

    folder: str
    split: str
    count: int

    @property
    def name(self) -> str:
        return f"{self.folder}/{self.split}"

    @property
    def rendition(self) -> str:
        return self.folder.partition("-")[2] or "plain"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names in order; None for pairs."""
        if self.folder == "pairs":
            return None
        return FINE_KINDS if self.folder == "fine" else tuple(KINDS)


@dataclass(frozen=True)
class Job:
    """One sample to make."""

    part: Part
    index: int
    seed: int
    size: int


def captioned_scene(seed: int, split: str, index: int) -> Captioned:
    """The scene and captions of sample `index` of a split of the pairs ("train", "val", "test")."""
    name = f"pairs/{split}"
    return caption_scene(compose(Chance(seed, name, index, "content")), Chance(seed, name, index, "captions"))


def make_sample(job: Job) -> dict[str, str | bytes]:
    """A sample as the tar writer wants it: its key and, by extension, the bytes of its files."""
    return {"__key__": f"{job.part.split}-{job.index:06d}", **sample_files(job)}


def sample_files(job: Job) -> dict[str, bytes]:
    sample: dict[str, bytes] = {}
    classes = job.part.classes
    # Renditions draw the very things of the plain set of that split, so that scores differ by the rendition alone.
    source = f"{job.part.folder.partition('-')[0]}/{job.part.split}"
    if classes is None:
        captioned = captioned_scene(job.seed, job.part.split, job.index)
        scene = captioned.scene
        sample["txt"] = "\n".join(captioned.captions).encode()
        sample["json"] = json.dumps(to_json(captioned), separators=(",", ":")).encode()
    else:
        label = job.index % len(classes)
        scene = compose_single(classes[label], Chance(job.seed, source, job.index, "content"))
        sample["cls"] = str(label).encode()
    drawing = Chance(job.seed, source, job.index, "drawing")
    sample["jpg"] = jpeg(render(scene, drawing, job.size, job.part.rendition))
    return sample


def families() -> dict[str, list[str]]:
    """Class names of the fine-grained set by family."""
    return {family: list(members(family)) for family in FAMILIES}
