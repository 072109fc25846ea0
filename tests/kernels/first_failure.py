"""A pytest plugin: once a case of a test has failed, no more of its cases are run but those asked for by name."""

from __future__ import annotations

import pytest

_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid.partition("[")[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    asked_for = any(argument.endswith(f"::{item.name}") for argument in item.config.args)
    if item.nodeid.partition("[")[0] in _failed and not asked_for:
        pytest.skip("a case of it has failed")
