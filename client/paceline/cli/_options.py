"""Options that several commands share, each written once.

A group of options is a dataclass; `expand` turns a parameter of that class into one option a field.
"""

import codecs
import inspect
import io
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, TextIO, get_type_hints

import typer

from paceline._types import Lookahead
from paceline.errors import ArgumentError, PacelineError

SPECULATION = "Speculation"
SAMPLING = "Sampling"

Address = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_ADDRESS",
        metavar="HOST:PORT",
        help="The gateway; localhost:7070 unless given, port 7070 for a host alone.",
    ),
]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="A name that `paceline models` lists.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON and nothing else.")]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="One minute unless given; inf: no limit."),
]
Color = Annotated[
    bool | None,
    typer.Option(
        "--color/--no-color",
        help="Colour tokens by how they came; by default on a terminal only.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """What `Client.generate` takes beside the prompt."""

    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens; the model's limit unless given.")
    ] = None
    temperature: Annotated[
        float, typer.Option(help="0 is greedy, above 0 samples.", rich_help_panel=SAMPLING)
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(help="Keep the K likeliest; 0: all.", rich_help_panel=SAMPLING)
    ] = 0
    top_p: Annotated[
        float, typer.Option(help="Keep this much probability.", rich_help_panel=SAMPLING)
    ] = 1.0
    min_p: Annotated[
        float,
        typer.Option(help="Drop below this part of the likeliest.", rich_help_panel=SAMPLING),
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 discourages repeats.", rich_help_panel=SAMPLING)
    ] = 1.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=BIAS", help="Add to a logit; repeatable.", rich_help_panel=SAMPLING
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="The same seed, the same text.", rich_help_panel=SAMPLING),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End before this, of 1 to 256 characters; repeatable, up to 16 times. Special "
            "tokens have no text: give their ids to --stop-token-ids.",
        ),
    ] = None
    stop_token_ids: Annotated[
        str | None, typer.Option(metavar="ID,ID,…", help="End after any of these ids.")
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's end token.")
    ] = False
    method: Annotated[
        str,
        typer.Option(
            help="auto, plain, draft, medusa, eagle, ngram, lookahead, or several, as "
            "draft+ngram; `paceline models` lists those served.",
            rich_help_panel=SPECULATION,
        ),
    ] = "auto"
    draft_tokens: Annotated[
        int, typer.Option(help="Most draft tokens a round; 0: auto.", rich_help_panel=SPECULATION)
    ] = 0
    lookahead: Annotated[
        str | None,
        typer.Option(
            metavar="W,N,G",
            help="Sizes of lookahead decoding; 0: auto.",
            rich_help_panel=SPECULATION,
        ),
    ] = None
    acceptance: Annotated[
        str, typer.Option(help="coupled, rejection or typical.", rich_help_panel=SPECULATION)
    ] = "coupled"
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="One hour unless given; inf: no limit but the gateway's."
        ),
    ] = None
    resume: Annotated[bool, typer.Option(help="Go on with another gateway where one is lost.")] = (
        True
    )

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments for `Client.generate`."""
        return {
            **asdict(self),
            "logit_bias": dict(parse_bias(item) for item in self.logit_bias or ()),
            "stop_token_ids": parse_ids("--stop-token-ids", self.stop_token_ids or ""),
            "lookahead": None if self.lookahead is None else parse_sizes(self.lookahead),
        }


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the parameter `options` of a command by the fields of `GenerationOptions`."""
    hints = get_type_hints(GenerationOptions, include_extras=True)
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(GenerationOptions)
    ]

    def expanded(**values: Any) -> None:
        chosen = {parameter.name: values.pop(parameter.name) for parameter in added}
        command(options=GenerationOptions(**chosen), **values)

    signature = inspect.signature(command, eval_str=True)
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name != "options"
    ]
    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__signature__ = signature.replace(parameters=kept + added)  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in kept + added}
    return expanded


def parse_ids(option: str, text: str) -> list[int]:
    """Reads ids separated by commas or blanks.

    Raises:
        ArgumentError: A part is not a number.
    """
    parts = text.replace(",", " ").split()
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise ArgumentError(option, f"must be ids as in 1,2,3, got {text!r}") from None


def parse_sizes(text: str) -> Lookahead:
    """Reads `W,N,G`.

    Raises:
        ArgumentError: It is not of that form.
    """
    try:
        window, ngram, guesses = (int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError("--lookahead", f"must be W,N,G as in 15,5,15, got {text!r}") from None
    return Lookahead(window=window, ngram=ngram, guesses=guesses)


def parse_bias(text: str) -> tuple[int, float]:
    """Reads `ID=BIAS`.

    Raises:
        ArgumentError: It is not of that form.
    """
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise ArgumentError(
            "--logit-bias", f"must be ID=BIAS as in 42=-1.5, got {text!r}"
        ) from None


def standard_input() -> TextIO:
    """Returns standard input, in every locale with what is not text left for requests to refuse.

    A byte order mark, which editors on Windows put before UTF-8, is no part of it.

    Raises:
        PacelineError: It is closed.
    """
    if sys.stdin is None:
        raise PacelineError("cannot read standard input: it is closed")
    if isinstance(sys.stdin, io.TextIOWrapper):
        encoding = piped_encoding(sys.stdin) or sys.stdin.encoding
        if codecs.lookup(encoding).name == "utf-8" and not sys.stdin.isatty():
            encoding = "utf-8-sig"
        sys.stdin.reconfigure(encoding=encoding, errors="surrogateescape")
    return sys.stdin


def piped_encoding(stream: TextIO) -> str | None:
    """Returns UTF-8 for a pipe or file on Windows, where Python takes a code page; else None."""
    return "utf-8" if sys.platform == "win32" and not stream.isatty() else None


def read_text(text: str) -> str:
    """Returns the text, or what stands on standard input where it is `-`."""
    return standard_input().read() if text == "-" else text


def keep_whole() -> None:
    """Has text of a model fail where standard output cannot show it, unless a person reads it."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(errors="strict")


def use_color(color: bool | None) -> bool:
    """Decides on colour: as asked, else on a terminal that has it, unless NO_COLOR is set."""
    # First: it readies a console of Windows, also where colour was asked for.
    obeyed = sys.stdout.isatty() and _obeys_escape_sequences()
    if color is not None:
        return color
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":  # see no-color.org
        return False
    return obeyed


def _obeys_escape_sequences() -> bool:
    """Whether a terminal obeys escape sequences; a console of Windows is asked to."""
    if sys.platform != "win32":
        return True
    try:
        from colorama import just_fix_windows_console
    except ImportError:
        return False
    just_fix_windows_console()
    return True
