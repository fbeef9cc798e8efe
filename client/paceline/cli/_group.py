"""How the command line finds its commands and how it fails: in one line."""

import errno
import io
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from paceline.cli import _server_commands
from paceline.cli._options import piped_encoding
from paceline.cli.render import visible
from paceline.errors import ArgumentError, PacelineError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + 2  # as a shell reports SIGINT

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PacelineGroup(TyperGroup):
    """The SDK's commands, and those of the server distribution, imported only when they run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names all commands, without importing the server's."""
        return [*super().list_commands(ctx), *_server_commands.summaries()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command; one of the server's as no more than its line in the help."""
        if own := super().get_command(ctx, cmd_name):
            return own
        return _server_commands.placeholder(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that is going to run, the real one."""
        name = args[0] if args else ""
        if sys.stdout is None and name not in _server_commands.LEAVING_MORE:
            raise PacelineError("cannot write the output: standard output is closed")
        if name in _server_commands.summaries():
            return name, _server_commands.load(name), args[1:]
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Runs the command line and exits.

        Wrong usage, every error that the SDK names, and output that cannot be written, are one line
        on stderr, without traceback.
        """
        kwargs["standalone_mode"] = False
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                encoding=piped_encoding(sys.stdout),
                errors="replace",  # for people; see `_options.keep_whole`
            )
        try:
            code = super().main(*args, **kwargs)
        except (KeyboardInterrupt, typer.Abort):
            code = EXIT_INTERRUPTED
        except ArgumentError as exc:
            code = fail(str(exc), EXIT_USAGE)
        except PacelineError as exc:
            code = fail(str(exc), EXIT_ERROR)
        except UnicodeEncodeError as exc:
            code = fail(f"cannot write the output: {exc}", EXIT_ERROR)
        except OSError as exc:  # but for a broken pipe, on which typer exits in silence
            if exc.errno in _FULL:
                code = fail(f"cannot write the output: {exc}", EXIT_ERROR)
                _drop_unwritten()
            elif sys.platform == "win32" and exc.errno == errno.EINVAL and _drop_unwritten():
                code = EXIT_ERROR  # so Windows tells that a pipe's reader is gone
            else:
                raise
        except Exception as exc:
            # Usage errors; their class is public in no version of typer.
            if not hasattr(exc, "format_message"):
                raise
            code = getattr(exc, "exit_code", EXIT_USAGE)
            if message := _usage_message(exc):
                report(message)
        if code == EXIT_INTERRUPTED and sys.stderr and sys.stderr.isatty():
            typer.echo(err=True)  # behind the terminal's ^C
        sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int) -> int:
    """Prints an error as one line and returns the exit code."""
    report(message)
    return code


def report(message: str) -> None:
    """Prints an error as one line."""
    typer.echo(visible(f"error: {' '.join(message.split())}", sys.stderr), err=True)


def _drop_unwritten() -> bool:
    """Keeps Python from failing once more, at exit, at what is still in the buffer; returns whether
    there was any."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _usage_message(exc: Any) -> str:
    """Words wrong usage; empty where a group without a command has printed its help."""
    # Some versions of typer begin with the name of the exception behind a wrong choice.
    message = str(exc.format_message()).rstrip(".").replace("Value error, ", "", 1)
    context = getattr(exc, "ctx", None)
    return f"{message}; see {context.command_path} --help" if message and context else message
