"""What tests of a worker's weights start from: a model's folder, an environment, and the worker."""

import pytest

from echorl_testing.engines.staging_worker import RUN, SHAPE, Worker
from echorl_trainer.seeded import write_seeded_model


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "m"
    write_seeded_model(folder, SHAPE, 0, tie=request.param)
    return folder, request.param


@pytest.fixture
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ECHORL_RUN_UID", RUN)
    monkeypatch.setenv("ECHORL_ADMIN_TOKEN", "secret")
    monkeypatch.setenv("ECHORL_ENGINE_SPOOL", str(tmp_path / "spool"))
    return tmp_path


@pytest.fixture
def worker(environment, model):
    return Worker(model)
