import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are tiny: a second thread only waits, and waits long when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
