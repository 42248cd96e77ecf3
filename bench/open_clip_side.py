"""open_clip as its own trainer runs it: its model, tokenizer, transforms, data pipeline, loss and training loop.

Everything is called, not rebuilt, but for the AdamW of `open_clip_train.main.main`, which that function builds inside
itself: two groups, biases, norms and the temperature without decay, not fused. fp32, as `--precision fp32 --device
cpu` gives; other arguments have the trainer's defaults.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

import torch
from torch import Tensor

from bench.sides import TOTAL_STEPS, WARMUP
from dinorankclip.models.joint import JointModel

if importlib.util.find_spec("pandas") is None:
    # open_clip_train.data needs pandas for its CSV reader alone; an empty module lets the rest be imported.
    sys.modules["pandas"] = importlib.util.module_from_spec(ModuleSpec("pandas", None))
    import open_clip_train.data

    del sys.modules["pandas"]

import open_clip
import open_clip_train.data
from open_clip_train.data import DataInfo, get_wds_dataset
from open_clip_train.params import parse_args
from open_clip_train.scheduler import cosine_lr
from open_clip_train.train import train_one_epoch
from webdataset.tariterators import tar_file_expander

logging.getLogger().addFilter(lambda record: "No pretrained weights" not in record.getMessage())  # they come from ours

# Newer than the 0.2.86 that open_clip asks for, webdataset marks the end of each tar, which its grouping cannot read.
open_clip_train.data.tar_file_expander = partial(tar_file_expander, eof_value=None)


class Batches(list):
    """Batches made beforehand, with the two counts that open_clip's loop reads off a loader."""

    def __init__(self, batches: Sequence[tuple[Tensor, Tensor]]):
        super().__init__(batches)
        self.num_batches, self.num_samples = len(batches), sum(len(images) for images, _ in batches)


class OpenClipTrainer:
    """A model with the weights of ours, and all that `python -m open_clip_train.main` builds around it.

    The cosine schedule has `warmup` of `total` steps; `rate` is its peak, by default the trainer's own.
    """

    def __init__(
        self,
        name: str,
        ours: JointModel,
        batch: int,
        workers: int = 0,
        warmup: int = WARMUP,
        total: int = TOTAL_STEPS,
        rate: float | None = None,
    ):
        self.args = trainer_arguments(name, batch, workers)
        self.args.lr = self.args.lr if rate is None else rate
        self.model, self.train_transform, self.transform = open_clip.create_model_and_transforms(
            name, precision=self.args.precision, device=self.args.device, output_dict=True
        )
        self.model.load_state_dict(ours.trunk.towers.state_dict())
        self.tokenizer = open_clip.get_tokenizer(name)
        self.loss = open_clip.create_loss(self.args)
        self.losses: list[Tensor] = []
        self.loss.register_forward_hook(lambda _, inputs, found: self.losses.append(found["contrastive_loss"].detach()))
        self.optimizer = _adamw(self.model, self.args)
        self._schedule = cosine_lr(self.optimizer, self.args.lr, warmup, total)
        self._done = 0

    def train(self, data: DataInfo) -> None:
        """open_clip's loop over one epoch of `data`; the learning rate goes on where the last call ended."""
        before = self._done

        def schedule(step: int) -> None:
            self._schedule(before + step)
            self._done = before + step + 1

        train_one_epoch(self.model, {"train": data}, self.loss, 0, self.optimizer, None, schedule, None, self.args)

    def steps(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Steps on normalised images [B, 3, S, S] and ids [B, 77] that are ready in memory."""
        self.train(DataInfo(Batches(batches)))

    def shards(self, folder: Path, pairs: int) -> DataInfo:
        """Its WebDataset pipeline over the tars of a folder, `pairs` an epoch, on `workers` processes."""
        self.args.train_data = "::".join(sorted(str(tar) for tar in folder.glob("*.tar")))
        self.args.train_num_samples = pairs
        data = get_wds_dataset(self.args, self.train_transform, is_train=True, tokenizer=self.tokenizer)
        assert data.dataloader.num_samples == pairs, "pairs must fill whole batches on every worker"
        return data

    @torch.no_grad()
    def loss_of(self, images: Tensor, texts: Tensor) -> float:
        return float(self.loss(**self.model(images, texts), output_dict=True)["contrastive_loss"])


def trainer_arguments(name: str, batch: int, workers: int) -> Namespace:
    """What its command line gives, and the fields that `main` adds for a single process."""
    words = ["--model", name, "--precision", "fp32", "--device", "cpu"]
    args = parse_args([*words, "--batch-size", str(batch), "--workers", str(workers)])
    args.rank = args.local_rank = 0
    args.world_size, args.distributed, args.distill, args.wandb = 1, False, False, False
    return args


def _adamw(model: torch.nn.Module, args: Namespace) -> torch.optim.AdamW:
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        spared = parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))
        (plain if spared else decayed).append(parameter)
    return torch.optim.AdamW(
        [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": args.wd}],
        lr=args.lr,
        betas=(args.beta1, args.beta2),
        eps=args.eps,
    )
