"""One `stationmaster up` for the session, and what tests need to talk to it."""

import pytest

from standin import Up, iris_manifest


@pytest.fixture(scope="session")
def up(tmp_path_factory):
    """A running `up` that most tests share; each applies services of its own."""
    with Up(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture(scope="session")
def iris(up):
    """The examples' iris service, ready."""
    up.apply(iris_manifest())
    up.wait_ready("iris")
    return up


@pytest.fixture
def own_up(tmp_path):
    """A running `up` of one test's own, to kill and restart."""
    with Up(tmp_path / "up") as running:
        yield running


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows what `up` last said and what its services look like."""
    outcome = yield
    report = outcome.get_result()
    if report.when != "call" or not report.failed:
        return
    for name in ("own_up", "up", "iris"):
        running = item.funcargs.get(name)
        if isinstance(running, Up):
            report.sections.append(("stationmaster", running.describe()))
            return
