"""Marks for tests that a system cannot run: each says what it needs."""

import os
import sys

import pytest

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals, forks, FIFOs or links of POSIX")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or uses a tool of Linux")


def demand_posix() -> None:
    """Skip a test whose helper kills processes."""
    if os.name != "posix":
        pytest.skip("kills processes by signals of POSIX")
