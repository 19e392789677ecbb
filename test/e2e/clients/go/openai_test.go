// Package clients asks the gateway with the official Go SDK. OPENAI_BASE_URL says where it is, MODEL
// names a model that can chat, call functions and embed, LATE one that is started while it is asked for.
package clients

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

var (
	model  = os.Getenv("MODEL")
	client = openai.NewClient(option.WithAPIKey("none"), option.WithMaxRetries(0))
)

func ask(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:       model,
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is the capital of France?")},
		Temperature: openai.Float(0), MaxTokens: openai.Int(8),
	}
}

func given(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(os.Getenv(name)), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestModelsAreListed(t *testing.T) {
	page, err := client.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range page.Data {
		if m.ID == model {
			return
		}
	}
	t.Errorf("%s isn't among %v", model, page.Data)
}

func TestAStreamSaysWhatTheWholeAnswerSays(t *testing.T) {
	params := ask(model)
	whole, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			t.Fatalf("a chunk that doesn't fit: %s", stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := sum.Choices[0].Message.Content, whole.Choices[0].Message.Content; got != want || got == "" {
		t.Errorf("streamed %q, whole %q", got, want)
	}
	if sum.Usage.CompletionTokens != whole.Usage.CompletionTokens {
		t.Errorf("streamed %d tokens, whole %d", sum.Usage.CompletionTokens, whole.Usage.CompletionTokens)
	}
}

func TestFunctionsAreCalled(t *testing.T) {
	params := ask(model)
	params.MaxTokens = openai.Int(64)
	params.ToolChoice.OfAuto = openai.String("required")
	given(t, "CONVERSATION", &params.Messages)
	given(t, "TOOLS", &params.Tools)
	whole, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	calls := whole.Choices[0].Message.ToolCalls
	if len(calls) != 1 || calls[0].Function.Name != "weather" {
		t.Fatalf("got %s", whole.RawJSON())
	}
	var args struct{ City string }
	if err := json.Unmarshal([]byte(calls[0].Function.Arguments), &args); err != nil || args.City == "" {
		t.Errorf("arguments %q: %v", calls[0].Function.Arguments, err)
	}
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		sum.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got := sum.Choices[0].Message.ToolCalls; len(got) != 1 || got[0].Function.Arguments != calls[0].Function.Arguments {
		t.Errorf("streamed %+v, whole %+v", got, calls)
	}
}

func TestAnAnswerHasTheStructureThatWasAskedFor(t *testing.T) {
	params := ask(model)
	params.MaxTokens = openai.Int(64)
	var schema any
	given(t, "SCHEMA", &schema)
	params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "place", Strict: openai.Bool(true), Schema: schema},
	}
	answer, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var place struct {
		City *string
		Big  *bool
	}
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &place); err != nil || place.City == nil || place.Big == nil {
		t.Errorf("got %q: %v", answer.Choices[0].Message.Content, err)
	}
}

func TestAStreamHasTheStructureThatWasAskedFor(t *testing.T) {
	params := ask(model)
	params.MaxTokens = openai.Int(64)
	var schema any
	given(t, "SCHEMA", &schema)
	params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "place", Strict: openai.Bool(true), Schema: schema},
	}
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		sum.AddChunk(stream.Current())
	}
	var place struct {
		City *string
		Big  *bool
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(sum.Choices[0].Message.Content), &place); err != nil || place.City == nil || place.Big == nil {
		t.Errorf("got %q: %v", sum.Choices[0].Message.Content, err)
	}
}

func TestResponses(t *testing.T) {
	params := responses.ResponseNewParams{
		Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What is the capital of France?")},
		Temperature: openai.Float(0), MaxOutputTokens: openai.Int(8),
	}
	whole, err := client.Responses.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	stream := client.Responses.NewStreaming(t.Context(), params)
	text, last := "", ""
	for stream.Next() {
		event := stream.Current()
		if last = event.Type; last == "response.output_text.delta" {
			text += event.Delta
		}
	}
	if err := stream.Err(); err != nil || last != "response.completed" {
		t.Errorf("the stream ended with %s, %v", last, err)
	}
	if want := whole.OutputText(); text != want || want == "" {
		t.Errorf("streamed %q, whole %q", text, want)
	}
}

func TestEmbeddings(t *testing.T) {
	got, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Data) != 2 || len(got.Data[0].Embedding) < 100 {
		t.Errorf("got %d vectors", len(got.Data))
	}
}

func TestErrorsAreTheSDKs(t *testing.T) {
	_, err := client.Chat.Completions.New(t.Context(), ask("none-such"))
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Errorf("an unknown model: %v", err)
	}
	long := ask(model)
	long.MaxTokens = openai.Int(100_000)
	_, err = client.Chat.Completions.New(t.Context(), long, option.WithRequestTimeout(50*time.Millisecond), option.WithJSONSet("ignore_eos", true))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a time-out: %v", err)
	}
}

func TestAModelThatIsBeingStartedIsAskedAgain(t *testing.T) {
	answer, err := client.Chat.Completions.New(t.Context(), ask(os.Getenv("LATE")), option.WithMaxRetries(100))
	if err != nil || answer.Choices[0].Message.Content == "" {
		t.Errorf("got %v, %v", answer, err)
	}
}
