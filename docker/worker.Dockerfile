# Verifiers and drafters. From the repository's root, for NVIDIA GPUs:
#   docker build -f docker/worker.Dockerfile -t paceline-worker:0.1.0 .
# and for processors, with the smaller build of torch:
#   docker build -f docker/worker.Dockerfile -t paceline-worker:0.1.0-cpu \
#     --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu .
# torch's wheels bring the CUDA libraries along; the driver comes from the node.
ARG PYTHON_VERSION=3.11.14
ARG DEBIAN_RELEASE=bookworm

# Not the slim one: the CPU's decoder is compiled here.
FROM python:${PYTHON_VERSION}-${DEBIAN_RELEASE} AS build
# Where another build of torch is; empty takes the one of the package index.
ARG TORCH_INDEX_URL=
WORKDIR /src
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt \
    PIP_BUILD_CONSTRAINT=/src/constraints.txt
COPY constraints.txt pyproject.toml ./
COPY client/pyproject.toml client/
COPY docker/requirements.py docker/
RUN python -m venv /opt/venv \
    && python docker/requirements.py worker telemetry > /tmp/requirements.txt \
    && pip install --no-cache-dir ${TORCH_INDEX_URL:+--extra-index-url "${TORCH_INDEX_URL}"} \
        -r /tmp/requirements.txt
COPY LICENSE README.md setup.py ./
COPY client client
COPY common common
COPY verifier verifier
COPY drafter drafter
RUN pip install --no-cache-dir --no-deps ./client .

FROM python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="paceline-worker" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin paceline
# Triton compiles what launches its kernels where it runs. An image for processors has no kernels.
ARG TORCH_INDEX_URL=
# hadolint ignore=DL3008
RUN case "${TORCH_INDEX_URL}" in */cpu) ;; *) \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/* ;; \
    esac
COPY --from=build /opt/venv /opt/venv
# What torch is built for: where a container gets a GPU, NVIDIA's runtime refuses an older driver by
# name. For builds for another CUDA set it with TORCH_INDEX_URL: --build-arg REQUIRE_CUDA="cuda>=12.8".
ARG REQUIRE_CUDA="cuda>=13.0"
# Which GPUs a container sees is for the device plugin or `docker run --gpus` to say, not for the
# image. GKE mounts the driver's libraries where the linker does not look.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA="${REQUIRE_CUDA}" \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 TRITON_HOME=/tmp
WORKDIR /tmp
USER 10001:10001
EXPOSE 7071 7072 7073 7079 9464
CMD ["python", "-m", "verifier"]
