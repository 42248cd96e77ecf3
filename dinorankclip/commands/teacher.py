"""`dinorankclip teacher cache`: compute a frozen teacher's features of a data set once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from dinorankclip.config import ReadingSettings
from dinorankclip.types import UserError

EXAMPLE = "dinorankclip teacher cache --data scenes --teacher efficientnet-lite0 --out built/teacher/scenes-lite0"


def cache(
    out: Path,
    data: str = "scenes",
    teacher: str = "efficientnet-lite0",
    input_size: int | None = None,
    text_teacher: str | None = None,
    keep: Literal["gram", "tokens", "both"] = "gram",
    coding: Literal["8bit", "fp16", "fp32"] = "8bit",
    split: tuple[Literal["train", "val", "test", "all"], ...] = (),
    device: str = "auto",
    threads: int | None = None,
    reading: ReadingSettings = ReadingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Compute a teacher's features once, for `train --distil.cache OUT`. The same command again resumes.

    Many processes share the work: torchrun --nproc-per-node 8 -m -- dinorankclip teacher cache …

    Args:
        out: The folder of the cache, e.g. built/teacher/NAME.
        data: Anything that --data of train takes, except pipe: shards.
        teacher: timm:NAME[:FILE], hf:NAME, efficientnet-lite0 or random-vit[:SEED].
        input_size: Side at which the teacher sees images. Its grid should be about twice as fine as the one that is
            compared: 448 gives efficientnet-lite0 14×14 tokens, 224 gives 7×7.
        text_teacher: minilm, dinotxt:FILE or random-text[:SEED]; by default captions have no teacher.
        keep: The Gram of the tokens (criterion gram+rel), PCA tokens (mse, cosine; crops then move the summary, too).
        coding: Bits a number; 8bit costs well under 1 % of Gram distance.
        split: Parts of the data; by default all there are.
        device: Where the teacher runs.
        threads: CPU threads of each process; by default torch's choice.
        reading: How pairs are found, as in train.
    """
    import torch

    from dinorankclip import comm
    from dinorankclip.data.opening import open_pairs, splits_of
    from dinorankclip.device import choose
    from dinorankclip.dino import open_teacher, open_text_teacher
    from dinorankclip.dino.cache import make_cache
    from dinorankclip.dino.layout import Keeping

    if data.startswith("pipe:"):
        raise UserError("a cache is made of data that can be read in any order; pipe: shards cannot. Store them first.")
    world = comm.join(device)
    if threads is not None:
        torch.set_num_threads(threads)
    # Undivided: a validation part carved from the data belongs to the same cache as the rest.
    parts = {part: _whole(open_pairs(data, reading, part)) for part in split or splits_of(data, reading)}
    place = choose(device, "fp32", world.local_rank).device
    frozen = open_teacher(teacher, input_size).to(place)
    reader = open_text_teacher(text_teacher).to(place) if text_teacher else None
    if world.leads and frozen.card.note:
        print(f"{frozen.name}: {frozen.card.note}")
    make_cache(out, parts, frozen, reader, Keeping(keep, coding), reading.max_pixels)
    comm.leave()


def _whole(source):
    return getattr(source, "source", source)


def main(argv: list[str]) -> None:
    if argv and argv[0] == "cache":
        head = (cache.__doc__ or "").split("Args:")[0].strip()
        tyro.cli(cache, prog="dinorankclip teacher cache", args=argv[1:], description=f"{head}\n\nExample: {EXAMPLE}")
        return
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: dinorankclip teacher cache …\n\n  {EXAMPLE}\n\ndinorankclip teacher cache --help tells more.")
        return
    raise UserError(f"teacher has no '{argv[0]}': there is cache")
