"""Core-seconds of the steps: counted without pauses, logged, and continued at a resumption."""

import time

import pytest

from dinorankclip.train.clock import Clock, core_time


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_pauses_and_sleep_do_not_count():
    clock = Clock(8, core_seconds=5.0)
    work(0.05)
    clock.tick()
    work(0.2)
    clock.pause()
    time.sleep(0.2)
    clock.tick()
    assert clock.core_seconds == pytest.approx(5.05, abs=0.04)
    assert clock.numbers()["pairs/s"] > 0 and clock.pairs == 0


def test_core_time_grows_with_work_alone():
    before = core_time()
    time.sleep(0.05)
    asleep = core_time() - before
    work(0.05)
    assert asleep < 0.04 and core_time() - before >= 0.05
