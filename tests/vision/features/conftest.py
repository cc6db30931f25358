"""What is encoded, stored and removed is counted: each test begins with nothing."""

import pytest


@pytest.fixture(autouse=True)
def empty(own_cache):
    pass
