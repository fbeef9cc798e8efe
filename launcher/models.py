"""Which model directories to serve: the ones given, or the bundled demo pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import ModelError

BUNDLED = Path(__file__).parents[1] / "models" / "demo"

MODEL = ("config.json",)
HEADS = ("medusa*", "model*.safetensors", "pytorch_model*.bin")
"""Files of heads by themselves, or of a model that has them within."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """What one deployment serves and guesses with; all are absolute directories."""

    target: Path
    """The model whose text is wanted."""
    draft: Path | None = None
    """The model that guesses, if there is one."""
    medusa: Path | None = None
    """Heads that guess beside the target, if there are any."""
    eagle: Path | None = None
    """EAGLE-3 head, Gemma 4 assistant or the target itself that does, if one is to."""

    @property
    def prompt(self) -> str:
        """What to try on a command line: ids where the target has no tokenizer."""
        has_tokenizer = (self.target / "tokenizer.json").is_file()
        return '"Once upon a time"' if has_tokenizer else "--token-ids 1,2,3"

    def require_drafts(self) -> None:
        """Refuse a target alone, where what drafts are worth is to be shown.

        Raises:
            ModelError: It is that.
        """
        if not (self.draft or self.medusa or self.eagle):
            raise ModelError(
                "with and without drafts is compared: "
                "give --draft, --medusa or --eagle beside --target"
            )


def choose(
    target: Path | None = None,
    draft: Path | None = None,
    medusa: Path | None = None,
    eagle: Path | None = None,
) -> Models:
    """Settle what to serve.

    Args:
        target: The model whose text is wanted; None takes the bundled models.
        draft: The model that guesses; None beside a target of your own means none.
        medusa: Heads that guess; None beside a target of your own means none.
        eagle: EAGLE-3 head, Gemma 4 assistant or the target itself that guesses; None beside a
            target of your own means none.

    Raises:
        ModelError: A directory is missing or holds no model.
    """
    own_draft = checked(draft, "--draft") if draft else None
    own_medusa = checked(medusa, "--medusa", HEADS) if medusa else None
    own_eagle = checked(eagle, "--eagle") if eagle else None
    if target is not None:
        own_target = checked(target, "--target")
        return Models(target=own_target, draft=own_draft, medusa=own_medusa, eagle=own_eagle)
    return Models(
        target=bundled("target"),
        draft=own_draft or bundled("draft"),
        medusa=own_medusa or bundled("medusa", HEADS),
        eagle=own_eagle or bundled("eagle"),
    )


def bundled(role: str, holds: Sequence[str] = MODEL) -> Path:
    """Find one of the models that come with the source tree."""
    directory = BUNDLED / role
    if not directory.is_dir():
        raise ModelError(
            f"the bundled demo models are not at {BUNDLED}: "
            "run from a checkout, or name model directories with --target and --draft"
        )
    return checked(directory, f"the bundled {role}", holds)


def checked(directory: Path, option: str, holds: Sequence[str] = MODEL) -> Path:
    """Return the directory, absolute, if it holds a file that matches one of `holds`.

    The services check the contents; this only spares the wait for them where the path is wrong.
    """
    if not directory.is_dir():
        raise ModelError(f"{option}: no such directory: {directory}")
    if not any(found for pattern in holds for found in directory.glob(pattern)):
        raise ModelError(f"{option}: holds no {' or '.join(holds)}: {directory}")
    return directory.resolve()
