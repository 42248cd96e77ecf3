import pytest

from dinorankclip import io as files
from dinorankclip.serve import long_work
from tests.serve.serving import client_of, served, write_pairs, write_run


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with two runs, of order 3 with students and of order 0 without, and pairs."""
    folder = tmp_path_factory.mktemp("served")
    write_run(folder / "runs" / "three", 3, "full", 0)
    write_run(folder / "runs" / "zero", 0, None, 1)
    write_pairs(folder / "pairs")
    return folder


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Requests wait for long work, however busy the machine is."""
    monkeypatch.setattr(long_work, "PATIENCE", 20.0)


@pytest.fixture(autouse=True)
def _index_elsewhere(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(files, "INDEX_FOLDER", tmp_path_factory.getbasetemp() / "index")


@pytest.fixture(scope="session")
def state(place):
    models = [place / "runs" / "three", place / "runs" / "zero"]
    two = served(models, place / "pairs", place / "store", runs=place / "runs")
    two.prepare()
    assert two.ready and not two.failed
    return two


@pytest.fixture(scope="session")
def client(state):
    return client_of(state)


@pytest.fixture(scope="session")
def alone(place):
    """A server of the model of order 0 alone."""
    one = served([place / "runs" / "zero"], place / "pairs", place / "store", runs=place / "runs")
    one.prepare()
    return client_of(one)
