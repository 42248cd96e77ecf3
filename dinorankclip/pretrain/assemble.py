"""From settings to the objects a run consists of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dinorankclip import comm
from dinorankclip.config import TrainSettings
from dinorankclip.data.loader import Loader, load_pairs
from dinorankclip.data.opening import open_pairs, open_stored, splits_of
from dinorankclip.data.pipes import PipeSource
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import Placement, choose
from dinorankclip.encoders.published import caution_about_weights, refuse_foreign_captions
from dinorankclip.encoders.trunk import trunk_config
from dinorankclip.joint.folder import load_folder
from dinorankclip.joint.model import JointModel
from dinorankclip.joint.open_clip_source import PREFIX, open_clip_model
from dinorankclip.losses.objective import Objective
from dinorankclip.memory import keep_freed_memory
from dinorankclip.methods import traits_of
from dinorankclip.optim.groups import freeze
from dinorankclip.optim.update import Updater
from dinorankclip.presets import preset
from dinorankclip.pretrain import checkpoints
from dinorankclip.pretrain.continued import continued_parts
from dinorankclip.pretrain.distilling import distillation_loss, open_cache, teach, wanted_parts
from dinorankclip.pretrain.frozen import FrozenImages, freeze_image_side, frozen_images
from dinorankclip.pretrain.loop import Length
from dinorankclip.pretrain.records import say
from dinorankclip.pretrain.state import TrainingState
from dinorankclip.run_files import CHECKPOINTS
from dinorankclip.types import Source, UserError


@dataclass
class Parts:
    """Everything a run is made of; `held_out` maps "val" and, if the data has one, "test" to its pairs."""

    settings: TrainSettings
    placement: Placement
    state: TrainingState
    length: Length
    tokenizer: Tokenizer
    loader: Loader
    train: Source | PipeSource
    held_out: dict[str, Source]
    frozen: FrozenImages | None = None  # what is known of all images, if the image side does not learn


def assemble(settings: TrainSettings, dry: bool = False) -> Parts:
    """Join the processes, open the data, build model, objective and optimiser; no run folder is written.

    `dry`: long preparations are left out, stand-ins take the place of what they would give.
    """
    world = comm.join(settings.budget.device)
    keep_freed_memory()
    if settings.budget.threads is not None:
        torch.set_num_threads(settings.budget.threads)
    torch.manual_seed(settings.seed + world.rank)
    placement = choose(settings.budget.device, settings.budget.precision, world.local_rank)
    say(placement.reason)
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)  # whatever asks for "the" GPU from now on means this one
    train = open_pairs(settings.data, settings.reading, "train")
    wanted = ("val", "test") if "test" in splits_of(settings.data, settings.reading) else ("val",)
    held_out = {split: open_stored(settings.data, settings.reading, split) for split in wanted}
    model = build_model(settings).to(placement.device)
    freeze(model, settings.optim.freeze)
    frozen = None
    if settings.model.frozen_image_tower:
        freeze_image_side(model)
        frozen = frozen_images(model, {"train": train, **held_out}, settings.reading, dry)
    model.train()  # now that it is known what learns
    _refuse_batch_statistics(model, settings)
    tokenizer = Tokenizer(model.trunk.text_spec)
    cache = open_cache(settings.distil, settings.reading, train, tokenizer)
    distillation = distillation_loss(settings.distil, model, cache, settings.seed)
    objective = Objective(model.dim, settings.method, settings.loss, settings.seed, distillation).to(placement.device)
    loader = load_pairs(
        train,
        model.trunk.image_spec,
        tokenizer,
        batch=settings.budget.batch,
        seed=settings.seed,
        reading=settings.reading,
        rank=world.rank,
        world=world.size,
        second_caption=traits_of(settings.method).second_caption,
        companions=cache,
        rows=frozen.rows["train"] if frozen else None,
    )
    length = Length(loader.steps_per_epoch, settings.budget.epochs)
    updater = Updater({"model": model, "objective": objective}, settings.optim, length.steps)
    return Parts(
        settings=settings,
        placement=placement,
        state=TrainingState(model, objective, updater, train.fingerprint + (f"+{cache.identity}" if cache else "")),
        length=length,
        tokenizer=tokenizer,
        loader=loader,
        train=train,
        held_out=held_out,
        frozen=frozen,
    )


def build_model(settings: TrainSettings) -> JointModel:
    """From a folder or an open_clip model (`init`), from open_clip weights (`model.weights`), or from scratch."""
    described = replace(settings.model, frozen_image_tower=False)
    if settings.init is not None and described != preset(settings.preset).model:
        raise UserError("--init brings the whole model of that folder: leave out --model.*")
    if settings.init is not None:
        model = _trained_model(settings.init)
        model.set_parts(*continued_parts(model, settings), settings.seed)
    else:
        config = trunk_config(settings.model.trunk, settings.model.image_size)
        refuse_foreign_captions(config, settings.model.trunk)
        model = JointModel(config, settings.seed, *wanted_parts(settings))
        if settings.model.weights is not None:
            if caution := caution_about_weights(settings.model.trunk):
                say(f"mind: {caution}")
            model.trunk.load_weights(settings.model.weights)
    teach(model, settings)
    return model


def _trained_model(where: str) -> JointModel:
    if not where.startswith(PREFIX):
        return load_folder(where)
    model, caution = open_clip_model(where)
    if caution:
        say(f"mind: {caution}")
    return model


def _refuse_batch_statistics(model: JointModel, settings: TrainSettings) -> None:
    """BatchNorm sees a chunk or one process's share, so neither chunks nor processes would equal one whole batch."""
    cut = comm.world().size > 1 or (settings.budget.chunk or settings.budget.batch) < settings.budget.batch
    if cut and any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules()):
        raise UserError(
            f"the trunk {settings.model.trunk} uses BatchNorm, whose statistics depend on how a batch is cut: use one "
            "process without --budget.chunk, or a trunk without it (any ViT), or freeze it"
        )


def resume(parts: Parts, run: Path) -> None:
    """Continue from the run's newest checkpoint, if there is one."""
    newest = checkpoints.newest(run / CHECKPOINTS)
    if newest is not None:
        parts.state.read(newest)
        if parts.frozen is not None:
            parts.frozen.demand(parts.state.model)
        parts.loader.step = parts.state.step
        say(f"resuming from {newest}")
    if not comm.same_everywhere(parts.state.step):
        raise UserError(
            f"process {comm.world().rank} would go on at step {parts.state.step}, others elsewhere: "
            "the run folder must be on a disk that all machines share"
        )
