"""A process that ends or hangs is named by the others, in one sentence."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.multiprocessing as mp

from dinorankclip import distributed, lost_process
from dinorankclip.types import UserError
from tests.systems import POSIX

pytestmark = POSIX


def _take_part(rank: int, size: int, port: int, lost: int, how: str, messages) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ[lost_process.SECONDS] = "2"
    torch.set_num_threads(1)
    distributed.join("cpu")
    if rank == 0 and how == "leader stops":
        distributed.leader_first(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    elif rank == 0 and how == "long work":
        distributed.leader_first(lambda: time.sleep(4))  # longer than exchanges may take
    else:
        try:
            distributed.leader_first(lambda: None)
        except UserError as error:
            messages[rank] = str(error)
            os._exit(0)
    if rank == lost:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs":
            time.sleep(15)
            os._exit(0)
    try:
        distributed.any_process(True)
        messages[rank] = "fine"
    except UserError as error:
        messages[rank] = str(error)
    if how != "long work":
        os._exit(0)
    distributed.leave()


@pytest.mark.parametrize(
    ("how", "size", "lost", "expected"),
    [
        ("killed", 2, 1, "process 1 of 2 has ended, so process 0 stops too"),
        ("hangs", 3, 2, "process 2 of 3 has not answered for 2 seconds, so process"),
        ("long work", 2, None, "fine"),
        ("leader stops", 2, 0, "process 0 of 2 has not answered for 2 seconds, so process 1"),
    ],
)
def test_the_others_name_it(how, size, lost, expected):
    port = distributed_port()
    with mp.Manager() as manager:
        messages = manager.dict()
        group = mp.spawn(_take_part, (size, port, lost, how, messages), nprocs=size, join=False)
        for rank, process in reversed(list(enumerate(group.processes))):
            process.join(60)
            if rank == 1 and how == "leader stops":
                group.processes[0].kill()
        found = dict(messages)
    assert found.keys() == set(range(size)) - {lost}
    for text in found.values():
        assert text.startswith(expected) and "\n" not in text
        assert how == "long work" or "start all processes again with the same command" in text


def test_a_process_whose_companion_never_starts_says_so(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(distributed_port()))
    monkeypatch.setenv(lost_process.SECONDS, "1")
    monkeypatch.setattr(distributed, "START_WITHIN", timedelta(seconds=1))
    with pytest.raises(UserError, match=r"process 0 cannot connect to the others .*1/2.*start all of them again"):
        distributed.join("cpu")


def distributed_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_the_time_to_answer_is_a_number_of_seconds(monkeypatch):
    monkeypatch.delenv(lost_process.SECONDS, raising=False)
    assert lost_process.answer_within() == lost_process.ANSWER_WITHIN
    monkeypatch.setenv(lost_process.SECONDS, "90")
    assert lost_process.answer_within().total_seconds() == 90
    monkeypatch.setenv(lost_process.SECONDS, "soon")
    with pytest.raises(UserError, match="give a number of seconds"):
        lost_process.answer_within()
