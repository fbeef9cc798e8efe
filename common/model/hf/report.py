"""What `transformers` says while it loads a model, and of what it loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers.utils import logging as hf_logging

from common.errors import ModelError
from common.model.mtp.checkpoint import SETTING, further_layers, is_of

_log = logging.getLogger(__name__)


def have_logged() -> None:
    """Has what is said, but for a table of what `check` is given, go where our logs go: a service's
    stderr is one JSON object a line."""
    hf_logging.disable_progress_bar()
    hf_logging.disable_default_handler()
    hf_logging.enable_propagation()
    logging.getLogger("transformers.modeling_utils").addFilter(_is_no_table)


def check(directory: Path, report: Mapping[str, Iterable[Any]], text: Any) -> None:
    """Refuses a model that is not all there; what is there beside it is logged.

    Args:
        directory: Of its files.
        report: Names of tensors, by what is wrong with them.
        text: Configuration of the part that reads text. Nothing is said of layers that predict
            further tokens: they are not run.

    Raises:
        ModelError: Some are missing, or cannot be used; names one.
    """
    for problem in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, report[problem])):
            raise ModelError(f"{directory}: {problem.replace('_', ' ')}: {names[0]}")
    further = further_layers(text.num_hidden_layers, getattr(text, SETTING, None))
    unread = sorted(str(name) for name in report["unexpected_keys"])
    unread = [name for name in unread if not is_of(further, name)]
    if scales := [name for name in unread if "weight_scale" in name]:
        raise ModelError(f"{directory}: scales of quantised weights, not used: {scales[0]}")
    if unread:
        said = {"path": str(directory), "count": len(unread), "first": unread[0]}
        _log.warning("tensors of a model's files are not used", extra=said)


def _is_no_table(record: logging.LogRecord) -> bool:
    """Whether a record is not transformers' table of what `check` is given."""
    return "LOAD REPORT" not in record.getMessage()
