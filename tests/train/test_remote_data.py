"""Training from a store where 5 % of requests fail: killed and gone on with, the weights are those of local files."""

import json
import signal

import pytest

from dinorankclip.checksums import file_hash
from tests.data.stand_in import StandIn
from tests.systems import POSIX
from tests.train.running import command, run_to_end, run_until, small_pairs


@POSIX
@pytest.mark.parametrize("scheme, package", [("http", "aiohttp"), ("s3", "s3fs")])
def test_weights_from_a_failing_store_are_those_of_local_files(scheme, package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.setenv("DINORANKCLIP_HOME", str(tmp_path / "built"))
    local = small_pairs(tmp_path / "store" / "bucket" / "pairs")
    with StandIn(tmp_path / "store", failing=0.05, seed=5, latency=0.002) as store:
        run_to_end(command(local, tmp_path / "local", "--budget.steps", "10"))
        access = {"key": "test", "secret": "test", "endpoint_url": store.url, "client_kwargs": {"region_name": "x"}}
        monkeypatch.setenv("FSSPEC_S3", json.dumps(access))
        where = {"http": f"{store.url}/bucket/pairs", "s3": "s3://bucket/pairs"}[scheme]
        words = command(where, tmp_path / "remote", "--budget.steps", "10")
        assert run_until(words, tmp_path / "remote", 4, signal.SIGKILL) == -signal.SIGKILL
        run_to_end(words)
        store.shutdown()
    hashes = [file_hash(tmp_path / run / "checkpoints/last/model.safetensors") for run in ("local", "remote")]
    print(hashes, store.requests, "requests", store.faults, "failed")
    assert hashes[0] == hashes[1] and store.faults >= 3
    assert not (tmp_path / "remote" / "damaged.tsv").exists(), "no sample was replaced"
