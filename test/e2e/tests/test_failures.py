"""What is lost when processes die: of an engine, the requests on it; of `up`, nothing."""

import os
import pathlib
import signal
import threading
import time

import requests

from standin import engine_pids, eventually, iris_manifest, iris_session, isvc, model, outputs, random_rows, tensor

ROWS = random_rows(4)


def ask(up, name="iris"):
    return up.infer(name, [tensor(iris_session()[1], ROWS)])


class Load:
    """Clients that ask without pause and keep what didn't answer 200."""

    def __init__(self, up, clients=4):
        self.up, self.bad, self.good = up, [], 0
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.inflight = 0
        self.input = iris_session()[1]
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]

    def run(self):
        with requests.Session() as http:
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    got = http.post(f"{self.up.url}/serving/default/iris/v2/models/iris/infer",
                                    json={"inputs": [tensor(self.input, ROWS)]}, timeout=60)
                    why = None if got.status_code == 200 else f"{got.status_code} {got.text[:300]}"
                except requests.RequestException as e:
                    why = repr(e)
                with self.lock:
                    if why:
                        self.bad.append((began, why))
                    else:
                        self.good += 1

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for t in self.threads:
            t.join()


def has_ended(pid):
    """Whether a process is gone, or a zombie: its sockets are closed then."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_killed_engine_loses_only_requests_in_flight(own_up):
    up = own_up
    up.apply(iris_manifest() | {"spec": {"predictor": model("onnx", "examples/iris/model") | {"minReplicas": 2}}})
    up.wait_ready("iris")
    engines = eventually(lambda: (p := engine_pids(up, "runtime onnx")) and len(p) == 2 and p, timeout=30)
    clients = 4
    with Load(up, clients) as load:
        eventually(lambda: load.good > 200, timeout=60)
        os.kill(engines[0], signal.SIGKILL)
        # The kernel takes some milliseconds to end a process; until then it accepts connections.
        eventually(lambda: has_ended(engines[0]), timeout=10, poll=0.001)
        dead = time.monotonic()
        before = load.good
        eventually(lambda: load.good > before + 500, timeout=60)
    late = [(t - dead, why) for t, why in load.bad if t > dead]
    assert len(load.bad) <= clients, load.bad
    assert not late, f"requests that began after the engine had ended failed: {late}"
    again = eventually(lambda: (p := engine_pids(up, "runtime onnx")) and len(p) == 2 and p, timeout=60)
    assert engines[1] in again, "the engine that wasn't killed was replaced as well"


def test_killed_only_engine_comes_back_and_says_why(own_up):
    up = own_up
    up.apply(iris_manifest())
    up.wait_ready("iris")
    [pid] = eventually(lambda: engine_pids(up, "runtime onnx"), timeout=30)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: (p := engine_pids(up, "runtime onnx")) and p != [pid], timeout=60)
    eventually(lambda: ask(up).status_code == 200, timeout=60)
    up.wait_ready("iris")


def test_killed_control_plane_loses_no_object_and_no_engine(own_up):
    up = own_up
    up.apply(iris_manifest())
    up.wait_ready("iris")
    want = outputs(ask(up))
    before = up.get("iris")
    engines = eventually(lambda: engine_pids(up, "runtime onnx"), timeout=30)
    up.kill()
    assert engine_pids(up, "runtime onnx") == engines, "engines ended with the control plane"
    up.start()
    after = up.get("iris")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    up.wait_ready("iris")
    got = eventually(lambda: (r := ask(up)).status_code == 200 and r, timeout=60)
    assert {k: v.tolist() for k, v in outputs(got).items()} == {k: v.tolist() for k, v in want.items()}
    assert engine_pids(up, "runtime onnx") == engines, "engines were replaced instead of adopted"
    assert up.stop() == 0
    assert engine_pids(up, "runtime onnx") == [], "engines outlived up"


def test_bad_services_harm_no_other(iris, tmp_path):
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt" / "model.onnx").write_bytes(b"\x08\x07garbage" * 40)
    bad = {
        "bad-missing": (model("onnx", f"file://{tmp_path}/nowhere"), "doesn't exist"),
        "bad-corrupt": (model("onnx", f"file://{tmp_path}/corrupt"), "onnx"),
        "bad-scheme": (model("onnx", "ftp://host/model"), "ftp"),
        "bad-format": (model("nosuchformat", f"file://{tmp_path}/corrupt"), "nosuchformat"),
        "bad-exits": ({"containers": [{"name": "kserve-container", "image": "x", "command": ["/bin/sh", "-c", "echo oh no >&2; exit 3"]}]}, "oh no"),
        "bad-absent": ({"containers": [{"name": "kserve-container", "image": "x", "command": ["no-such-engine-here"]}]}, "no-such-engine-here"),
    }
    refused = {}
    for name, (predictor, _) in bad.items():
        try:
            iris.apply(isvc(name, predictor))
        except AssertionError as e:
            refused[name] = str(e)
    for name, (_, says) in bad.items():
        if name in refused:
            assert says.lower() in refused[name].lower(), refused[name]
            continue

        def told():
            status = iris.get(name).get("status", {})
            ready = [c for c in status.get("conditions", []) if c["type"] == "Ready"]
            assert ready and ready[0]["status"] == "False", status
            assert says.lower() in str(status).lower(), status
            return True

        eventually(told, timeout=60)
        got = iris.infer(name, [])
        assert got.status_code in (400, 404, 503) and got.json()["error"], got.text
        iris.delete(name)
    assert ask(iris).status_code == 200


def test_two_namespaces_with_one_name(iris):
    iris.kubectl("create", "namespace", "other")
    iris.apply(iris_manifest(namespace="other"))
    iris.wait_ready("iris", "other")
    for namespace in ("default", "other"):
        got = iris.infer("iris", [tensor(iris_session()[1], ROWS)], namespace)
        assert got.status_code == 200, got.text
    iris.delete("iris", "other")
    assert ask(iris).status_code == 200


def test_taken_port_is_named(iris):
    import subprocess

    from standin import BINARY

    got = subprocess.run([BINARY, "up", "--data-dir", str(iris.dir / "second"), "--http", iris.http, "--grpc", "127.0.0.1:0",
                          "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
    assert got.returncode != 0 and iris.http in got.stderr + got.stdout, got.stderr
