"""Which steps are logged; how a signal stops a run and shows in its exit status."""

import os
import signal

import pytest

from dinorankclip.config import RecordSettings
from dinorankclip.train.loop import StopRequest, due
from tests.systems import POSIX


def test_the_first_and_the_last_step_are_logged_besides_every_nth():
    def logged(total, **record):
        return [step + 1 for step in range(total) if due(step, RecordSettings(**record), total)[0]]

    assert logged(6) == [1, 6]
    assert logged(25) == [1, 10, 20, 25]
    assert logged(20) == [1, 10, 20]
    assert logged(1) == [1]
    assert logged(8, gradient_report_every=3) == [1, 3, 6, 8]


@POSIX
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


@POSIX
def test_a_second_ctrl_c_leaves_at_once():
    with pytest.raises(KeyboardInterrupt), StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_process_that_followed_another_one_says_sigterm():
    assert StopRequest().status == 143


@POSIX
def test_the_end_of_the_terminal_saves_unless_it_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run below `nohup`
    try:
        with StopRequest() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked.signal == signal.SIGHUP and asked.status == 129
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
        with StopRequest() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked.signal is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
