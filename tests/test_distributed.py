"""Who we are among processes, what a failure of the leading one does, and whose random numbers are drawn."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dinorankclip import distributed
from dinorankclip.seeds import drawing_from, named_seed
from dinorankclip.types import UserError


@pytest.mark.parametrize(("gpus", "local_rank", "gpu"), [(8, 0, 0), (8, 5, 5), (1, 0, 0), (1, 3, 0)])
def test_a_process_takes_its_own_gpu_or_the_only_one_it_is_shown(monkeypatch, gpus, local_rank, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3" if gpus == 1 else "0,1,2,3,4,5,6,7")
    assert distributed._gpu_of(local_rank) == gpu


def test_processes_without_a_gpu_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="sees no GPU"):
        distributed._gpu_of(0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="process 2 of this machine has no GPU: --nproc-per-node 2"):
        distributed._gpu_of(2)


def test_one_gpu_is_not_shared_by_processes_that_were_not_shown_their_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert distributed._gpu_of(0) == 0
    with pytest.raises(UserError, match="process 1 of this machine has no GPU: --nproc-per-node 1"):
        distributed._gpu_of(1)


def _fail_as_leader(rank: int, file: str, messages) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)

    def work():
        raise ZeroDivisionError("in scoring")

    try:
        distributed.leader_first(work)
    except Exception as error:
        messages[rank] = f"{type(error).__name__}: {error}"
    dist.destroy_process_group()


def test_any_error_of_the_leading_process_ends_the_others_too(tmp_path):
    with mp.Manager() as manager:
        messages = manager.dict()
        mp.spawn(_fail_as_leader, (str(tmp_path / "meet"), messages), nprocs=2)
        assert messages[0] == "ZeroDivisionError: in scoring"
        assert messages[1] == "UserError: the leading process stopped; see its message"


def test_a_named_stream_is_the_seeds_own_and_leaves_gpus_alone(monkeypatch):
    torch.manual_seed(named_seed(3, "trunk"))
    expected = torch.rand(4)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("GPUs were seeded"))
    torch.default_generator.manual_seed(7)
    with drawing_from(3, "trunk"):
        assert torch.equal(torch.rand(4), expected)
    after = torch.rand(1)
    torch.default_generator.manual_seed(7)
    assert torch.equal(after, torch.rand(1))
