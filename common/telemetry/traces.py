"""Opens traces where the configuration wants them."""

from __future__ import annotations

from common.errors import ConfigError
from common.telemetry.config import TracingConfig
from common.telemetry.span import Traces


def open_traces(config: TracingConfig, service: str) -> Traces:
    """Returns what makes a process's spans.

    Args:
        config: Where they go, and how many.
        service: The service's name: "gateway".

    Raises:
        ConfigError: The packages it takes are missing.
    """
    if config.endpoint is None:
        return Traces()
    try:
        from common.telemetry.otlp import OtlpTraces  # lazily: only tracing needs the packages
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing.endpoint: {error.name} is missing; pip install 'paceline-server[telemetry]'"
        ) from None
    return OtlpTraces(config, service)
