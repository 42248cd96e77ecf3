"""A stopped run says by its exit status which signal stopped it."""

import os
import signal

import pytest

from dinorankclip.train.loop import StopRequest


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_the_handlers_go_back(number, status):
    before = signal.getsignal(number)
    with StopRequest() as asked:
        assert not asked.agreed()
        os.kill(os.getpid(), number)
        assert asked.agreed() and asked.status == status
        os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may repeat itself
        assert asked.status == status
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_leaves_at_once():
    with pytest.raises(KeyboardInterrupt), StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_process_that_followed_another_one_says_sigterm():
    assert StopRequest().status == 143
