"""Each test of definitions starts without an instance that an earlier one left as Dagster's current."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dagster._core.storage.defs_state.base import set_defs_state_storage


@pytest.fixture(autouse=True)
def _no_instance_of_another_test() -> Iterator[None]:
    with set_defs_state_storage(None):
        yield
