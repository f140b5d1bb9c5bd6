"""Ranks that die and checkpoints that are damaged: a tenth of each campaign of `make soak`."""

import pytest

from tests.soak import damage, kills


def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_loads(tmp_path):
    for found in damage.campaign(tmp_path, 20, seed=7):
        assert found.named and found.fallen_back, found


@pytest.mark.timeout(400)
def test_a_killed_rank_changes_nothing(tmp_path):
    """In a step, in a save, in an evaluation: the run ends by itself as the undisturbed one, bit for bit."""
    for found in kills.campaign(tmp_path, 3, seed=7):
        assert found.killed and found.status == 0 and found.alike, found
        assert found.seconds < 10, found
