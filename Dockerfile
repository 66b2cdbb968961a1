# The image of Waybill, and the image of its load generator, from one build:
#
#   docker build --tag waybill:0.1.0 .
#   docker build --tag waybill-loadtest:0.1.0 --target loadtest .
#
# All stages have the same release of Debian, because the program links the libraries that the last stage installs.
# `.ci/dockerfile` checks this, and `.ci/containers` builds and runs the images. docs/deployment.md describes how to run them.

# Without access to a registry, name your own base images: docker build --build-arg RUST_IMAGE=… --build-arg BASE_IMAGE=… .
# The toolchain that the tests run with.
ARG RUST_IMAGE=rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082
ARG BASE_IMAGE=debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
# The source of the programs: the stage that builds them, or an image that has them in /out.
ARG PROGRAMS=build

FROM ${RUST_IMAGE} AS build
# Security updates replace the versions that a release began with, so no version can be pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libssl-dev make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The target directory outlives the build, and cargo compares times: without this, a file that changed in another checkout
# before the last build would count as built.
RUN find . -type f -exec touch {} +
# Both programs in one run of cargo: their common dependencies then have the same features, and are compiled once.
RUN --mount=type=cache,id=waybill-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=waybill-target,target=/src/target,sharing=locked \
    cargo build --profile dist --locked --package waybill --package waybill-loadtest \
    && install -D --strip --mode=0755 --target-directory=/out target/dist/waybill target/dist/waybill-loadtest

# hadolint ignore=DL3006
FROM ${PROGRAMS} AS programs

# The libraries that the program links in addition to the C library, and the certificates that it trusts.
FROM ${BASE_IMAGE} AS runtime
# The data directory belongs to the image's user, and to group 0: OpenShift runs containers as a user of that group with an
# arbitrary id.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives /var/cache/apt/*.bin /var/cache/debconf/*-old \
       /var/lib/dpkg/*-old /var/log/* \
    && install --directory --owner=10001 --group=0 --mode=0770 /var/lib/waybill
# A number, so that Kubernetes can verify that it is not root. This user may write to the data directory only.
USER 10001:10001
STOPSIGNAL SIGTERM

FROM runtime AS loadtest
COPY --from=programs /out/waybill-loadtest /usr/local/bin/waybill-loadtest
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
# Those of Swagger UI, which is in the program.
COPY crates/ingestion/src/docs/vendor/LICENSE crates/ingestion/src/docs/vendor/NOTICE \
     crates/ingestion/src/docs/vendor/LICENSES-of-parts.txt /usr/share/doc/waybill/swagger-ui/
COPY --from=programs /out/waybill /usr/local/bin/waybill
# The embedded broker and store, the services' ledger, and the names by which agents regain their share of the work.
ENV WAYBILL_DATA_DIR=/var/lib/waybill
VOLUME /var/lib/waybill
WORKDIR /var/lib/waybill
EXPOSE 8080 8081
# A scheduler that starts after another one was killed waits for the lease. Kubernetes ignores this and uses probes.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=12 CMD ["waybill", "ready"]
ENTRYPOINT ["waybill"]
# Everything in one process. The API and the admin port listen on the container's addresses, so that they can be published.
# Waybill refuses to do so without authentication, unless WAYBILL_INSECURE=true allows it.
CMD ["up", "--http", "0.0.0.0:8080", "--admin", "0.0.0.0:8081"]
