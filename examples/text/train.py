"""Trains the text classifier of this example and writes model/model.onnx.

    pip install scikit-learn==1.5.2 skl2onnx==1.20.0 onnx==1.18.0
    python examples/text/train.py

It sorts a sentence that a customer wrote into one of four queues. The sentences below were
written for this example; with so few of them the model is a demonstration of strings in and
strings out, not of language understanding. It takes `text`, BYTES of any number of rows by 1,
and gives `queue`, BYTES, and `probabilities`, FP32 by queue in alphabetical order.
"""

import pathlib

from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

SENTENCES = {
    "billing": [
        "the invoice shows the wrong amount",
        "I was charged twice this month",
        "please send me a receipt for my payment",
        "my card was declined but the money is gone",
        "when will my refund arrive",
        "the discount is missing from my bill",
        "how do I change my payment method",
        "I need an invoice with our tax number",
    ],
    "delivery": [
        "my parcel has not arrived",
        "the package was left at the wrong door",
        "where is my order now",
        "the tracking page has not changed for a week",
        "can you ship to another address",
        "the box was damaged when the courier brought it",
        "delivery is two days late",
        "I want to collect my parcel at the shop",
    ],
    "returns": [
        "I would like to return these shoes",
        "the size does not fit and I want to exchange it",
        "how do I send the item back",
        "please send me a return label",
        "the colour is not what I ordered so I am returning it",
        "can I return something I bought last month",
        "I sent the jacket back and want to exchange it for a larger size",
        "what is your return policy",
    ],
    "technical": [
        "the app crashes when I open it",
        "I cannot log in to my account",
        "the website shows an error page",
        "my password reset email never comes",
        "the search does not work on my phone",
        "the page is very slow and then freezes",
        "I get an error when I press the button",
        "the app does not start after the update",
    ],
}

texts = [sentence for queue in SENTENCES.values() for sentence in queue]
queues = [queue for queue, sentences in SENTENCES.items() for _ in sentences]
model = make_pipeline(
    TfidfVectorizer(lowercase=True, token_pattern="[a-zA-Z0-9_]+"),
    LogisticRegression(C=10, max_iter=1000),
)
model.fit(texts, queues)
print(f"accuracy on the training data: {model.score(texts, queues):.3f}")

onnx_model = to_onnx(
    model,
    initial_types=[("text", StringTensorType([None, 1]))],
    options={id(model): {"zipmap": False}},
    target_opset={"": 17, "ai.onnx.ml": 3, "com.microsoft": 1},
)
for output, name in zip(onnx_model.graph.output, ["queue", "probabilities"]):
    for node in onnx_model.graph.node:
        for i, produced in enumerate(node.output):
            if produced == output.name:
                node.output[i] = name
    output.name = name
onnx_model.graph.name = "text"
out = pathlib.Path(__file__).parent / "model" / "model.onnx"
out.parent.mkdir(exist_ok=True)
out.write_bytes(onnx_model.SerializeToString())
print(f"wrote {out.name}, {out.stat().st_size} bytes")
