import pytest


@pytest.fixture(autouse=True)
def _indexes_elsewhere(tmp_path_factory, monkeypatch):
    """Tests leave no `built/` behind."""
    from dinorankclip import io

    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="session")
def tokenizer():
    from dinorankclip.data.tokens import Tokenizer

    return Tokenizer().load()
