"""Single-instance tables of fewer market states: the same code in a tenth of the time."""

from contextlib import contextmanager

import pytest

from slackwater.studies.single_instance import DEFAULT, LEARNED, MarketStates

COARSE = MarketStates(ages=(1, 4, 19, 95), shares=(0.4, 0.8))


@contextmanager
def coarse_tables():
    """Use the 24 states of `COARSE` instead of 84 for the scoreboard's tables with age and share, guarded and not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LEARNED, DEFAULT, COARSE)
        yield
