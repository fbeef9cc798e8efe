"""Chat templates: conversations rendered the way `transformers` renders them.

Templates come with models, so they are programs by strangers: they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.errors import InvalidArgument

_FIELD = "chat.messages"

_PROBE = "probe"


class ChatTemplate:
    """A compiled template.

    Args:
        source: The template in Jinja.
        special_tokens: Tokens the template may use, by name: bos_token, eos_token, ….

    Attributes:
        key: The same for templates that render alike.

    Raises:
        InvalidArgument: The source is not Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._special_tokens = dict(special_tokens)
        self.key = source, frozenset(special_tokens.items())
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InvalidArgument(_FIELD, str(error)) from error
        self._in_parts = False
        if not self._shows_text():
            self._in_parts = True
            self._in_parts = self._shows_text()

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        time_s: float | None = None,
        *,
        answer: bool = True,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: Turns, oldest first.
            time_s: What `strftime_now` tells, in seconds since 1970; None for the present.
            answer: Whether the assistant is to answer: then the beginning of its turn comes last.

        Raises:
            InvalidArgument: The template refuses the messages, for example the order of roles.
        """
        try:
            return self._template.render(
                self._special_tokens,
                messages=[self._as_read(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=answer,
                strftime_now=partial(_strftime, time.time() if time_s is None else time_s),
            )
        except Exception as error:  # the template is a program: anything can go wrong in it
            problem = f"refused by the model's chat template: {error}"
            raise InvalidArgument(_FIELD, problem) from error

    def _as_read(self, message: Mapping[str, str]) -> dict[str, Any]:
        """A message as the template reads it: of models that see pictures some read its parts."""
        if not self._in_parts:
            return dict(message)
        return {**message, "content": _Parts([{"type": "text", "text": message["content"]}])}

    def _shows_text(self) -> bool:
        """Whether the text of a user's message comes out."""
        user, system = ({"role": role, "content": _PROBE + role} for role in ("user", "system"))
        for messages in ([user], [system, user]):  # some want both
            try:
                return user["content"] in self.render(messages, 0)
            except InvalidArgument:
                continue
        return False


class _Parts(list[dict[str, str]]):
    """Parts of a message; printed as they are they are its text, for roles that have it so."""

    def __str__(self) -> str:
        return "".join(part["text"] for part in self)


class _Generation(Extension):
    """`{% generation %}` marks for training what the assistant wrote; here it is its body alone."""

    tags = {"generation"}  # noqa: RUF012  (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML; models were trained on plain JSON.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime(time_s: float, form: str) -> str:
    # transformers takes the machine's time zone; but all gateways are to write the same.
    return datetime.fromtimestamp(time_s, UTC).strftime(form)
