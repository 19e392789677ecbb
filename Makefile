# Stationmaster's commands. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 0

BIN := bin/stationmaster
# One room's tests may take minutes under the race detector on a busy machine.
GOFLAGS_TEST ?= -shuffle=on -timeout=30m
FUZZTIME ?= 5s

# The embedded kubectl tells the version of the Kubernetes libraries that it is made of: their
# v0.X.Y is Kubernetes v1.X.Y.
KUBE = $(shell go list -m -f '{{.Version}}' k8s.io/component-base | sed 's/^v0/v1/')
KUBE_VERSION := k8s.io/component-base/version
LDFLAGS = -s -w -X $(KUBE_VERSION).gitVersion=$(KUBE) -X $(KUBE_VERSION).gitMajor=1 \
  -X $(KUBE_VERSION).gitMinor=$(word 2,$(subst ., ,$(KUBE))) -X $(KUBE_VERSION).gitCommit=
# Our own version comes from git, where git answers.
BUILDVCS = $(shell git rev-parse --verify -q HEAD >/dev/null 2>&1 && echo auto || echo false)

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/stationmaster, static, without cgo
	@mkdir -p bin
	go build -trimpath -buildvcs=$(BUILDVCS) -ldflags "$(LDFLAGS)" -o $(BIN) ./cmd/stationmaster

.PHONY: static
static: ## build bin/stationmaster-static for images without a C library (no onnxruntime)
	@mkdir -p bin
	go build -trimpath -buildvcs=$(BUILDVCS) -tags scratch -ldflags "$(LDFLAGS)" -o $(BIN)-static ./cmd/stationmaster

IMAGE ?= stationmaster:dev
.PHONY: image
image: static ## build the image IMAGE (docker, podman or buildah) for a cluster
	@tool=$$(command -v docker || command -v podman || command -v buildah) || { echo "make image needs docker, podman or buildah; bin/stationmaster-static is built, and the Dockerfile says how it is laid out" >&2; exit 1; }; \
	  "$$tool" build -t $(IMAGE) .

.PHONY: up
up: build ## serve on this machine with the examples applied (Ctrl-C drains)
	$(BIN) up --apply examples/iris --apply examples/text

.PHONY: test
test: ## every test that needs nothing but Go
	go test $(GOFLAGS_TEST) ./...
	go -C tools test $(GOFLAGS_TEST) ./...
	go -C tools/helm test $(GOFLAGS_TEST) ./...

.PHONY: race
race: ## the tests under the race detector (needs a C compiler)
	@command -v "$${CC:-gcc}" >/dev/null || { echo "make race needs a C compiler: install gcc, or name one in CC" >&2; exit 1; }
	CGO_ENABLED=1 go test -race $(GOFLAGS_TEST) $$(go list ./... | grep -v -e /internal/arch -e /internal/kubeapi/openapi)

.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME (default 5s)
	FUZZTIME=$(FUZZTIME) tools/fuzz

.PHONY: fuzz-seeds
fuzz-seeds: ## run each fuzz target's committed seeds
	tools/fuzz -seeds

.PHONY: lint
lint: ## gofmt, vet, and golangci-lint as tools/lint/go.mod pins it
	@unformatted=$$(gofmt -l api cmd config internal test tools) && test -z "$$unformatted" || { echo "$$unformatted"; echo "run gofmt on these"; exit 1; }
	go vet ./...
	go -C tools vet ./...
	go tool -modfile=tools/lint/go.mod golangci-lint run ./...

.PHONY: arch
arch: ## the map of the tree: who may import whom
	go test ./internal/arch

.PHONY: generate
generate: ## remake generated code and CRDs
	tools/generate

.PHONY: generate-check
generate-check: ## fail if generated code or CRDs are out of date
	tools/generate-check

.PHONY: verify
verify: lint generate-check arch race fuzz-seeds ## what CI runs before the tests

.PHONY: e2e
e2e: build ## real engines, real clients and a real Kubernetes (installs and builds what they need)
	STATIONMASTER_BIN=$(CURDIR)/$(BIN) test/e2e/run
	go build -o bin/load ./test/load
	bin/load -binary $(BIN) -updates 10
	$(MAKE) e2e-kubernetes

.PHONY: load
load: build ## ten updates (as in e2e), then half a minute of chaos, under 500 requests a second
	go build -o bin/load ./test/load
	bin/load -binary $(BIN) -updates 10 -chaos 30s

.PHONY: soak
soak: build ## the same at length: 100 updates, ten minutes of chaos; writes bench/results/load.json
	go build -o bin/load ./test/load
	@mkdir -p bench/results
	bin/load -binary $(BIN) -updates 100 -chaos 10m -out bench/results/load.json

.PHONY: e2e-kubernetes
e2e-kubernetes: ## the suite on a real Kubernetes cluster (root; builds it once, several minutes)
	STATIONMASTER_CLUSTER=$$(tools/cluster/prepare) && export STATIONMASTER_CLUSTER && \
	  go test -count=1 -v -p 1 -parallel 16 -timeout 20m ./test/cluster/... ./test/e2e/kubernetes/...

.PHONY: cluster
cluster: ## a real Kubernetes cluster in the foreground, NODES=1 or 2 (root; see test/cluster/README.md)
	STATIONMASTER_CLUSTER=$$(tools/cluster/prepare) && export STATIONMASTER_CLUSTER && \
	  go run ./test/cluster/up -nodes $(or $(NODES),1)

.PHONY: bench
bench: build ## measure; writes bench/results/*.json
	test/bench/run

.PHONY: clean
clean: ## remove what was built and the local data dir
	rm -rf bin .stationmaster
