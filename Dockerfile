# Waybill as an image of its own:
#
#   docker build --tag waybill:0.1.0 .
#   docker build --tag waybill-loadtest:0.1.0 --target loadtest .
#
# The release of Debian is the same in all stages, for the program links what the last one installs. `.ci/dockerfile`
# holds both to it. docs/deployment.md says how to run the image.

# The toolchain that the tests run with.
FROM rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS toolchain
# Security fixes take the place of the versions that a release began with, so none can be named here.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libssl-dev make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The builds below share a target directory that outlives them, and cargo goes by times: what was changed in another
# checkout, before that directory was last written to, would count as built. What others wrote goes by versions.
RUN find . -type f -exec touch {} +

FROM toolchain AS build
RUN --mount=type=cache,id=waybill-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=waybill-target,target=/src/target,sharing=locked \
    cargo build --release --locked --package waybill \
    && install -D --mode=0755 target/release/waybill /out/waybill

FROM toolchain AS build-loadtest
RUN --mount=type=cache,id=waybill-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=waybill-target,target=/src/target,sharing=locked \
    cargo build --release --locked --package waybill-loadtest \
    && install -D --mode=0755 target/release/waybill-loadtest /out/waybill-loadtest

# What the program links beside the C library, and the certificates that it trusts.
FROM debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171 AS runtime
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=10001 --group=10001 --mode=0750 /var/lib/waybill
# A number, so that Kubernetes can tell that it is not root. There is nothing else that this user may write to.
USER 10001:10001
STOPSIGNAL SIGTERM

FROM runtime AS loadtest
COPY --from=build-loadtest /out/waybill-loadtest /usr/local/bin/waybill-loadtest
ENTRYPOINT ["waybill-loadtest"]
CMD ["--help"]

FROM runtime AS waybill
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Waybill" \
      org.opencontainers.image.description="Runs multi-step operations so that each completes, is undone, or is parked where a person sees it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/debian:bookworm-20260824-slim" \
      org.opencontainers.image.base.digest="sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171"
COPY LICENSE /usr/share/doc/waybill/LICENSE
COPY --from=build /out/waybill /usr/local/bin/waybill
# The embedded store, the services' ledger, and the names by which agents find their share of the work again.
ENV WAYBILL_DATA_DIR=/var/lib/waybill
VOLUME /var/lib/waybill
WORKDIR /var/lib/waybill
# The API and the admin port, where the configuration puts them there; by default both are on loopback.
EXPOSE 8080 8081
ENTRYPOINT ["waybill"]
CMD ["--help"]
