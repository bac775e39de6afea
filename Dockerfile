# An image in which RDMA programs of the distribution run on the stack, by a user without privileges. See docs/run.md.
#
#   docker build -t roce .
#   docker run --rm roce ibv_devinfo

FROM rust:1-bookworm AS build
COPY . /src
RUN /src/scripts/package

FROM debian:bookworm-slim
COPY --from=build /src/target/package/roce.deb /tmp/roce.deb
RUN apt-get update && \
    apt-get install -y --no-install-recommends /tmp/roce.deb ibverbs-utils perftest rdmacm-utils && \
    rm -rf /tmp/roce.deb /var/lib/apt/lists/* && \
    useradd --uid 1000 --create-home somebody && \
    install -d -o somebody -m 700 /run/rdma
# Where processes of one user meet; containers that share it meet, too.
ENV XDG_RUNTIME_DIR=/run/rdma
VOLUME /run/rdma
USER somebody
ENTRYPOINT ["roce-run"]
