# Two stages: dependencies in a layer of their own, then the code and the models. CPU by default.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS dependencies
# requirements-otel.lock for traces as well.
ARG REQUIREMENTS=requirements-serve.lock
COPY ${REQUIREMENTS} /tmp/requirements.lock
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
        -r /tmp/requirements.lock

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="triwire" \
      org.opencontainers.image.description="Small transformers over HTTP, with the evidence for their answers"
COPY --from=dependencies /opt/venv /opt/venv
WORKDIR /app
COPY models models
COPY service service
COPY checkpoints checkpoints
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TRIWIRE_HOST=0.0.0.0 TRIWIRE_COMPILATION_CACHE=/var/cache/triwire
# A volume that is mounted here belongs to the user that runs the service.
RUN mkdir /var/cache/triwire && chown 10001:10001 /var/cache/triwire
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["/opt/venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "service"]
