# All binaries of Pollux, static, in an image without a shell. Build one image, choose the binary with the command:
#   docker build -t pollux .
#   docker run pollux consumer --help
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/ ./cmd/...

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
USER 65532:65532
ENV PATH=/usr/local/bin
CMD ["pollux", "--help"]
