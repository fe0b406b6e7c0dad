# Locked dependencies in a layer of their own, then the code and the models. By default for the CPU:
#   docker build -t triwire .
#   docker build -t triwire:cuda --build-arg VARIANT=cuda .     for NVIDIA GPUs (or otel, for traces)
#   docker build -t triwire:train --target train .              what trains, instead of what serves
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
# For strip: much of jaxlib, ml_dtypes and tensorstore is symbols that nothing but a debugger reads.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
# The environment gets no pip of its own.
RUN python -m venv --without-pip /opt/venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_HASHES=1

FROM build AS serving
# The name of a lock file: serve, otel or cuda.
ARG VARIANT=serve
COPY requirements-${VARIANT}.lock /tmp/requirements.lock
RUN python -m pip --python /opt/venv/bin/python install -r /tmp/requirements.lock \
    && find /opt/venv -type d -name tests -prune -exec rm -r {} + \
    && find /opt/venv \
        \( -name libjax_common.so -o -name "_ml_dtypes_ext.*.so" -o -name "_tensorstore.*.so" \) \
        -exec strip --strip-unneeded {} +

FROM build AS training
COPY requirements-train.lock /tmp/requirements.lock
RUN python -m pip --python /opt/venv/bin/python install -r /tmp/requirements.lock

# Whatever umask the checkout was made under: everybody may read the code, and only root write to it.
FROM build AS sources
WORKDIR /app
COPY models models
COPY service service
COPY triwire triwire
COPY training training
COPY checkpoints checkpoints
RUN chmod -R u=rwX,go=rX .

FROM python:${PYTHON}-slim AS runtime
ARG REVISION=unknown
LABEL org.opencontainers.image.title="triwire" \
      org.opencontainers.image.description="Small transformers over HTTP, with the evidence for their answers" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
# Volumes that are mounted here belong to the user that the processes run as.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin triwire \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/cache/triwire \
        /var/lib/triwire /var/lib/triwire/checkpoints
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/var/cache
WORKDIR /app
COPY --from=sources /app/models models
VOLUME ["/var/cache/triwire", "/var/lib/triwire"]
USER 10001:10001

FROM runtime AS train
COPY --from=training /opt/venv /opt/venv
COPY --from=sources /app/training training
# Bundles and runs go to the volume.
# hadolint ignore=DL3066
USER root
RUN ln -s /var/lib/triwire/checkpoints checkpoints
USER 10001:10001
ENV PYTHONPATH=/app MPLCONFIGDIR=/tmp
WORKDIR /var/lib/triwire
ENTRYPOINT ["/opt/venv/bin/python", "-m", "training"]

FROM runtime AS serve
COPY --from=serving /opt/venv /opt/venv
COPY --from=sources /app/service service
COPY --from=sources /app/triwire triwire
COPY --from=sources /app/checkpoints checkpoints
ENV TRIWIRE_HOST=0.0.0.0 TRIWIRE_PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["/opt/venv/bin/python", "-m", "service.probe"]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "service"]
