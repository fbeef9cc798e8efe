"""Scrapes of metrics, as Prometheus would do them."""

from __future__ import annotations

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from common.telemetry.metrics import Source, exposed

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """What one scrape brought.

    Args:
        text: The page.

    Attributes:
        families: Kinds of the metrics, by name; counters without _total, as the format has it.
    """

    def __init__(self, text: str) -> None:
        parsed = list(text_string_to_metric_families(text))
        self.text = text
        self.families = {family.name: family.type for family in parsed}
        self._samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parsed
            for sample in family.samples
        }

    def labels(self, name: str) -> set[frozenset[str]]:
        """Names of labels that the samples of a metric have."""
        return {
            frozenset(key for key, _ in labels if key != "le")
            for found, labels in self._samples
            if found == name
        }

    def value(self, name: str, **labels: str) -> float:
        """The one sample that has these labels, among others."""
        (found,) = (
            value
            for (sample, all_labels), value in self._samples.items()
            if sample == name and all_labels >= set(labels.items())
        )
        return found


async def scrape(source: Source) -> Scrape:
    """Serves a source's metrics, and reads them over HTTP."""
    async with exposed("127.0.0.1", 0, source) as port:
        return await scrape_port(port)


async def scrape_port(port: int | None, host: str = "127.0.0.1") -> Scrape:
    """Reads the metrics that are served on a port."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=20) as page:
            assert page.status == 200
            text: str = page.read().decode()
            return text

    return Scrape(await asyncio.to_thread(read))
