"""A run's folder, and tables of it."""

import pytest

from echorl_testing.view_folder import watch_of, written


@pytest.fixture
def root(tmp_path):
    return written(tmp_path / "debate")


@pytest.fixture
def watched(root):
    return watch_of(root)
