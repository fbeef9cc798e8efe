"""Which model directories to serve: the ones given, or the bundled demo pair."""

from __future__ import annotations

from pathlib import Path

from common.errors import ModelError

BUNDLED = Path(__file__).parents[1] / "models" / "demo"


def choose(target: Path | None, draft: Path | None) -> tuple[Path, Path | None]:
    """Settle the pair.

    Args:
        target: The model whose text is wanted; None takes the bundled pair.
        draft: The model that guesses; None beside a target of your own means none.

    Returns:
        Target, and draft if there is one; both are directories with a model in them.

    Raises:
        ModelError: A directory is missing or holds no model.
    """
    if target is None:
        return bundled("target"), checked(draft, "--draft") if draft else bundled("draft")
    return checked(target, "--target"), checked(draft, "--draft") if draft else None


def choose_pair(target: Path | None, draft: Path | None) -> tuple[Path, Path]:
    """Settle the pair where there is nothing to show without a draft; see `choose`."""
    target, chosen = choose(target, draft)
    if chosen is None:
        raise ModelError("with and without drafts is compared: give --draft beside --target")
    return target, chosen


def bundled(role: str) -> Path:
    """Find one of the two models that come with the source tree."""
    directory = BUNDLED / role
    if not directory.is_dir():
        raise ModelError(
            f"the bundled demo models are not at {BUNDLED}: "
            "run from a checkout, or name model directories with --target and --draft"
        )
    return checked(directory, f"the bundled {role}")


def checked(directory: Path, option: str) -> Path:
    """Return the directory, absolute, if it looks like a Hugging Face model.

    The services check the contents; this only spares the wait for them where the path is wrong.
    """
    if not directory.is_dir():
        raise ModelError(f"{option}: no such directory: {directory}")
    if not (directory / "config.json").is_file():
        raise ModelError(f"{option}: no config.json, so not a model directory: {directory}")
    return directory.resolve()
