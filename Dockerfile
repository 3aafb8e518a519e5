# Two images from one build:
#   docker build -t pollux .                      # consumer, outbox-relay, webhook and pollux: what production runs
#   docker build -t pollux-dev --target dev .     # the gateway simulator and the launcher too, for laptops
# The binary is chosen with the command: docker run --rm pollux consumer --help
#
# VERSION is what `pollux version` answers, since the folder .git stays outside: make image passes what git describes.
# The base is pinned by its exact tag; docs/deployment.md says how to pin it by digest, which is a matter of the registry that you trust.

FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH make build VERSION="$VERSION" && \
    make --old-file=build sbom VERSION="$VERSION" BINARIES="/src/bin/consumer /src/bin/outbox-relay /src/bin/webhook /src/bin/pollux"

# Nothing but the binaries, the authorities that gateways' certificates are checked with, the bill of materials and the licences. All times are UTC, so that no zones are needed; nothing is
# written, so that the root can be read-only and there is no /tmp.
FROM scratch AS base
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="pollux" \
      org.opencontainers.image.description="Brings payments that a gateway left pending to a final status" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      pollux.sbom="/usr/share/doc/pollux/sbom.cdx.json"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/LICENSE /src/dist/LICENCES /src/dist/sbom.cdx.json /usr/share/doc/pollux/
COPY --from=build /src/bin/consumer /src/bin/outbox-relay /src/bin/webhook /src/bin/pollux /usr/local/bin/
# Where the configuration is mounted.
ENV PATH=/usr/local/bin POLLUX_CONFIG=/etc/pollux/pollux.yaml
USER 65532:65532
CMD ["pollux", "--help"]

FROM base AS dev
COPY --from=build /src/bin/dev /usr/local/bin/

FROM base AS pollux
