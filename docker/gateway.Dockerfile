# The gateway: no torch, no GPU. From the repository's root:
#   docker build -f docker/gateway.Dockerfile -t paceline-gateway:0.1.0 .
ARG PYTHON_VERSION=3.11.14
ARG DEBIAN_RELEASE=bookworm

FROM python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE} AS build
WORKDIR /src
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt \
    PIP_BUILD_CONSTRAINT=/src/constraints.txt
COPY constraints.txt pyproject.toml ./
COPY client/pyproject.toml client/
COPY docker/requirements.py docker/
RUN python -m venv /opt/venv \
    && python docker/requirements.py gateway jwt kubernetes telemetry > /tmp/requirements.txt \
    && pip install --no-cache-dir -r /tmp/requirements.txt
COPY LICENSE README.md setup.py ./
COPY client client
COPY common common
COPY gateway gateway
COPY fleet fleet
RUN pip install --no-cache-dir --no-deps ./client .

FROM python:${PYTHON_VERSION}-slim-${DEBIAN_RELEASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="paceline-gateway" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin paceline
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
EXPOSE 7070 7079 9464
CMD ["python", "-m", "gateway"]
