# SPDX-License-Identifier: Apache-2.0
"""The program in a new folder, for every end-to-end test."""
import ctypes
import os

import pytest
from program import Semel


@pytest.fixture
def bare(tmp_path):
    """A folder without tables."""
    semel = Semel(tmp_path)
    yield semel
    semel.close()


@pytest.fixture
def semel(tmp_path):
    """A folder with tables, as `semel init` makes them."""
    semel = Semel(tmp_path, tables=True)
    semel.subscribe("billing", "audit", "stock", "x")
    yield semel
    semel.close()


@pytest.fixture
def disk_of(tmp_path):
    """Mounts a file system of the given size on the folder `disk` of the test."""
    mount_point, libc = tmp_path / "disk", ctypes.CDLL(None, use_errno=True)

    def make(megabytes):
        if os.geteuid() != 0:
            pytest.skip("a small file system can only be made by root")
        mount_point.mkdir()
        if libc.mount(b"tmpfs", os.fsencode(mount_point), b"tmpfs", 0, f"size={megabytes}m".encode()) != 0:
            pytest.skip(f"a small file system cannot be made here: {os.strerror(ctypes.get_errno())}")
        return mount_point

    yield make
    if mount_point.exists():
        libc.umount2(os.fsencode(mount_point), 2)
