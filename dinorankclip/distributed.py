"""Finds the rank of a process and makes the exchanges that training needs. One process needs no torch.distributed.

A loss follows this convention: each process returns the mean over its own rows, the loss of a step is the mean over
processes, and `mean_gradients` after backward gives the gradient of that mean. `GradientExchange` gives the same while
backward runs. Numbers of the host travel between hosts (gloo), also beside GPUs: no GPU is waited for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from dinorankclip.lost_process import PATIENCE, answer_within, living, noticing, wait_for
from dinorankclip.types import UserError, first_line

BUCKET = 1 << 23  # numbers of gradients that travel together
START_WITHIN = timedelta(minutes=1)  # processes start at different times, however soon they must answer later
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass
class _Meeting:
    """Holds where the processes of this group met, and the group in which they wait for the leading process."""

    store: dist.Store | None = None
    patient: dist.ProcessGroup | None = None
    shared: int = 0  # `SharedNumbers` so far: all processes make them in the same order


_meeting = _Meeting()


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Return whether this is the process that prints and writes."""
        return self.rank == 0


def join(device: str = "cpu") -> World:
    """Join the group that `torchrun` describes in the environment. Without such a group, the process stays alone."""
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
        _init(on_gpu)
    return World(dist.get_rank(), dist.get_world_size(), local_rank)


def _init(on_gpu: bool) -> None:
    """Start the group. Exchanges of a step end after a time that is shorter than the leading process may take to score,
    so waits for that process have a group of their own, between hosts."""
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=max(answer_within(), START_WITHIN)))
        # torchrun --max-restarts keeps its store: what processes of an earlier attempt wrote there must not be found.
        store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        _meeting.store = dist.PrefixStore("roll call", store)
        group = dist.PrefixStore("group", store)
        dist.init_process_group(backend, store=group, rank=rank, world_size=size, timeout=answer_within())
        _meeting.patient = dist.new_group(timeout=PATIENCE, backend="gloo")
    except RuntimeError as error:
        raise UserError(
            f"process {os.environ.get('RANK')} cannot connect to the others ({first_line(error)}); start all of them "
            "again with the same command"
        ) from error


def _gpu_of(local_rank: int) -> int:
    """Return the GPU of a process: its own number, or 0 where it sees a single GPU (as SLURM may bind them)."""
    if not torch.cuda.is_available():
        raise UserError("--budget.device cuda: torch sees no GPU here; use cpu")
    visible = torch.cuda.device_count()
    # A scheduler that shows a process one GPU of many sets such a variable; otherwise the machine has only this GPU.
    bound = visible == 1 and any(name in os.environ for name in _VISIBLE)
    if local_rank >= visible and not bound:
        raise UserError(
            f"process {local_rank} of this machine has no GPU: --nproc-per-node {visible} starts as many as it has GPUs"
        )
    return 0 if visible == 1 else local_rank


def own_device(device: str) -> str:
    """Return the GPU of this rank in place of "auto" or "cuda"; for one process, and without GPUs, `device` itself."""
    if world().size == 1 or dist.get_backend() != "nccl" or device not in ("auto", "cuda"):
        return device
    return f"cuda:{torch.cuda.current_device()}"


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    _meeting.store = _meeting.patient = None


def world() -> World:
    """Return the rank of this process and the size of its group: 0 and 1 unless a group was joined."""
    if dist.is_available() and dist.is_initialized():
        on_gpu = "nccl" in dist.get_backend_config()
        local_rank = torch.cuda.current_device() if on_gpu else int(os.environ.get("LOCAL_RANK", "0"))
        return World(dist.get_rank(), dist.get_world_size(), local_rank)
    return World()


class _GatherRows(torch.autograd.Function):
    """Concatenates the rows of all processes. Backward sums all processes' gradients of the own rows."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        return torch.cat(_all_gathered(rows))

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        # gloo has all_reduce, but not reduce_scatter, in every supported version; embeddings are a few megabytes
        grad = grad.contiguous().clone()
        _all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def gather_rows(rows: Tensor) -> Tensor:
    """Gather rows [B, …] of each process into [W·B, …], in process order, with gradient. B is the same everywhere."""
    return rows if world().size == 1 else _GatherRows.apply(rows)


def gather_integers(rows: Tensor) -> Tensor:
    """Gather integers [B, …] of each process into [W·B, …], in process order, on the CPU. B is the same everywhere."""
    if world().size == 1:
        return rows
    return torch.cat(_all_gathered(rows.to(_device()).contiguous())).cpu()


def mean_gradients(parameters: Iterable[torch.nn.Parameter], bucket: int = BUCKET) -> None:
    """Average gradients over processes, in buckets of about `bucket` numbers. A missing gradient stays missing, so the
    same parameters must have gradients on every process."""
    GradientExchange([list(parameters)], bucket).finish()


class GradientExchange:
    """Averages gradients over processes, while the backward pass that computes them still runs.

    Parameters lie in buckets that depend on their order and sizes alone, so that sums round alike in every step and
    after a resume. `during_backward` surrounds the last backward pass of a step: a bucket whose gradients are all there
    leaves at once. `finish` sends the others, waits, and writes the means. A parameter may lack a gradient, on every
    process alike; its bucket then waits for `finish`.

    Buckets leave in one order everywhere: the order in which the leading process had them complete in its first step.
    """

    def __init__(self, parts: Iterable[Sequence[torch.nn.Parameter]], bucket: int = BUCKET) -> None:
        """`parts` never share a bucket: a part whose gradients are late or missing holds back none of another part."""
        self._buckets: list[list[torch.nn.Parameter]] = []
        for part in parts:
            room = 0
            for at, parameter in enumerate(part):
                if at == 0 or room < parameter.numel() or self._buckets[-1][0].dtype != parameter.dtype:
                    self._buckets.append([])
                    room = bucket
                self._buckets[-1].append(parameter)
                room -= parameter.numel()
        self._order: list[int] = []  # in which buckets leave during backward; empty before it was learnt
        self._complete: list[int] = []  # buckets in the order in which this step completed them
        self._missing: list[int] = []  # gradients that a bucket waits for; empty outside `during_backward`
        self._sent: dict[int, tuple[Tensor, list[Tensor], dist.Work]] = {}
        self._listens = False

    @contextlib.contextmanager
    def during_backward(self) -> Iterator[None]:
        """Send complete buckets during the backward pass in this block, the last one of a step."""
        if world().size == 1:
            yield
            return
        if not self._listens:
            for number, bucket in enumerate(self._buckets):
                for parameter in bucket:
                    parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))
            self._listens = True
        self._missing = [len(bucket) for bucket in self._buckets]
        self._complete, self._sent = [], {}
        try:
            yield
        finally:
            self._missing = []

    def _arrived(self, number: int, _parameter: Tensor) -> None:
        if not self._missing:  # an earlier pass, to whose gradients more are added
            return
        self._missing[number] -= 1
        if self._missing[number] == 0:
            self._complete.append(number)
            for ready in self._order[len(self._sent) :]:
                if self._missing[ready] > 0:
                    break
                self._send(ready)

    def _send(self, number: int) -> None:
        grads = [parameter.grad for parameter in self._buckets[number] if parameter.grad is not None]
        if grads:
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            with noticing(_meeting.store):
                self._sent[number] = flat, grads, dist.all_reduce(flat, async_op=True)

    def finish(self) -> None:
        """Send what has not left yet, wait, and replace each gradient by its mean."""
        if world().size == 1:
            return
        for number in range(len(self._buckets)):
            if number not in self._sent:
                self._send(number)
        for flat, grads, work in self._sent.values():
            with noticing(_meeting.store):
                work.wait()
            flat /= dist.get_world_size()
            for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
                grad.copy_(part.view_as(grad))
        if self._complete and not self._order:
            self._order = self._leaders(self._complete)
        self._sent = {}

    def _leaders(self, complete: list[int]) -> list[int]:
        """Return the leading process's order of complete buckets."""
        order = torch.full((len(self._buckets),), -1, device=_device())
        order[: len(complete)] = torch.tensor(complete)
        with noticing(_meeting.store):
            dist.broadcast(order, src=0)
        return [number for number in order.tolist() if number >= 0]


def any_on_device(flag: Tensor) -> Tensor:
    """Return the largest value of a tensor over processes, without waiting for a GPU."""
    if world().size > 1:
        _all_reduce(flag, dist.ReduceOp.MAX)
    return flag


def any_process(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is set on any process."""
    return tuple(map(bool, _largest(flags)))


def same_everywhere(number: int) -> bool:
    """Return whether all processes have the same number."""
    largest, negated_smallest = _largest((number, -number))
    return largest == -negated_smallest


def _largest(numbers: Sequence[int]) -> Sequence[int]:
    """Return the largest value of each number over processes."""
    if world().size == 1:
        return numbers
    largest = torch.tensor(numbers, dtype=torch.int64, device=_device())
    _all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def mean_over_processes(values: dict[str, float]) -> dict[str, float]:
    """Average numbers over processes. Every process must give the same names."""
    if world().size == 1 or not values:
        return values
    names = sorted(values)
    flat = torch.tensor([values[n] for n in names], dtype=torch.float32, device=_device())
    _all_reduce(flat)
    return dict(zip(names, (flat / dist.get_world_size()).tolist()))


def gather_bytes(state: Tensor) -> list[Tensor]:
    """Gather the uint8 tensors of all processes, which must have the same size."""
    if world().size == 1:
        return [state]
    return [t.cpu() for t in _all_gathered(state.to(_device()))]


def leader_first(work: Callable[[], object]) -> None:
    """Let the leading process work while the others wait. An error of the leading process ends all of them."""
    failure: Exception | None = None
    if world().leads:
        try:
            with living(_meeting.store) if world().size > 1 else contextlib.nullcontext():
                work()
        except Exception as error:
            failure = error
    sent = _done_by_leader()
    if sent is not None and not world().leads:
        with noticing(_meeting.store):
            wait_for(sent, _meeting.store)
    failed = any_process(failure is not None)[0]
    if sent is not None and world().leads:
        sent.wait()
    if failed:
        raise failure or UserError("the leading process stopped; see its message")


def _done_by_leader() -> dist.Work | None:
    """Let the leading process tell the others that its work is done. It does not wait until they have heard it: the
    exchange that follows notices soon if one of them is lost."""
    if world().size == 1:
        return None
    with noticing(_meeting.store):
        done = torch.zeros(1, device=_device())
        return dist.broadcast(done, src=0, group=_meeting.patient, async_op=True)


def wait_for_all() -> None:
    """Wait until all processes are here, for hours if need be: one of them may have much work to do before."""
    if world().size > 1:
        with noticing(_meeting.store):
            dist.barrier(group=_meeting.patient)


class SharedNumbers:
    """Hands each number of a list to the process that asks first, and counts items over all processes. Every process
    must make it at the same place of its work."""

    def __init__(self) -> None:
        _meeting.shared += 1
        self._name, self._counted, self._rest = f"shared {_meeting.shared}", 0, 0.0

    def take(self, numbers: Sequence[int]) -> Iterator[int]:
        """Yield the numbers that this process is to do, out of those that all processes have."""
        size, rank, store = world().size, world().rank, _meeting.store
        if size == 1 or store is None:  # a group that a test made itself has no store to count in
            yield from numbers[rank::size]
            return
        while (place := self._add("taken", 1) - 1) < len(numbers):
            yield numbers[place]

    def count(self, items: float) -> float:
        """Count items of this process; return the items of all processes since the last call."""
        if world().size == 1 or _meeting.store is None:
            return items
        self._rest += items
        whole, before = int(self._rest), self._counted
        self._rest -= whole
        self._counted = self._add("items", whole)
        return self._counted - before

    def _add(self, what: str, number: int) -> int:
        assert _meeting.store is not None
        with noticing(_meeting.store):
            return _meeting.store.add(f"{self._name}/{what}", number)


def _all_reduce(values: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    with noticing(_meeting.store):
        dist.all_reduce(values, op=op)


def _all_gathered(mine: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, in their order; all have the same shape."""
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    with noticing(_meeting.store):
        dist.all_gather(everyone, mine)
    return everyone


def _device() -> str:
    """Return where numbers of the host are exchanged: between hosts, unless the group knows GPUs alone."""
    return "cpu" if "cpu:" in dist.get_backend_config() else f"cuda:{torch.cuda.current_device()}"
