"""What all levels of tests share."""

from pathlib import Path
from typing import Any

import pytest

from spec.catalog import Catalog, read_stack

PROJECT = Path(__file__).parents[1]


@pytest.fixture
def catalog() -> Catalog:
    """The catalogue of this project."""
    return Catalog(PROJECT / "catalog")


@pytest.fixture
def lab_config() -> dict[str, Any]:
    """What Pulumi.lab.yaml says, to be changed by a test."""
    return read_stack(PROJECT, "lab")
