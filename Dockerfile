# Two stages: dependencies in a layer of their own, then the code and the models. CPU by default.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS dependencies
COPY requirements-serve.lock /tmp/
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
        -r /tmp/requirements-serve.lock

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="triwire" \
      org.opencontainers.image.description="Small transformers over HTTP, with the evidence for their answers"
COPY --from=dependencies /opt/venv /opt/venv
WORKDIR /app
COPY models models
COPY service service
COPY checkpoints checkpoints
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TRIWIRE_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["/opt/venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "service"]
