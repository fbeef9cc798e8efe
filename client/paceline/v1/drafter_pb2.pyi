from paceline.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("hello", "opens", "commits", "closes")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    opens: _containers.RepeatedCompositeFieldContainer[Open]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    closes: _containers.RepeatedCompositeFieldContainer[Close]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., opens: _Optional[_Iterable[_Union[Open, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., closes: _Optional[_Iterable[_Union[Close, _Mapping]]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("readies", "branches", "drops")
    READIES_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    readies: _containers.RepeatedCompositeFieldContainer[Ready]
    branches: _containers.RepeatedCompositeFieldContainer[Branches]
    drops: _containers.RepeatedCompositeFieldContainer[Dropped]
    def __init__(self, readies: _Optional[_Iterable[_Union[Ready, _Mapping]]] = ..., branches: _Optional[_Iterable[_Union[Branches, _Mapping]]] = ..., drops: _Optional[_Iterable[_Union[Dropped, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("tokenizer_fingerprint", "vocab_size")
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    tokenizer_fingerprint: str
    vocab_size: int
    def __init__(self, tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "incarnation", "ids", "sampling", "drawn", "cache_salt", "draft_tokens", "fanout", "least_chances")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FANOUT_FIELD_NUMBER: _ClassVar[int]
    LEAST_CHANCES_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.SamplingParams
    drawn: bool
    cache_salt: bytes
    draft_tokens: int
    fanout: int
    least_chances: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., drawn: bool = ..., cache_salt: _Optional[bytes] = ..., draft_tokens: _Optional[int] = ..., fanout: _Optional[int] = ..., least_chances: _Optional[_Iterable[float]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session", "incarnation", "base", "path_hash", "accepted", "ids", "draft_tokens", "verifying", "fanout", "least_chances")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PATH_HASH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFYING_FIELD_NUMBER: _ClassVar[int]
    FANOUT_FIELD_NUMBER: _ClassVar[int]
    LEAST_CHANCES_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    base: int
    path_hash: int
    accepted: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: int
    verifying: int
    fanout: int
    least_chances: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., base: _Optional[int] = ..., path_hash: _Optional[int] = ..., accepted: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[int] = ..., verifying: _Optional[int] = ..., fanout: _Optional[int] = ..., least_chances: _Optional[_Iterable[float]] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session", "incarnation")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("session", "incarnation", "length")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    length: int
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Branches(_message.Message):
    __slots__ = ("session", "incarnation", "base", "path_hash", "branches")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PATH_HASH_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    base: int
    path_hash: int
    branches: _containers.RepeatedCompositeFieldContainer[Branch]
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., base: _Optional[int] = ..., path_hash: _Optional[int] = ..., branches: _Optional[_Iterable[_Union[Branch, _Mapping]]] = ...) -> None: ...

class Branch(_message.Message):
    __slots__ = ("accepted", "bonus", "offset", "ids", "drawn")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BONUS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    bonus: int
    offset: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    drawn: _containers.RepeatedCompositeFieldContainer[Drawn]
    def __init__(self, accepted: _Optional[int] = ..., bonus: _Optional[int] = ..., offset: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., drawn: _Optional[_Iterable[_Union[Drawn, _Mapping]]] = ...) -> None: ...

class Drawn(_message.Message):
    __slots__ = ("ids", "probabilities")
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("session", "incarnation", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    reason: str
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
