// The official JavaScript SDK against the gateway. OPENAI_BASE_URL says where, MODEL names a model
// that can chat, call functions and embed, LATE one that is started while it is asked for.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const model = process.env.MODEL;
const client = new OpenAI({ apiKey: "none", maxRetries: 0, timeout: 300_000 });
const ask = { model, messages: [{ role: "user", content: "What is the capital of France?" }], temperature: 0, max_tokens: 8 };
const conversation = JSON.parse(process.env.CONVERSATION);
const tools = JSON.parse(process.env.TOOLS);
const schema = JSON.parse(process.env.SCHEMA);

test("models are listed", async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes(model), ids.join());
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("a stream says what the whole answer says, and its usage", async () => {
  const whole = await client.chat.completions.create(ask);
  assert.equal(whole.model, model);
  let text = "", usage;
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("functions are called, in one answer and in a stream", async () => {
  const request = { model, messages: conversation, tools, tool_choice: "required", temperature: 0, max_tokens: 64 };
  const whole = await client.chat.completions.create(request);
  const called = whole.choices[0].message.tool_calls[0];
  assert.equal(called.function.name, "weather");
  assert.equal(typeof JSON.parse(called.function.arguments).city, "string");

  const final = await client.chat.completions.stream(request).finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, called.function.arguments);
  assert.equal(final.choices[0].finish_reason, "tool_calls");
});

test("an answer has the structure that was asked for", async () => {
  const answer = await client.chat.completions.parse({
    ...ask, max_tokens: 64, response_format: { type: "json_schema", json_schema: { name: "place", schema, strict: true } },
  });
  assert.deepEqual(Object.keys(JSON.parse(answer.choices[0].message.content)).sort(), ["big", "city"]);
});

test("a stream has the structure that was asked for", async () => {
  const request = { ...ask, max_tokens: 64, response_format: { type: "json_schema", json_schema: { name: "place", schema, strict: true } } };
  const final = await client.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(Object.keys(JSON.parse(final.choices[0].message.content)).sort(), ["big", "city"]);
});

test("responses, in one answer and in a stream", async () => {
  const request = { model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 8 };
  const whole = await client.responses.create(request);
  assert.ok(whole.output_text);
  let text = "", last;
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(text, whole.output_text);
  assert.equal(last.type, "response.completed");
});

test("embeddings", async () => {
  const packed = await client.embeddings.create({ model, input: ["one", "two"] }); // the SDK asks for base64
  const plain = await client.embeddings.create({ model, input: ["one", "two"], encoding_format: "float" });
  assert.equal(packed.data.length, 2);
  for (const [i, e] of packed.data.entries()) {
    assert.equal(e.embedding.length, plain.data[i].embedding.length);
    e.embedding.forEach((x, j) => assert.ok(Math.abs(x - plain.data[i].embedding[j]) < 1e-5));
  }
});

test("errors are of the SDK's classes", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask, model: "none-such" }), (e) => {
    assert.ok(e instanceof OpenAI.NotFoundError);
    assert.equal(e.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...ask, max_tokens: 100_000, ignore_eos: true }, { timeout: 50 }), OpenAI.APIConnectionTimeoutError);
});

test("a model that is being started is asked again until it answers", async () => {
  const patient = new OpenAI({ apiKey: "none", maxRetries: 100, timeout: 300_000 });
  const answer = await patient.chat.completions.create({ ...ask, model: process.env.LATE });
  assert.ok(answer.choices[0].message.content);
});
