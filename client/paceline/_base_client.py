"""What the sync and the asyncio client share: the address, and the building of requests."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, SupportsIndex, TypeVar
from weakref import ref

from paceline import _requests as checked
from paceline._channel import resolve_address
from paceline._generation import BaseGeneration
from paceline._security import Security, Tls
from paceline._types import AcceptanceRule, Lookahead
from paceline.errors import ClientClosedError
from paceline.v1 import inference_pb2 as pb

GENERATE_TIMEOUT_S = 3600.0
"""Deadline of a generation that names none: it bounds what a lost client can hold."""
UNARY_TIMEOUT_S = 60.0
"""Deadline of any other call that names none."""

GenerationT = TypeVar("GenerationT")
TrackedT = TypeVar("TrackedT", bound=BaseGeneration)


class BaseClient(ABC, Generic[GenerationT]):
    """A client whose `generate` returns a `GenerationT`.

    Args:
        address: The gateway as `host:port`, or `host` alone for port 7070; by default the
            environment's `PACELINE_ADDRESS`, else `localhost:7070`. Nothing is connected before the
            first call.
        token: Bearer token of the gateway's operator, or a function that returns one for each call;
            by default the environment's `PACELINE_TOKEN`.
        tls: TLS to the gateway; by default with the authorities in the file that the
            environment's `PACELINE_CA` names (`system`: gRPC's own), else plaintext.
        insecure: Send a token to another machine in plaintext.

    Raises:
        ArgumentError: The address is a web address, a token cannot be sent or would travel in
            plaintext, or a certificate cannot be read.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | Callable[[], str] | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
    ) -> None:
        self._address = resolve_address(address)
        self._security = Security(self._address, token, tls, insecure)
        self._closed = False
        # Without a lock: at a fork another thread might hold it, and the child would wait.
        self._generations: set[ref[BaseGeneration]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"

    @property
    def address(self) -> str:
        """The gateway's address."""
        return self._address

    def generate(
        self,
        prompt: str | None = None,
        *,
        token_ids: Iterable[SupportsIndex] | None = None,
        messages: Iterable[Mapping[str, object]] | None = None,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: str | Iterable[str] | None = None,
        stop_token_ids: Iterable[SupportsIndex] = (),
        ignore_eos: bool = False,
        method: str = "auto",
        draft_tokens: int = 0,
        lookahead: Lookahead | None = None,
        acceptance: AcceptanceRule = "coupled",
        session_id: str | None = None,
        timeout: float | None = None,
        resume: bool = True,
    ) -> GenerationT:
        """Starts a generation and returns at once.

        For one model, prompt, sampling and seed the ids are always the same, whatever `method`,
        `draft_tokens` and `lookahead` (with the default `acceptance`).

        Args:
            prompt: Text to go on from. Give exactly one of prompt, token_ids and messages.
            token_ids: The prompt as ids of the model's tokenizer.
            messages: A conversation, oldest turn first: dicts with `role` and `content`.
            model: A name that `models()` lists; None: the only one served.
            max_tokens: Most tokens to generate, at least 1; None: up to the model's limit.
            temperature: 0 picks the likeliest token; above 0 samples.
            top_k: Keep the k likeliest tokens; 0 keeps all.
            top_p: Keep the smallest set of tokens whose probabilities sum to this, in (0, 1].
            min_p: Drop tokens less likely than this times the likeliest, in [0, 1].
            repetition_penalty: Above 1 discourages tokens already in prompt or output.
            logit_bias: Added to the logits of these ids before all else.
            seed: Key of the noise; None: the gateway draws one and `Result.seed` tells it.
            stop: String or strings that end the text, at most 16 of 1 to 256 characters; not part
                of it. Special tokens have no text: give their ids in stop_token_ids.
            stop_token_ids: Ids that end the generation, beside the model's own.
            ignore_eos: Go on past the model's end token.
            method: `auto`, or one of `Model.methods`: `plain`, `draft`, `medusa`, `eagle`,
                `ngram`, `lookahead`, or several at once, as `draft+ngram`.
            draft_tokens: Most draft tokens in a round; 0 lets the server choose.
            lookahead: Sizes of lookahead decoding; None lets the server choose.
            acceptance: `coupled` (exact), `rejection` (exact in distribution, if drafters tell
                their probabilities truly) or `typical` (lossy).
            session_id: The same id in every turn keeps a conversation's cache in place; a turn
                ends an earlier one that still runs.
            timeout: Seconds for the whole generation; None: one hour; `math.inf`: no limit here,
                only the gateway's.
            resume: Where the gateway is lost on the way, go on with another one, or with the same
                one when it is back: the text stays the same, and no part of it comes twice.

        Returns:
            The generation: iterate over it for chunks, or ask for its `result()`. What the server
            refuses is raised there, not here.

        Raises:
            ArgumentError: A value cannot be sent, or there is not exactly one prompt.
            TypeError: An argument has the wrong type.
            ClientClosedError: The client is closed.
        """
        request = pb.GenerateRequest(
            **checked.prompt_input(prompt=prompt, token_ids=token_ids, messages=messages),
            model=checked.optional_text("model", model),
            max_tokens=(
                None if max_tokens is None else checked.integer("max_tokens", max_tokens, least=1)
            ),
            sampling=checked.sampling(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                logit_bias=logit_bias,
                seed=seed,
            ),
            speculation=checked.speculation(method, draft_tokens, acceptance, lookahead),
            stop=checked.stop_strings(stop),
            stop_token_ids=checked.token_ids("stop_token_ids", stop_token_ids),
            ignore_eos=checked.flag("ignore_eos", ignore_eos),
            session_id=checked.optional_text("session_id", session_id),
        )
        timeout_s = GENERATE_TIMEOUT_S if timeout is None else checked.timeout_s(timeout)
        checked.flag("resume", resume)
        self._require_open()
        return self._start(request, timeout_s, resume)

    @abstractmethod
    def _start(self, request: pb.GenerateRequest, timeout_s: float, resume: bool) -> GenerationT:
        """Opens the stream."""

    def _unary(self, timeout: float | None) -> dict[str, Any]:
        """What every call but a generation is given."""
        timeout_s = UNARY_TIMEOUT_S if timeout is None else checked.timeout_s(timeout)
        return {"timeout": timeout_s, "metadata": self._security.metadata()}

    def _tracked(self, generation: TrackedT) -> TrackedT:
        """Has a generation cancelled when the client is closed."""
        self._generations.add(ref(generation, self._generations.discard))
        return generation

    def _end(self) -> None:
        """Lets nothing more begin, and cancels what runs, or waits to go on elsewhere."""
        self._closed = True
        for tracked in list(self._generations):
            if (generation := tracked()) is not None:
                generation.cancel()

    def _require_open(self) -> None:
        if self._closed:
            raise ClientClosedError(f"this client for {self._address} is closed; open a new one")


def tokenize_request(
    text: str | None, messages: Iterable[Mapping[str, object]] | None, model: str | None
) -> pb.TokenizeRequest:
    """Checks the arguments of `tokenize`."""
    return pb.TokenizeRequest(
        **checked.prompt_input(text=text, messages=messages),
        model=checked.optional_text("model", model),
    )


def detokenize_request(
    token_ids: Iterable[SupportsIndex], model: str | None
) -> pb.DetokenizeRequest:
    """Checks the arguments of `detokenize`."""
    return pb.DetokenizeRequest(
        token_ids=checked.token_ids("token_ids", token_ids),
        model=checked.optional_text("model", model),
    )
