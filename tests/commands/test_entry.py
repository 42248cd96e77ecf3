import pytest

from dinorankclip.commands import entry
from dinorankclip.commands.entry import main
from tests.set_making import patch


def test_what_cannot_be_written_is_told_without_a_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.jpg").write_bytes(patch(0))
    (tmp_path / "pairs.csv").write_text("image,caption\n0.jpg,a cat\n")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SystemExit) as end:
        main(["data", "show", "pairs.csv", "--split", "all", "--out", "file/sheet.html"])
    reported = capsys.readouterr().err
    assert end.value.code == 2 and "error: file" in reported and "Traceback" not in reported


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(24, "Too many open files"), "raise the limit (ulimit -n 4096)"),
        (RuntimeError("Too many open files. Communication with the workers is no longer possible."), "ulimit -n 4096"),
        (MemoryError("Unable to allocate 3 GiB"), "not enough memory (Unable to allocate 3 GiB): use a smaller"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes."), "--budget.chunk"),
    ],
)
def test_exhausted_limits_end_in_advice(monkeypatch, capsys, error, words):
    def fail(argv):
        raise error

    monkeypatch.setattr(entry, "_run", fail)
    with pytest.raises(SystemExit) as end:
        main(["train"])
    assert end.value.code == 2 and words in capsys.readouterr().err


def test_a_folder_that_vanished_is_named(monkeypatch, capsys):
    def fail(argv):
        raise FileNotFoundError(2, "No such file or directory", "runs/first/config.json")

    monkeypatch.setattr(entry, "_run", fail)
    with pytest.raises(SystemExit):
        main(["train"])
    assert capsys.readouterr().err == "error: runs/first/config.json: No such file or directory\n"
