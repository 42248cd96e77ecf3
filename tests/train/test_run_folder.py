"""A run lists the samples that it could not use at its end."""

import numpy as np
import simplejpeg

from dinorankclip.commands.train import parse, run
from dinorankclip.train.run_folder import damage_line


def test_a_run_ends_with_what_it_could_not_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ["image,caption"]
    for n in range(40):
        good = simplejpeg.encode_jpeg(np.full((40, 40, 3), n, np.uint8))
        (tmp_path / f"{n}.jpg").write_bytes(good if n % 5 else b"no image %d" % n)
        rows.append(f"{n}.jpg,picture {n}")
    (tmp_path / "photos.csv").write_text("\n".join(rows) + "\n")
    flags = ["--preset", "finetune", "--data", "photos.csv", "--model.trunk", "drc-tiny", "--run", "run"]
    flags += ["--budget.batch", "12", "--budget.epochs", "1", "--reading.workers", "0", "--record.no-tensorboard"]
    settings, *_ = parse(flags)
    for _ in range(2):  # the second time all steps are done
        assert run(settings, restart=False, dry=False)
        last = capsys.readouterr().out.splitlines()[-1]
        bad = len((tmp_path / "run" / "damaged.tsv").read_text().splitlines())
        assert bad > 1 and last == f"{bad} of 36 training images could not be used: run/damaged.tsv"


def test_processes_that_met_the_same_sample_count_it_once(tmp_path):
    assert damage_line(tmp_path, [None] * 9) == ""
    (tmp_path / "damaged.tsv").write_text("a\tcorrupt\nb\ttruncated\n")
    (tmp_path / "damaged-1.tsv").write_text("b\ttruncated\nc\tcorrupt\n")
    assert damage_line(tmp_path, [None] * 9).startswith("3 of 9 training images")
