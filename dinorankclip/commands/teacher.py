"""`dinorankclip teacher cache`: compute a frozen teacher's features of a data set once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from dinorankclip.commands.entry import VERBS
from dinorankclip.commands.shared import call_verb, check_at_least
from dinorankclip.config import FindingSettings
from dinorankclip.pieces.contract import HERE, Where
from dinorankclip.teachers.registry import Modality, all_kinds, kinds_of, usages
from dinorankclip.types import UserError

ImageTeacher = Annotated[str, tyro.conf.arg(help=f"{usages('image')}.")]
TextTeacher = Annotated[str | None, tyro.conf.arg(help=f"{usages('text')}; by default captions have no teacher.")]


def cache(
    out: Path,
    data: str = "scenes",
    teacher: ImageTeacher = "efficientnet-lite0",
    input_size: int | None = None,
    text_teacher: TextTeacher = None,
    keep: Literal["gram", "tokens", "both"] = "gram",
    coding: Literal["8bit", "fp16", "fp32"] = "8bit",
    split: tuple[Literal["train", "val", "test", "all"], ...] = (),
    device: str = "auto",
    threads: int | None = None,
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
    where: Annotated[Where, tyro.conf.arg(name="")] = HERE,
) -> None:
    """Compute a teacher's features once, for `train --distil.cache OUT`. The same command again resumes.

    Examples:
      dinorankclip teacher cache --data scenes --teacher efficientnet-lite0 --out built/teacher/scenes-lite0
      torchrun --nproc-per-node 8 -m -- dinorankclip teacher cache --data 'cc3m/*.tar' --out built/teacher/cc3m
      dinorankclip teacher cache --data 'cc3m/*.tar' --out built/teacher/cc3m --on ray --ray.address head:6379

    Args:
        out: The folder of the cache, e.g. built/teacher/NAME.
        data: Anything that --data of train takes, except pipe: shards.
        input_size: Side of the images that the teacher gets. Its grid should be about twice as fine as the student's:
            448 gives efficientnet-lite0 14×14 tokens, 224 gives 7×7.
        keep: gram (for the criterion gram+rel), tokens (PCA; for mse and cosine; crops then move the summary, too).
        coding: Precision of a stored number; 8bit changes Gram distances by well under 1 %.
        split: Parts of the data; by default all.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        threads: CPU threads of each process; by default torch's choice.
        reading: How pairs are found, as in train.
        where: Who computes the shards.
    """
    import torch

    from dinorankclip import distributed
    from dinorankclip.device import choose
    from dinorankclip.teachers.cache_format import CacheLayout
    from dinorankclip.teachers.cache_request import CacheSpec, cache_of_data

    check_at_least(1, threads=threads)
    world = distributed.join(device)
    if threads is not None:
        torch.set_num_threads(threads)
    spec = CacheSpec(data, teacher, input_size, text_teacher, CacheLayout(keep, coding), split)
    cache_of_data(out, spec, reading, choose(device, "fp32", world.local_rank).device, where)
    distributed.leave()


def help_text() -> str:
    width = max(len(kind.usage) for kind in all_kinds())
    example = f"  dinorankclip teacher {VERBS['teacher'].example}"
    lines = ["usage: dinorankclip teacher cache …", "", "Examples:", example]
    flags_of: dict[Modality, str] = {
        "image": "--teacher here, --distil.teacher of train",
        "text": "--text-teacher here, --distil.text-teacher of train",
    }
    for modality, flags in flags_of.items():
        lines += ["", f"{modality} teachers ({flags}):"]
        lines += [f"  {kind.usage:<{width}}  {kind.about}" for kind in kinds_of(modality)]
    return "\n".join([*lines, "", "dinorankclip teacher cache --help describes the flags."])


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text())
    elif argv[0] == "cache":
        call_verb(cache, "teacher cache", argv[1:])
    else:
        raise UserError(f"teacher has no '{argv[0]}': there is cache")
