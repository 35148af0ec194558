"""The tests of the warehouse's own file."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def new_warehouses():
    """Made as the program makes them, not copied as for all other tests."""
