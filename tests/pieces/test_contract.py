"""Whoever makes the pieces, all are there, each is made once unless a worker was lost, and errors name the machine."""

import json
import multiprocessing
import os
import platform
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

from dinorankclip import distributed
from dinorankclip.checked_files import read_json
from dinorankclip.extras import MissingPackage
from dinorankclip.io import write_json
from dinorankclip.pieces import crew
from dinorankclip.pieces.account import Account
from dinorankclip.pieces.contract import RaySettings, SlurmSettings, Where, Work
from dinorankclip.pieces.crew import Crew, Note, Worker, work_share
from dinorankclip.pieces.run import make_pieces
from dinorankclip.types import UserError
from tests.pieces.squares import OPENER, Squares, read, squares, work
from tests.systems import POSIX

ROOT = Path(__file__).parents[2]
LOCAL = Where("slurm", workers=2, slurm=SlurmSettings(cluster="local"))


def test_this_process_makes_what_is_missing(tmp_path):
    pieces = Squares(tmp_path)
    (tmp_path / "2").write_text("4")
    account = make_pieces(pieces, show=False)
    assert read(tmp_path) == squares() and sum(account.made.values()) == 5 and account.lost == account.again == 0
    assert pieces.prepared == 1 and pieces.gathered == 6  # after each piece, and at the end
    assert sum(make_pieces(pieces, show=False).made.values()) == 0 and pieces.prepared == 1


def test_progress_counts_what_was_there(tmp_path, capsys):
    (tmp_path / "2").write_text("4")
    make_pieces(Squares(tmp_path))
    assert "60/60" in capsys.readouterr().err


def test_an_error_stops_and_the_same_call_goes_on(tmp_path):
    with pytest.raises(UserError, match="3 has no square"):
        make_pieces(Squares(tmp_path, fails=(3,)), show=False)
    assert set(read(tmp_path)) == {"0", "1", "2"}
    make_pieces(Squares(tmp_path), show=False)
    assert read(tmp_path) == squares()


def test_pieces_that_stay_missing_are_an_error(tmp_path, monkeypatch):
    pieces = Squares(tmp_path)
    monkeypatch.setattr(pieces, "make", lambda number, progress: None)
    with pytest.raises(UserError, match=r"6 of 6 pieces are missing after all.*share the disk"):
        make_pieces(pieces, show=False)


def begin(folder, **settings) -> Crew:
    return Crew.begin(folder, work(folder, **settings), "squares ")


def test_a_worker_takes_its_share_and_then_what_others_left(tmp_path):
    there = begin(tmp_path)
    order = []
    with Worker(there.folder).at_work() as worker:
        make = worker.pieces.make
        worker.pieces.make = lambda number, progress: (order.append(number), make(number, progress))
        worker.take_share(1, 2)
    assert order == [1, 3, 5, 0, 2, 4] and read(tmp_path) == squares()
    (note,) = there.read_notes()
    assert (note.pieces, note.items, note.ended, note.host) == (6, 60, True, platform.node())


def test_workers_that_run_at_once_make_each_piece_once(tmp_path):
    there = begin(tmp_path, seconds=0.05, count=12)
    workers = [multiprocessing.Process(target=work_share, args=(str(there.folder), at, 3)) for at in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    notes = there.read_notes()
    assert read(tmp_path) == squares(12) and sum(note.pieces for note in notes) == 12 and len(notes) == 3


@pytest.mark.skipif(not POSIX, reason="kills a process")
def test_the_piece_of_a_killed_worker_is_taken_over(tmp_path):
    there = begin(tmp_path, kills=[0])
    killed = multiprocessing.Process(target=work_share, args=(str(there.folder), 0, 2))
    killed.start()
    killed.join()
    work_share(str(there.folder), 1, 2)
    assert read(tmp_path) == squares()
    notes = {note.process: note for note in there.read_notes()}
    assert notes.pop(killed.pid).ended is False and [note.again for note in notes.values()] == [1]


def test_a_worker_elsewhere_is_lost_when_its_note_stays_the_same(tmp_path, monkeypatch):
    there = begin(tmp_path)
    (there.notes / "far.1").write_text(json.dumps({"worker": "far.1", "host": "far", "process": 1, "beat": 1}))
    now = [1000.0]
    monkeypatch.setattr(crew.time, "monotonic", lambda: now[0])
    assert there.claim(3, "far.1") is True and there.claim(3, "near.2") is False
    now[0] += crew.LOST_AFTER + 1
    (there.notes / "far.1").write_text(json.dumps({"worker": "far.1", "host": "far", "process": 1, "beat": 2}))
    assert there.claim(3, "near.2") is False  # it lives
    now[0] += crew.LOST_AFTER + 1
    assert there.claim(3, "near.2") is None and (there.claims / "3").read_text() == "near.2"


def test_workers_of_an_older_call_stop_after_their_piece(tmp_path):
    there = begin(tmp_path, seconds=0.3)
    thread = threading.Thread(target=work_share, args=(str(there.folder), 0, 1))
    thread.start()
    while not (there.claims / "0").exists():
        time.sleep(0.01)
    stored = json.loads((there.folder / "work.json").read_text())
    write_json(there.folder / "work.json", stored | {"leader": {"host": platform.node(), "process": 2**30}})  # killed
    newer = begin(tmp_path)
    thread.join()
    assert set(read(tmp_path)) <= {"0", "1"} and not there.folder.exists() and newer.folder.exists()


def test_a_call_beside_another_one_leaves_its_folder(tmp_path):
    one, other = begin(tmp_path), begin(tmp_path)
    assert one.folder.exists() and other.folder.exists()
    one.remove()
    assert other.folder.exists() and other.claim(0, "a") is True and one.claim(0, "a") is False
    far = json.loads((other.folder / "work.json").read_text()) | {"leader": {"host": "far", "process": 1}}
    write_json(other.folder / "work.json", far)
    begin(tmp_path)
    assert other.folder.exists(), "its leading process may live"
    old = time.time() - 2 * crew.DAY
    os.utime(other.folder / "work.json", (old, old))
    begin(tmp_path)
    assert not other.folder.exists()


def test_a_call_that_begins_beside_another_one_keeps_its_folder(tmp_path):
    """A folder without work.json belongs to a call that is about to write it, or to one that died long ago."""
    begun = tmp_path / ".work-begins"
    begun.mkdir()
    begin(tmp_path)
    assert begun.exists()
    old = time.time() - 2 * crew.BEGINS
    os.utime(begun, (old, old))
    begin(tmp_path)
    assert not begun.exists()


def test_a_worker_says_what_it_cannot_open(tmp_path):
    host = platform.node()
    with pytest.raises(UserError, match=f"{host} cannot open .*same paths as here, on a disk that all machines share"):
        work_share(str(tmp_path / "nowhere"), 0, 1)
    gone = Crew.begin(tmp_path, work(tmp_path / "photos"), "squares ")
    with pytest.raises(UserError, match=f"{host} cannot open the work: there is no .*photos"):
        work_share(str(gone.folder), 0, 1)
    assert "there is no" in gone.read_notes()[0].error
    other = Crew.begin(tmp_path, work(tmp_path, data="old"), "squares new")
    with pytest.raises(UserError, match=f"{host} sees another model or other data"):
        work_share(str(other.folder), 0, 1)


@pytest.mark.skipif(not POSIX, reason="kills a process")
def test_an_array_job_survives_the_loss_of_an_element(tmp_path, monkeypatch, capsys):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # workers open tests.pieces.squares
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    settings = {"kills": [0], "seconds": 0.1}
    pieces = Squares(tmp_path / "out", **settings)
    account = make_pieces(pieces, LOCAL, work(tmp_path / "out", **settings), tmp_path / "out")
    assert read(tmp_path / "out") == squares()
    assert account.lost == 1 and account.again == 1
    assert "workers lost: 1, pieces begun again: 1" in capsys.readouterr().out
    assert not list((tmp_path / "out").glob(".work-*"))


def test_an_array_job_hands_over_the_error_of_its_workers(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # workers open tests.pieces.squares
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=r"3 has no square \(logs: "):
        make_pieces(Squares(tmp_path / "out"), LOCAL, work(tmp_path / "out", fails=[3]), tmp_path / "out", show=False)


def test_work_without_a_name_for_others_stays_here(tmp_path):
    with pytest.raises(UserError, match="--on ray: squares can be made by this process and torchrun alone"):
        make_pieces(Squares(tmp_path), Where("ray"), show=False)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"ray": RaySettings(cores=0)}])
def test_less_than_one_is_refused(settings):
    with pytest.raises(UserError, match="at least 1"):
        Where("ray", **settings)


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"--on ray needs ray: pip install 'dinorankclip\[ray\]'"):
        make_pieces(Squares(tmp_path), Where("ray"), work(tmp_path), tmp_path, show=False)


def test_the_account_names_workers_and_losses():
    account = Account(lost=1, again=2, seconds=61.4)
    account.add("a.1", 3, 10.2)
    account.add("b.2", 4, 11.0)
    assert str(account) == (
        "7 pieces in 61 s, 21 core-seconds, by a.1 (3), b.2 (4); workers lost: 1, pieces begun again: 2"
    )


def test_only_names_travel():
    stored = json.dumps(Work(OPENER, {"folder": "x"}).__dict__)
    assert json.loads(stored) == {"opener": OPENER, "settings": {"folder": "x"}, "device": "auto"}
    assert set(Note("w").__dict__) == {
        "worker", "host", "process", "beat", "pieces", "items", "again", "core_seconds", "ended", "error",
    }  # fmt: skip


def _rank(rank, port, folder):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.join("cpu")
    account = make_pieces(Squares(folder, seconds=0.3 if rank == 0 else 0.01, count=12), show=rank == 0)
    if rank == 0:
        write_json(folder / "account.json", account.made)
    distributed.leave()


def test_ranks_of_torchrun_take_the_next_number_when_they_are_free(tmp_path, free_port):
    torch.multiprocessing.spawn(_rank, (free_port, tmp_path), nprocs=2)
    made = read_json(tmp_path / "account.json")
    (tmp_path / "account.json").unlink()
    assert read(tmp_path) == squares(12) and sum(made.values()) == 12
    assert made["rank 0"] < made["rank 1"]  # the slow rank gets fewer


@pytest.fixture
def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
