# Stationmaster's commands. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 0

BIN := bin/stationmaster
GOFLAGS_TEST ?= -shuffle=on
FUZZTIME ?= 5s

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/stationmaster, static, without cgo
	@mkdir -p bin
	go build -trimpath -ldflags "-s -w" -o $(BIN) ./cmd/stationmaster

.PHONY: up
up: build ## serve on this machine with the examples applied (Ctrl-C drains)
	$(BIN) up --apply examples/iris --apply examples/text

.PHONY: test
test: ## every test that needs nothing but Go
	go test $(GOFLAGS_TEST) ./...

.PHONY: race
race: ## the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race $(GOFLAGS_TEST) $$(go list ./... | grep -v -e /internal/arch -e /internal/kubeapi/openapi)

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (default 5s)
	@set -e; for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -ho --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' -r $$pkg | sed 's/func //' | sort -u); do \
	    ls $$pkg/*_test.go | xargs grep -l "func $$f(" >/dev/null 2>&1 || continue; \
	    echo "== $$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; done

.PHONY: lint
lint: ## vet, and golangci-lint as tools/go.mod pins it
	go vet ./...
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt on these"; exit 1; }
	go tool -modfile=tools/go.mod golangci-lint run ./...

.PHONY: generate
generate: ## remake generated code and CRDs
	tools/generate

.PHONY: generate-check
generate-check: ## fail if generated code or CRDs are out of date
	tools/generate
	git diff --exit-code -- api config internal/kubeapi/openapi

.PHONY: verify
verify: lint generate-check race fuzz ## what CI runs before the tests: lint, generate check, arch, race tests, fuzz seeds

.PHONY: e2e
e2e: build ## real engines and real clients against a real `up` (installs them from package registries)
	test/e2e/run

.PHONY: bench
bench: build ## measure; writes bench/results/*.json
	test/bench/run

.PHONY: clean
clean: ## remove what was built and the local data dir
	rm -rf bin .stationmaster
