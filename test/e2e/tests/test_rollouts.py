"""Canaries and updates with real engines: who gets which requests, and that none is lost."""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest
import requests
import tritonclient.grpc as triton_grpc

from standin import BINARY, engine_pids, eventually, iris_manifest, iris_session, tensor
from test_failures import ROWS, Load

# More than ten take minutes.
UPDATES = int(os.environ.get("E2E_UPDATES", "10"))
REVISION = "X-Stationmaster-Revision"


def shaped(shape, percent=None):
    """The iris service in a shape of its own: a variable of the engine differs, its answers don't."""
    manifest = iris_manifest()
    predictor = manifest["spec"]["predictor"]
    predictor["model"]["env"] = [{"name": "SHAPE", "value": str(shape)}]
    if percent is not None:
        predictor["canaryTrafficPercent"] = percent
    return manifest


class GrpcLoad(Load):
    """Clients that ask over gRPC without pause and keep what failed."""

    def run(self):
        x = triton_grpc.InferInput(self.input, ROWS.shape, "FP32")
        x.set_data_from_numpy(ROWS)
        with triton_grpc.InferenceServerClient(self.up.grpc) as client:
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    client.infer("iris", [x], client_timeout=60)
                    why = None
                except triton_grpc.InferenceServerException as e:
                    why = repr(e)
                with self.lock:
                    if why:
                        self.bad.append((began, why))
                    else:
                        self.good += 1


def predictor(up):
    return up.get("iris")["status"]["components"]["predictor"]


def until_rolled_out(up, revision):
    eventually(lambda: predictor(up).get("latestRolledoutRevision") == revision, 60)
    up.wait_ready("iris")


def until_split(up, want):
    """Waits until the status names these percents by revision."""
    def split():
        got = {t["revisionName"]: t["percent"] for t in predictor(up).get("traffic", [])}
        assert got == want, got
        return True

    eventually(split, 60)


def ask_many(up, n, headers=None, host=None):
    """Asks n times over four connections and counts the revisions that answered."""
    body = json.dumps({"inputs": [tensor(iris_session()[1], ROWS)]})
    headers = {"Content-Type": "application/json", **(headers or {})}
    url = f"{up.url}/serving/default/iris/v2/models/iris/infer"
    if host:
        url, headers["Host"] = f"{up.url}/v2/models/iris/infer", host

    def some(count):
        seen = collections.Counter()
        with requests.Session() as http:
            for _ in range(count):
                got = http.post(url, data=body, headers=headers, timeout=30)
                assert got.status_code == 200, got.text
                seen[got.headers[REVISION]] += 1
        return seen

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return sum(pool.map(some, [n // 4] * 4), collections.Counter())


R1, R2 = "iris-predictor-00001", "iris-predictor-00002"


@pytest.fixture
def canary_up(own_up):
    """An `up` whose iris service has a canary at 10 %."""
    own_up.apply(shaped(1))
    own_up.wait_ready("iris")
    own_up.apply(shaped(2, 10))
    until_split(own_up, {R1: 90, R2: 10})
    return own_up


def test_a_canary_of_ten_percent_gets_ten_percent_of_ten_thousand_requests(canary_up):
    seen = ask_many(canary_up, 10_000)
    print("10 %:", dict(seen))
    assert abs(seen[R2] - 1000) <= 100, seen
    assert seen[R1] + seen[R2] == 10_000


def test_a_canary_is_pinned_promoted_and_rolled_back_under_load_without_a_lost_request(canary_up):
    with Load(canary_up) as load:
        canary_up.apply(shaped(2, 0))
        until_split(canary_up, {R1: 100, R2: 0})
        assert set(ask_many(canary_up, 200)) == {R1}
        canary_up.apply(shaped(2))
        until_rolled_out(canary_up, R2)
        assert set(ask_many(canary_up, 200)) == {R2}
        canary_up.apply(shaped(2, 0))
        until_split(canary_up, {R1: 100, R2: 0})
        assert set(ask_many(canary_up, 200)) == {R1}
        canary_up.apply(shaped(1))  # the old manifest finds its revision again
        until_split(canary_up, {R1: 100})
    assert load.good > 100 and not load.bad, (load.good, load.bad[:5])
    assert len(json.loads(canary_up.kubectl("get", "revisions", "-o", "json"))["items"]) == 2


def test_updates_under_load_lose_no_request(own_up):
    own_up.apply(shaped(0))
    own_up.wait_ready("iris")
    with Load(own_up, 2) as rest, GrpcLoad(own_up, 2) as calls:
        for n in range(1, UPDATES + 1):
            own_up.apply(shaped(n))
            until_rolled_out(own_up, f"iris-predictor-{n + 1:05d}")
    print(f"requests and calls during {UPDATES} updates:", rest.good, calls.good)
    for load in (rest, calls):
        assert load.good > 500 and not load.bad, (load.good, load.bad[:5])


def test_a_tag_leads_to_its_revision_by_host_and_by_header(canary_up):
    canary_up.apply(shaped(2, 0))
    until_split(canary_up, {R1: 100, R2: 0})
    for tag, revision in {"canary": R2, "latest": R2, "prev": R1}.items():
        assert set(ask_many(canary_up, 40, host=f"{tag}-iris-default.localhost")) == {revision}
        assert set(ask_many(canary_up, 40, {"X-Stationmaster-Tag": tag})) == {revision}
    urls = {t["tag"]: t["url"] for t in predictor(canary_up)["traffic"]}
    assert urls == {tag: f"http://{tag}-iris-predictor-default.localhost:{canary_up.http_port}" for tag in ("latest", "prev")}


def test_a_sticky_client_stays_on_one_revision(canary_up):
    manifest = shaped(2, 50)
    manifest["metadata"]["annotations"] = {"stationmaster.dev/sticky": "header=X-User"}
    canary_up.apply(manifest)
    until_split(canary_up, {R1: 50, R2: 50})
    # The table follows within a moment.
    eventually(lambda: len(ask_many(canary_up, 40, {"X-User": "u0"})) == 1, 10)
    seen = collections.Counter()
    for i in range(100):
        answers = ask_many(canary_up, 8, {"X-User": f"u{i}"})
        assert len(answers) == 1, (i, answers)
        seen.update(answers.keys())
    print("clients by revision:", dict(seen))
    assert min(seen[R1], seen[R2]) > 25, seen


def test_a_mirror_gets_copies_whose_answers_agree(canary_up):
    manifest = shaped(2, 0)
    manifest["metadata"]["annotations"] = {"stationmaster.dev/mirror": "100"}
    canary_up.apply(manifest)
    until_split(canary_up, {R1: 100, R2: 0})
    eventually(lambda: canary_up.get("iris", kind="route")["spec"]["components"][0].get("mirror"), 10)
    assert set(ask_many(canary_up, 200)) == {R1}

    def counted():
        text = requests.get(f"http://127.0.0.1:{canary_up.admin_port}/metrics", timeout=10).text
        return {r: float(n) for r, n in re.findall(r'stationmaster_mirror_total\{.*result="([a-z-]+)".*\} (\S+)', text)}

    eventually(lambda: sum(counted().values()) >= 200, 30)
    assert counted() == {"equal": 200}


def test_a_named_canary_is_promoted_without_another_start(own_up):
    stable = shaped(1)
    stable["spec"]["predictor"]["name"] = "one"
    own_up.apply(stable)
    own_up.wait_ready("iris")
    beside = json.loads(json.dumps(stable))
    beside["spec"]["canary"] = [{"trafficPercent": 50, "predictor": {"name": "two", "model": {"env": [{"name": "SHAPE", "value": "2"}]}}}]
    with Load(own_up) as load:
        own_up.apply(beside)
        until_split(own_up, {R1: 50, R2: 50})
        assert set(ask_many(own_up, 40, host="two-iris-default.localhost")) == {R2}
        [pid] = [p for p in engine_pids(own_up, "") if b"SHAPE=2" in pathlib.Path(f"/proc/{p}/environ").read_bytes()]
        promoted = shaped(2)
        promoted["spec"]["predictor"]["name"] = "two"
        promoted["spec"]["canary"] = None
        own_up.apply(promoted)
        until_rolled_out(own_up, R2)
        assert set(ask_many(own_up, 40)) == {R2}
        assert b"SHAPE=2" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    assert load.good > 100 and not load.bad, (load.good, load.bad[:5])


GUARD = "stationmaster.dev/rollout-"


def guarded(manifest, **settings):
    """The manifest with a guarded rollout of short steps."""
    settings = {"steps": "10,50", "bake": "3s", "min_requests": "50"} | settings
    manifest["metadata"]["annotations"] = {GUARD + k.replace("_", "-"): v for k, v in settings.items()}
    return manifest


def astray(*args):
    """The iris service with an engine that answers wrongly."""
    manifest = shaped(0)
    manifest["spec"]["predictor"] = {"containers": [{
        "name": "kserve-container", "image": "example.invalid/astray:1", "ports": [{"containerPort": 8080}],
        "command": [sys.executable, str(pathlib.Path(__file__).with_name("astray.py")), *args],
    }]}
    return manifest


def guard(up):
    return json.loads(up.get("iris")["status"].get("annotations", {}).get("stationmaster.dev/rollout", "{}")).get("predictor", {})


def until_rolled_back(up):
    eventually(lambda: guard(up).get("phase") == "RolledBack", 60)
    until_split(up, {R1: 100, R2: 0})
    return guard(up)


def rollout(up, *args):
    return subprocess.run([BINARY, "rollout", *args], env=up.env(), capture_output=True, text=True, timeout=60)


def test_a_good_revision_takes_every_step_by_itself(own_up):
    own_up.apply(guarded(shaped(1), max_drift="1%", max_p99="5s"))
    own_up.wait_ready("iris")
    seen = []
    with Load(own_up) as load:
        own_up.apply(guarded(shaped(2), max_drift="1%", max_p99="5s"))

        def over():
            now = predictor(own_up)
            share = {t["revisionName"]: t["percent"] for t in now.get("traffic", [])}.get(R2, 0)
            if seen[-1:] != [share]:
                seen.append(share)
                print(share, rollout(own_up, "status", "iris").stdout)
            return now.get("latestRolledoutRevision") == R2

        eventually(over, 120)
        own_up.wait_ready("iris")
    assert [s for s in seen if s] == [10, 50, 100], seen
    assert load.good > 500 and not load.bad, (load.good, load.bad[:5])
    assert set(ask_many(own_up, 100)) == {R2}
    assert not guard(own_up)


def test_a_revision_that_fails_is_rolled_back_by_itself_and_stays_so(own_up):
    up = own_up
    up.apply(guarded(shaped(1)))
    up.wait_ready("iris")
    with Load(up) as load:
        eventually(lambda: load.good > 500, 60)
        before = load.good
        up.apply(guarded(astray("fails")))
        until_rolled_back(up)
        good, bad = load.good - before, len(load.bad)
        # Routed a moment ago, or asked since: none of what comes now fails.
        eventually(lambda: load.good > before + good + 500, 60)
        late = len(load.bad) - bad
    print(f"requests answered and failed while it had a share: {good} {bad}, after it: {late}")
    assert 0 < bad <= 0.1 * (good + bad) + 10, (good, bad)
    assert late <= 10, load.bad[-5:]
    assert all("out of luck" in why for _, why in load.bad), load.bad[:5]
    assert set(ask_many(up, 100)) == {R1}

    told = guard(up)
    assert told["percent"] == 10 and re.fullmatch(r"errors 100 % of \d+ requests \(limit 1 %\)", told["why"]), told
    [ready] = [c for c in up.get("iris")["status"]["conditions"] if c["type"] == "Ready"]
    assert ready["status"] == "False" and ready["reason"] == "RolledBack" and told["why"] in ready["message"], ready
    assert told["why"] in up.kubectl("get", "events", "--field-selector", "reason=RolloutRolledBack")
    shown = rollout(up, "status", "iris")
    assert "rolled back from 10 %" in shown.stdout and told["why"] in shown.stdout, shown
    waited = rollout(up, "status", "iris", "--wait")
    assert waited.returncode == 4 and told["why"] in waited.stderr, waited

    up.kill()
    up.start()
    until_split(up, {R1: 100, R2: 0})
    assert guard(up)["why"] == told["why"]
    assert set(ask_many(up, 100)) == {R1}
    # Its tag leads there still, and the next change begins anew.
    assert requests.get(f"{up.url}/v2/models/iris/ready", headers={"Host": "canary-iris-default.localhost"}, timeout=30).headers[REVISION] == R2
    with Load(up):
        up.apply(guarded(shaped(3)))
        until_rolled_out(up, "iris-predictor-00003")


def test_a_revision_that_names_other_classes_is_rolled_back_by_itself(own_up):
    label = next(o.name for o in iris_session()[0].get_outputs() if "int64" in o.type)
    settings = {"max_drift": "2%", "min_requests": "50"}
    own_up.apply(guarded(shaped(1), **settings))
    own_up.wait_ready("iris")
    with Load(own_up) as load:
        own_up.apply(guarded(astray("wrong", label), **settings))
        told = until_rolled_back(own_up)
    print(told["why"])
    assert re.fullmatch(r"drift [\d.]+ % of \d+ comparisons \(limit 2 %\)", told["why"]), told
    assert not load.bad, load.bad[:5]


def test_what_a_guard_cannot_mean_is_refused_by_name(own_up):
    for settings, why in {
        ("steps", "50,10"): "rollout-steps",
        ("bake", "soon"): "rollout-bake",
        ("max_errors", "1%"): "rollout-max-errors",
    }.items():
        with pytest.raises(AssertionError, match=why):
            own_up.apply(guarded(shaped(1), **dict([settings])))
