"""What is set beside the device: on a GPU that is not there, so a stand-in answers for it."""

import pytest
import torch

from dinorankclip.device import choose


@pytest.mark.parametrize(
    ("device", "precision", "native_bf16", "rounds_to_tf32"),
    [
        ("cuda", "fp32", True, False),
        ("cuda", "auto", False, False),
        ("cuda", "auto", True, True),
        ("cuda", "bf16", True, True),
        ("cpu", "fp32", True, True),
    ],
)
def test_fp32_on_a_gpu_is_fp32_in_convolutions_too(monkeypatch, device, precision, native_bf16, rounds_to_tf32):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: "stand-in")
    monkeypatch.setattr("dinorankclip.device._computes_bf16", lambda gpu: native_bf16)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    placement = choose(device, precision)
    assert placement.device.type == device
    assert torch.backends.cudnn.allow_tf32 == rounds_to_tf32
