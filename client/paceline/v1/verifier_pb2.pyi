from paceline.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierGenerateRequest(_message.Message):
    __slots__ = ("request_id", "prompt_ids", "max_tokens", "sampling", "speculation", "stop_token_ids", "ignore_eos", "drafters", "session", "epoch", "cache_salt", "numerics_fingerprint")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    sampling: _types_pb2.SamplingParams
    speculation: _types_pb2.SpeculationOptions
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterEndpoint]
    session: str
    epoch: int
    cache_salt: bytes
    numerics_fingerprint: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., speculation: _Optional[_Union[_types_pb2.SpeculationOptions, _Mapping]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., drafters: _Optional[_Iterable[_Union[DrafterEndpoint, _Mapping]]] = ..., session: _Optional[str] = ..., epoch: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., numerics_fingerprint: _Optional[str] = ...) -> None: ...

class ReleaseSessionRequest(_message.Message):
    __slots__ = ("session", "epoch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session: str
    epoch: int
    def __init__(self, session: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReleaseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterEndpoint(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class VerifierGenerateResponse(_message.Message):
    __slots__ = ("tokens", "complete")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    tokens: CommittedTokens
    complete: VerifierComplete
    def __init__(self, tokens: _Optional[_Union[CommittedTokens, _Mapping]] = ..., complete: _Optional[_Union[VerifierComplete, _Mapping]] = ...) -> None: ...

class CommittedTokens(_message.Message):
    __slots__ = ("ids", "sources", "rounds", "drafted_tokens", "cached_tokens", "method")
    IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[_types_pb2.TokenSource]
    rounds: int
    drafted_tokens: int
    cached_tokens: int
    method: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[_Union[_types_pb2.TokenSource, str]]] = ..., rounds: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., method: _Optional[str] = ...) -> None: ...

class VerifierComplete(_message.Message):
    __slots__ = ("finish_reason", "usage", "speculation")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _types_pb2.FinishReason
    usage: _types_pb2.Usage
    speculation: _types_pb2.SpeculationStats
    def __init__(self, finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_types_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_types_pb2.SpeculationStats, _Mapping]] = ...) -> None: ...
