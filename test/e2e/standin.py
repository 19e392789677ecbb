"""Starts, watches and asks a real `stationmaster up`, as a person at a shell would."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import requests

BINARY = os.environ["STATIONMASTER_BIN"]
ENGINES = os.environ["E2E_ENGINES"]
REPO = pathlib.Path(os.environ["E2E_REPO"])


def free_ports(n):
    """n ports that nothing listens on; held together so that they differ."""
    held = [socket.socket() for _ in range(n)]
    try:
        for s in held:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in held]
    finally:
        for s in held:
            s.close()


def eventually(what, timeout, poll=0.1):
    """Waits until what() is true and returns its value; an AssertionError says what it was last."""
    end = time.monotonic() + timeout
    while True:
        try:
            got, why = what(), None
        except (requests.RequestException, AssertionError) as e:
            got, why = None, e
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s; last: {why or got!r}")
        time.sleep(poll)


class Up:
    """A process `stationmaster up` with a data directory and ports of its own."""

    def __init__(self, directory, extra=()):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.data = self.dir / "data"
        self.log = self.dir / "up.log"
        self.extra = list(extra)
        self.http_port, self.grpc_port, self.api_port, self.admin_port = free_ports(4)
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        if self.process and self.process.poll() is None:
            self.stop()

    @property
    def http(self):
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self):
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def url(self):
        return f"http://{self.http}"

    @property
    def kubeconfig(self):
        return self.data / "kubeconfig"

    def start(self, timeout=60):
        """Starts and waits for the ready line."""
        command = [BINARY, "up", "--data-dir", str(self.data), "--http", self.http, "--grpc", self.grpc,
                   "--api", f"127.0.0.1:{self.api_port}", "--admin", f"127.0.0.1:{self.admin_port}",
                   "--runtime-path", ENGINES, "--request-timeout", "3m", *self.extra]
        err = open(self.log, "ab")
        self.process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=err, text=True,
                                        env=os.environ | {"PATH": f"{ENGINES}:{os.environ['PATH']}"})
        err.close()
        ready = threading.Event()

        def read(out):
            for line in out:
                with open(self.log, "a") as f:
                    f.write("stdout: " + line)
                if line.startswith("ready"):
                    ready.set()

        threading.Thread(target=read, args=(self.process.stdout,), daemon=True).start()
        end = time.monotonic() + timeout
        while not ready.wait(0.1):
            if self.process.poll() is not None:
                raise AssertionError(f"up ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > end:
                self.process.kill()
                raise AssertionError(f"up wasn't ready within {timeout} s:\n{self.tail()}")

    def stop(self, timeout=60):
        """Asks to end, as Ctrl-C or systemd would, and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise AssertionError(f"up didn't end within {timeout} s of SIGTERM:\n{self.tail()}") from None

    def kill(self):
        """Ends it without a chance to say goodbye."""
        self.process.kill()
        self.process.wait(10)

    def tail(self, lines=60):
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"

    def describe(self):
        got = subprocess.run([BINARY, "kubectl", "get", "inferenceservices,revisions", "-A", "-o", "yaml"], env=self.env(),
                             capture_output=True, text=True, timeout=60)
        return f"{self.tail()}\n\n{(got.stdout or got.stderr)[-12000:]}"

    def env(self):
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *args, stdin=None, timeout=120):
        """Runs the embedded kubectl and returns what it printed; its complaint is an AssertionError."""
        got = subprocess.run([BINARY, "kubectl", *args], env=self.env(), input=stdin, capture_output=True,
                             text=True, timeout=timeout)
        assert got.returncode == 0, f"kubectl {' '.join(args)}: {got.stderr}\n{got.stdout}"
        return got.stdout

    def apply(self, *manifests):
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))

    def get(self, name, namespace="default", kind="inferenceservice"):
        return json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))

    def wait_ready(self, name, namespace="default", timeout=120):
        try:
            self.kubectl("wait", "--for=condition=Ready", f"inferenceservice/{name}", "-n", namespace,
                         f"--timeout={timeout}s", timeout=timeout + 30)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{json.dumps(self.get(name, namespace).get('status'), indent=1)}") from None

    def delete(self, name, namespace="default"):
        self.kubectl("delete", "inferenceservice", name, "-n", namespace)

    def infer(self, name, inputs, namespace="default", **kwargs):
        """One V2 request by path prefix; returns the response."""
        return requests.post(f"{self.url}/serving/{namespace}/{name}/v2/models/{name}/infer",
                             json={"inputs": inputs}, timeout=30, **kwargs)


def tensor(name, values):
    """A V2 JSON input of a NumPy array."""
    kind = {"f4": "FP32", "f8": "FP64", "i8": "INT64", "i4": "INT32"}[values.dtype.str[1:]]
    return {"name": name, "shape": list(values.shape), "datatype": kind, "data": values.flatten().tolist()}


def outputs(response):
    """A V2 JSON response's outputs as NumPy arrays by name."""
    assert response.status_code == 200, f"{response.status_code} {response.text[:2000]}"
    kinds = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32, "BYTES": object, "BOOL": bool}
    return {o["name"]: np.array(o["data"], kinds[o["datatype"]]).reshape(o["shape"]) for o in response.json()["outputs"]}


def isvc(name, predictor, namespace="default", **spec):
    return {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"predictor": predictor, **spec}}


def model(fmt, uri, **more):
    return {"model": {"modelFormat": {"name": fmt}, "storageUri": str(uri), **more}}


def iris_manifest(name="iris", namespace="default"):
    return isvc(name, model("onnx", "examples/iris/model"), namespace)


def iris_session():
    """The examples' iris model in onnxruntime, and the name of its input."""
    import onnxruntime

    [path] = (REPO / "examples/iris/model").rglob("*.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, session.get_inputs()[0].name


def random_rows(n, seed=0):
    """Rows like the iris measurements, in centimetres."""
    return np.random.default_rng(seed).uniform(0.1, 8, (n, 4)).astype(np.float32)


def engine_pids(up, needle):
    """The engines of this `up` whose command line has the needle: their output goes to its data
    directory, whatever their arguments and environment show."""
    found = []
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            places = [os.readlink(proc / "fd" / "1"), os.readlink(proc / "fd" / "2"), os.readlink(proc / "cwd")]
        except OSError:
            continue
        if needle in command and any(str(up.data) in p for p in (command, *places)) and f"{BINARY} up " not in command:
            found.append(int(proc.name))
    return sorted(found)
