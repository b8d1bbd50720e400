# The image of the Prefect server, its services and the workers. Nothing secret is in it; the store, the data and what a
# model hub has sent are volumes.
FROM python:3.11.11-slim-bookworm

# requirements-gpu.lock has FAISS for GPUs, and reads their power; docker-compose.yml builds GPU workers with it.
ARG REQUIREMENTS=requirements.lock
# Another package index beside pip's own: PyTorch's with CPU builds makes the image 4 GB smaller, for machines without GPU.
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

RUN useradd --uid 1000 --create-home pretrieve \
    && mkdir --parents /app /store /data /home/pretrieve/.cache/huggingface \
    && chown --recursive pretrieve:pretrieve /app /store /data /home/pretrieve

WORKDIR /app
COPY requirements.lock requirements-gpu.lock ./
RUN pip install --requirement "$REQUIREMENTS"

COPY pyproject.toml README.md LICENSE prefect.yaml ./
COPY configs configs
COPY flows flows
COPY models models
COPY pretrieve pretrieve
COPY storage storage
COPY tasks tasks
RUN pip install --no-deps --editable . --config-settings editable_mode=compat && pip check

USER pretrieve
ENV DO_NOT_TRACK=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    PREFECT_SERVER_EPHEMERAL_ENABLED=false \
    PRETRIEVE_COLLECTIONS=/data \
    PRETRIEVE_HOME=/app \
    PRETRIEVE_STORE=/store
# Secrets that Compose mounts there take their places in the environment.
ENTRYPOINT ["python", "-m", "flows.prefect_server.with_secrets", "/run/secrets"]
CMD ["pretrieve", "--help"]
