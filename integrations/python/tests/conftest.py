"""What the tests of the PyTorch API share; a test file on a real store has a fixture of its own."""

import pytest
from fake_store import FakeStore


@pytest.fixture
def store():
    return FakeStore()
