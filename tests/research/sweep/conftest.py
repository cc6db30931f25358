"""The stub is imported by the workers too, so its folder is on their path."""

import os
import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)


@pytest.fixture
def stub_path(monkeypatch):
    """For workers that do not take sys.path over."""
    monkeypatch.setenv("PYTHONPATH", FOLDER, prepend=os.pathsep)
