"""Ray: a worker that dies costs its piece; errors name the machine; nothing is left behind."""

import os

import pytest

from dinorankclip.pieces.contract import RaySettings, Where
from dinorankclip.pieces.run import make_pieces
from dinorankclip.types import UserError
from tests.pieces.squares import Squares, read, squares, work

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # loopback alone
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dinorankclip[ray]'")
TWO = Where("ray", workers=2)


def made(folder, **settings):
    folder.mkdir(exist_ok=True)
    return make_pieces(Squares(folder, **settings), TWO, work(folder, **settings), folder)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests here, because each start takes seconds."""
    context = ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        object_store_memory=80_000_000,
    )  # fmt: skip
    yield context
    ray.shutdown()


@pytest.fixture
def joined(cluster, monkeypatch):
    """Let calls join that Ray, and leave it running."""
    monkeypatch.setattr(ray, "init", lambda **settings: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)


def test_a_killed_worker_costs_its_piece(tmp_path, joined, capsys):
    account = made(tmp_path / "out", kills=[1], seconds=0.05)
    assert read(tmp_path / "out") == squares() and (tmp_path / "out" / "killed 1").exists()
    assert account.lost == 1 and account.again == 1 and sum(account.made.values()) == 6
    assert "workers lost: 1, pieces begun again: 1" in capsys.readouterr().out
    assert not list((tmp_path / "out").glob(".work-*"))


def test_a_piece_that_always_fails_is_named(tmp_path, joined):
    with pytest.raises(UserError, match="piece 3 failed 3 times, at last: 3 has no square"):
        made(tmp_path / "out", fails=[3])
    assert {"0", "1", "2"} <= set(read(tmp_path / "out"))


def test_workers_that_cannot_open_the_work_say_where(tmp_path, joined):
    pieces = Squares(tmp_path)
    with pytest.raises(UserError, match=r"cannot open the work: there is no .*gone"):
        make_pieces(pieces, TWO, work(tmp_path / "gone"), tmp_path, show=False)


def test_no_cluster_at_an_address_is_an_error(tmp_path, monkeypatch):
    def nobody(**settings):
        raise ConnectionError(f"nothing at {settings['address']}")

    monkeypatch.setattr(ray, "init", nobody)
    where = Where("ray", ray=RaySettings("127.0.0.1:1"))
    with pytest.raises(UserError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start --head"):
        make_pieces(Squares(tmp_path), where, work(tmp_path), tmp_path, show=False)
