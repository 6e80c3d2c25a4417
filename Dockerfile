# syntax=docker/dockerfile:1

# The build runs on the builder's own platform and compiles for the target's, so that no emulation is needed:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v1.2.3 -t stage .
ARG GO_VERSION=1.26
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION COMMIT
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -o /out/stage \
	-ldflags "-s -w -X github.com/llm-stage/stage/internal/version.linkedVersion=$VERSION -X github.com/llm-stage/stage/internal/version.linkedCommit=$COMMIT" \
	./cmd/stage
RUN mkdir /out/data

# Nothing but the binary and the certificates by which it knows the providers.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The store of the embedded server, when no STAGE_NATS_URL is given: mount a volume here, or its rows go with the container.
COPY --from=build --chown=65532:65532 /out/data /data
COPY --from=build /out/stage /stage
ENV STAGE_DATA_DIR=/data
WORKDIR /data
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
# Metrics, health and dashboard. They listen on loopback until STAGE_HTTP_ADDR=:9464 says otherwise.
EXPOSE 9464
ENTRYPOINT ["/stage"]
CMD ["run"]
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="llm-stage" \
	org.opencontainers.image.description="Rows of a JetStream stream in, ordered results of an LLM out" \
	org.opencontainers.image.source="https://github.com/llm-stage/stage" \
	org.opencontainers.image.licenses="Apache-2.0" \
	org.opencontainers.image.version="$VERSION" \
	org.opencontainers.image.revision="$COMMIT"
