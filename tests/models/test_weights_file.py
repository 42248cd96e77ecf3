import os
import stat

import pytest
import torch

from dinorankclip.models.weights_file import read_weights, write_weights
from dinorankclip.types import UserError
from tests.systems import POSIX

NOBODY = 65534


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_weights_have_the_rights_of_other_files(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_weights({"a": torch.ones(2, 3).T}, tmp_path / "a.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == mode
    assert torch.equal(read_weights(tmp_path / "a.safetensors")["a"], torch.ones(3, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


@POSIX
def test_a_file_of_somebody_else_is_said_to_be_that(tmp_path):
    path = tmp_path / "a.safetensors"
    write_weights({"a": torch.ones(2)}, path)
    path.chmod(0)
    root = os.geteuid() == 0  # who may read everything
    if root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(UserError, match=r"a\.safetensors cannot be read: permission denied"):
            read_weights(path)
    finally:
        if root:
            os.seteuid(0)
