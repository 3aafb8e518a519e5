# Pollux. `make run` and `make test` set up everything they need; nothing else has to be installed but Go and git.

# The race detector needs a C compiler; without one the tests run without it, and say so.
RACE := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo -race)
FUZZTIME ?= 30s
TOOL = go run -modfile=tools/go.mod
# What `pollux version` answers, where there is no .git to tell (a container's build). Otherwise it is the module's version or the commit.
VERSION ?=

.PHONY: help run test evidence bench lint build image secrets fuzz fmt monitoring reproducible sbom licences

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

run:             ## everything on this machine: PostgreSQL, JetStream, a gateway, the relay, two consumers, traffic
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && trap : INT TERM && \
	  go build -buildvcs=false -o "$$dir/dev" ./cmd/dev && "$$dir/dev" # "go run" makes an error of every Ctrl-C

test:            ## all tests: real PostgreSQL, real JetStream, real processes
	@test -n "$(RACE)" || echo "no C compiler: the tests run without the race detector"
	go test $(RACE) -shuffle=on -timeout 20m ./...
	cd tools/stripemock && go test ./...
	cd tools/supply && go test ./...
	cd deploy/check && go test ./...

evidence:        ## gateways in trouble, seen from the gateway's own log; on a machine that does nothing else
	go test -tags evidence -count=1 -timeout 10m ./internal/dev

bench:           ## the figures of the README, measured here; some minutes
	cd bench && go run .

lint:            ## formatting, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "run make fmt:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	$(TOOL) honnef.co/go/tools/cmd/staticcheck ./...

fmt:             ## format all Go files
	gofmt -w $$(git ls-files '*.go')

build:           ## the binaries, static, into bin/
	CGO_ENABLED=0 go build -trimpath $(if $(VERSION),-ldflags='-X pollux/internal/app.stamp=$(VERSION)') -o bin/ ./cmd/...

image:           ## the container image pollux, of this commit
	docker build --build-arg VERSION="$$(git describe --tags --always --dirty)" --build-arg REVISION="$$(git rev-parse HEAD)" -t "pollux:$$(git describe --tags --always --dirty)" .

secrets:         ## what compose.yaml mounts, for this machine; what is there stays
	@deploy/compose/secrets.sh

fuzz:            ## each fuzz target for FUZZTIME
	@for pkg in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$pkg/*_test.go | cut -c6-); do \
	    echo "$$pkg $$target"; go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) ./$$pkg || exit 1; \
	  done; \
	done

monitoring:      ## rules, alerts and dashboards: that they fire, stay silent, and name what there is
	go test -count=1 ./deploy/monitoring

reproducible:    ## builds everything twice, the second time elsewhere and from nothing, and compares; some minutes
	tools/reproducible

SUPPLY = cd tools/supply && VERSION="$(VERSION)" go run .
BINARIES = $(patsubst cmd/%,$(CURDIR)/bin/%,$(wildcard cmd/*))

sbom: build      ## dist/sbom.cdx.json: what is in the binaries; dist/LICENCES: the texts to hand on with them
	@mkdir -p dist
	$(SUPPLY) sbom $(BINARIES) > $(CURDIR)/dist/sbom.cdx.json
	$(SUPPLY) texts $(BINARIES) > $(CURDIR)/dist/LICENCES

licences: build  ## docs/licences.md anew; CHECK=1 only compares
	$(SUPPLY) licences $(BINARIES) > $(CURDIR)/bin/.licences
	@if [ -z "$(CHECK)" ]; then mv bin/.licences docs/licences.md; else \
	  diff docs/licences.md bin/.licences || { echo "docs/licences.md is not as the binaries are; run make licences"; exit 1; }; fi
