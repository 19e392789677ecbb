"""Audio and images over the OpenAI API with the official SDK: what the SDK sends reaches the engine byte for byte,
and what the engine sends the client. The engine is a stand-in (media.py); those that make sound and pictures need
more machine than this."""

import hashlib
import io
import os
import pathlib
import sys

import httpx
import openai
import pytest

import media
from standin import isvc

MEDIA = str(pathlib.Path(__file__).with_name("media.py"))


@pytest.fixture(scope="module")
def service(up):
    up.apply(isvc("media", {
        "annotations": {"stationmaster.dev/openai-root": "/"},
        "containers": [{"name": "kserve-container", "image": "example.invalid/media:1", "command": [sys.executable, MEDIA],
                        "args": ["--port", "8080"], "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}}]}))
    up.wait_ready("media", timeout=120)
    yield "media"
    up.delete("media")


@pytest.fixture
def sent():
    """Digests of the bodies that the SDK sent."""
    return []


@pytest.fixture
def client(up, service, sent):
    def note(request):
        sent.append(hashlib.sha256(request.read()).hexdigest())
    with httpx.Client(event_hooks={"request": [note]}, timeout=60) as http:
        yield openai.OpenAI(base_url=f"{up.url}/openai/v1", api_key="none", max_retries=0, http_client=http)


def sound(size):
    """Bytes that look like a form's own borders here and there."""
    return io.BytesIO(b"\r\n--\r\n\r\nmodel\r\n" + os.urandom(size))


@pytest.mark.parametrize("size", [1_000, 3_000_000])
def test_transcriptions(client, sent, size):
    got = client.audio.transcriptions.create(model="media", file=("model", sound(size)), language="en", temperature=0)
    assert got.text == sent[-1]


def test_translations(client, sent):
    got = client.audio.translations.create(model="media", file=("a.wav", sound(100_000)))
    assert got.text == sent[-1]


def test_speech(client):
    assert client.audio.speech.create(model="media", voice="alloy", input="Grüße, 世界").content == media.SOUND
    with client.audio.speech.with_streaming_response.create(model="media", voice="alloy", input="x") as got:
        assert b"".join(got.iter_bytes()) == media.SOUND


def test_images(client, sent):
    assert client.images.generate(model="media", prompt="a station").data[0].b64_json == sent[-1]
    picture = ("a.png", sound(500_000), "image/png")
    assert client.images.edit(model="media", prompt="a train", image=picture, mask=picture).data[0].b64_json == sent[-1]
