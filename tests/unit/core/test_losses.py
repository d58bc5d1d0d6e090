"""The table of losses, and what follows from it."""

from pathlib import Path
from typing import get_args

import pytest

from echorl_core.config import LossConfig
from echorl_core.losses import LOSSES, OPD_SETTINGS, LossType, losses_with, setting_told
from echorl_manifest.models.algorithm import Loss
from tools.losses_page import page_with_losses

PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


def test_every_type_is_a_row_or_custom():
    assert set(get_args(LossType)) == {*LOSSES, "custom"}


@pytest.mark.parametrize("settings", [*(loss.settings for loss in LOSSES.values()), OPD_SETTINGS])
def test_every_setting_is_a_field_of_the_manifest_and_of_the_config(settings):
    assert set(settings) <= set(Loss.model_fields) & set(LossConfig.model_fields)


def test_which_losses_have_a_setting():
    assert losses_with("clip_low") == ("grpo", "cispo")


def test_a_setting_is_told_with_its_losses_and_their_defaults():
    assert setting_told("mask_low", "x.") == "Only for ``dppo`` (default 0.2) and ``ipo`` (default 0.3): x."
    assert setting_told("clip_high", "x.") == "Only for ``grpo`` and ``cispo``, default 0.28: x."
    assert setting_told("kl_tau", "x.") == "Not for ``custom``, default 0.001: x."


def test_the_page_is_current():
    assert PAGE.read_text() == page_with_losses(PAGE.read_text()), "run `make generate`"


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="accepted is a page with both"):
        page_with_losses("# Losses\n")
