"""A pytest plugin: of a parametrized test no more cases are run once one has failed."""

from __future__ import annotations

import pytest

_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid.partition("[")[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.nodeid.partition("[")[0] in _failed:
        pytest.skip("a case of it has failed")
