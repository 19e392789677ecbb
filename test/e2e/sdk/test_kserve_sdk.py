"""KServe's own Python SDK: objects through the kubeconfig, predictions through its clients."""

import asyncio
import re

import kserve
import numpy as np
import pytest
import requests
from kubernetes import client as k8s

from standin import REPO, eventually, iris_session, random_rows

ROWS = random_rows(20)


@pytest.fixture(scope="module")
def sdk(up):
    return kserve.KServeClient(config_file=str(up.kubeconfig))


def service(name):
    predictor = kserve.V1beta1PredictorSpec(
        min_replicas=1,
        model=kserve.V1beta1ModelSpec(
            model_format=kserve.V1beta1ModelFormat(name="onnx"),
            storage_uri=f"file://{REPO}/examples/iris/model",
        ),
    )
    return kserve.V1beta1InferenceService(
        api_version="serving.kserve.io/v1beta1", kind="InferenceService",
        metadata=k8s.V1ObjectMeta(name=name, namespace="default"),
        spec=kserve.V1beta1InferenceServiceSpec(predictor=predictor),
    )


@pytest.fixture(scope="module")
def made(sdk):
    name = "sdk-iris"
    sdk.create(service(name))
    sdk.wait_isvc_ready(name, namespace="default", timeout_seconds=60, polling_interval=1)
    yield name
    sdk.delete(name, "default")


def test_create_wait_get_patch_delete(sdk):
    name = "sdk-life"
    created = sdk.create(service(name))
    assert created["metadata"]["uid"]
    sdk.wait_isvc_ready(name, namespace="default", timeout_seconds=60, polling_interval=1)
    got = sdk.get(name, "default")
    assert got["status"]["url"].startswith("http://sdk-life-default.")
    assert got["status"]["modelStatus"]["states"]["activeModelState"] == "Loaded"
    assert got["status"]["components"]["predictor"]

    change = service(name)
    change.metadata.annotations = {"e2e": "patched"}
    change.spec.predictor.min_replicas = 2
    patched = sdk.patch(name, change, "default")
    assert patched["metadata"]["annotations"]["e2e"] == "patched"
    sdk.wait_isvc_ready(name, namespace="default", timeout_seconds=60, polling_interval=1,
                        expected_generation=patched["metadata"]["generation"])

    sdk.delete(name, "default")

    def gone():  # once its engines have drained
        try:
            return not sdk.get(name, "default")
        except RuntimeError as e:
            return re.search("404|[Nn]ot [Ff]ound", str(e))

    eventually(gone, timeout=60)


def test_get_lists_and_unknown_is_refused(sdk, made):
    assert made in [i["metadata"]["name"] for i in sdk.get(namespace="default")["items"]]
    with pytest.raises(RuntimeError, match="404|[Nn]ot [Ff]ound"):
        sdk.get("sdk-nope", "default")


def request(name, session_input, rows):
    x = kserve.InferInput(session_input, list(rows.shape), "FP32")
    x.set_data_from_numpy(rows, binary_data=False)
    return kserve.InferRequest(model_name=name, infer_inputs=[x], request_id="r-9")


def check(answer):
    session, name = iris_session()
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(names, {name: ROWS})))
    got = {o.name: o.as_numpy() for o in answer.outputs}
    for n, w in want.items():
        np.testing.assert_allclose(np.asarray(got[n]).reshape(w.shape), w, rtol=0, atol=1e-5)
    assert answer.id == "r-9"


def test_rest_inference_client(up, made):
    async def ask():
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
        base = f"{up.url}/serving/default/{made}"
        try:
            assert await client.is_server_ready(base)
            assert await client.is_model_ready(base, made)
            return await client.infer(base, request(made, iris_session()[1], ROWS), model_name=made)
        finally:
            await client.close()

    check(asyncio.run(ask()))


def test_grpc_inference_client(up, made):
    async def ask():
        async with kserve.InferenceGRPCClient(up.grpc) as client:
            assert await client.is_server_ready()
            assert await client.is_model_ready(made)
            return await client.infer(request(made, iris_session()[1], ROWS))

    check(asyncio.run(ask()))


def test_a_graph_that_chains_models(sdk, up, made):
    """KServe's own model-chainer: each of three steps gets the request."""
    name = "model-chainer"
    step = {"service_name": made, "data": "$request", "dependency": "Hard"}
    sdk.create_inference_graph(kserve.V1alpha1InferenceGraph(
        api_version="serving.kserve.io/v1alpha1", kind="InferenceGraph",
        metadata=k8s.V1ObjectMeta(name=name, namespace="default", annotations={"serving.kserve.io/deploymentMode": "RawDeployment"}),
        spec=kserve.V1alpha1InferenceGraphSpec(nodes={"root": kserve.V1alpha1InferenceRouter(
            router_type="Sequence", steps=[kserve.V1alpha1InferenceStep(**step) for _ in range(3)])}),
    ))
    sdk.wait_ig_ready(name, namespace="default", timeout_seconds=60, polling_interval=1)
    url = sdk.get_inference_graph(name, "default")["status"]["url"]
    rows = [[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6]]
    got = requests.post(up.url, json={"instances": rows}, headers={"Host": url.removeprefix("http://")}, timeout=30)
    assert got.status_code == 200, got.text
    session, x = iris_session()
    want = session.run(None, {x: np.array(rows, np.float32)})[0].tolist()
    assert [p["label"] for p in got.json()["predictions"]] == want == [1, 1]
    sdk.delete_inference_graph(name, "default")
