"""Processes: who we are, and the few exchanges training needs. One process needs no torch.distributed at all.

Convention for losses: each process returns the mean over its own rows, the loss of a step is the mean over
processes, and `mean_gradients` after backward gives its gradient.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dinorankclip.types import UserError

# Others wait while the leading process scores or writes; the default of nccl, ten minutes, is too short for that.
PATIENCE = timedelta(hours=3)
_SHOWING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0


def join(device: str = "cpu") -> World:
    """Join the group that `torchrun` described in the environment; alone if there is none."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device.startswith("cuda:"):
        raise UserError(f"--budget.device {device} names one GPU for {size} processes; use --budget.device cuda")
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        local_rank = _gpu_of(local_rank)
        torch.cuda.set_device(local_rank)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size(), local_rank)


def _gpu_of(local_rank: int) -> int:
    """The GPU of a process: of its number on the machine, or the only one that it is shown (as SLURM may bind them)."""
    if not torch.cuda.is_available():
        raise UserError("--budget.device cuda: torch sees no GPU here; use cpu")
    seen = torch.cuda.device_count()
    # A process that is shown one GPU of many is told so in the environment; without a word there is one for all.
    shown_its_own = seen == 1 and any(name in os.environ for name in _SHOWING)
    if local_rank >= seen and not shown_its_own:
        raise UserError(
            f"process {local_rank} of this machine has no GPU: --nproc-per-node {seen} starts as many as it has GPUs"
        )
    return 0 if seen == 1 else local_rank


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def world() -> World:
    """Who we are now; alone unless a group was joined."""
    if dist.is_available() and dist.is_initialized():
        on_gpu = dist.get_backend() == "nccl"
        local_rank = torch.cuda.current_device() if on_gpu else int(os.environ.get("LOCAL_RANK", "0"))
        return World(dist.get_rank(), dist.get_world_size(), local_rank)
    return World()


class _GatherRows(torch.autograd.Function):
    """Concatenate every process's rows. Backward sums the gradients that all processes have for our rows."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        everyone = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, rows)
        return torch.cat(everyone)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        # all_reduce and a slice rather than reduce_scatter: gloo has it in every version we support, and these
        # are embeddings, a few megabytes.
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def gather_rows(rows: Tensor) -> Tensor:
    """[B, …] on each process → [W·B, …] on all, in process order, with gradient. Every process has the same B."""
    return rows if world().size == 1 else _GatherRows.apply(rows)


def mean_gradients(parameters: Iterable[torch.nn.Parameter], bucket: int = 1 << 23) -> None:
    """Average gradients over processes, in buckets of about `bucket` numbers. A missing gradient stays missing,
    so the set of parameters with gradients must not depend on the process."""
    if world().size == 1:
        return
    waiting: list[Tensor] = []
    size = 0

    def flush() -> None:
        if not waiting:
            return
        flat = torch.cat([grad.reshape(-1) for grad in waiting])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, part in zip(waiting, flat.split([g.numel() for g in waiting])):
            grad.copy_(part.view_as(grad))
        waiting.clear()

    for parameter in parameters:
        if parameter.grad is None:
            continue
        if waiting and (size + parameter.numel() > bucket or waiting[0].dtype != parameter.grad.dtype):
            flush()
            size = 0
        waiting.append(parameter.grad)
        size += parameter.numel()
    flush()


def any_process(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is set on any process."""
    if world().size == 1:
        return flags
    seen = torch.tensor(flags, dtype=torch.int32, device=_device())
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return tuple(bool(v) for v in seen.tolist())


def mean_over_processes(values: dict[str, float]) -> dict[str, float]:
    """Average numbers that every process has under the same names."""
    if world().size == 1 or not values:
        return values
    names = sorted(values)
    flat = torch.tensor([values[n] for n in names], dtype=torch.float32, device=_device())
    dist.all_reduce(flat)
    return dict(zip(names, (flat / dist.get_world_size()).tolist()))


def gather_bytes(state: Tensor) -> list[Tensor]:
    """The same-sized uint8 tensor of every process, on all of them."""
    if world().size == 1:
        return [state]
    mine = state.to(_device())
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [t.cpu() for t in everyone]


def leader_first(work: Callable[[], object]) -> None:
    """Done by the leading process while the others wait; an error there ends all of them."""
    failure: Exception | None = None
    if world().leads:
        try:
            work()
        except Exception as error:
            failure = error
    if any_process(failure is not None)[0]:
        raise failure or UserError("the leading process stopped; see its message")


def same_everywhere(number: int) -> bool:
    """Whether all processes have the same number."""
    if world().size == 1:
        return True
    seen = torch.tensor([number, -number], dtype=torch.int64, device=_device())
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return seen[0].item() == -seen[1].item()


def wait_for_all() -> None:
    if world().size > 1:
        dist.barrier()


def _device() -> str:
    return f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
