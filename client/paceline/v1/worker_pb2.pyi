from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_VERIFIER: _ClassVar[Tier]
    TIER_DRAFTER: _ClassVar[Tier]

class Lane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_UNSPECIFIED: _ClassVar[Lane]
    LANE_NONE: _ClassVar[Lane]
    LANE_NEAR: _ClassVar[Lane]
    LANE_FAR: _ClassVar[Lane]
TIER_UNSPECIFIED: Tier
TIER_VERIFIER: Tier
TIER_DRAFTER: Tier
LANE_UNSPECIFIED: Lane
LANE_NONE: Lane
LANE_NEAR: Lane
LANE_FAR: Lane

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("tier", "incarnation", "model", "tokenizer_fingerprint", "numerics_fingerprint", "vocab_size", "max_model_len", "methods", "eos_token_ids", "version", "dtype", "device", "pool", "accelerator")
    TIER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    incarnation: int
    model: str
    tokenizer_fingerprint: str
    numerics_fingerprint: str
    vocab_size: int
    max_model_len: int
    methods: _containers.RepeatedScalarFieldContainer[str]
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    version: str
    dtype: str
    device: str
    pool: str
    accelerator: str
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., incarnation: _Optional[int] = ..., model: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., numerics_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., methods: _Optional[_Iterable[str]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., version: _Optional[str] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., pool: _Optional[str] = ..., accelerator: _Optional[str] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("accepting", "running", "waiting", "kv_blocks_total", "kv_blocks_free", "step_ms", "steps", "tokens", "stale_drafts", "stale_epochs", "queue_wait_ms", "batch_occupancy", "draft_wait_ms", "plain_step_ms", "pairs")
    ACCEPTING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STALE_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    STALE_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    accepting: bool
    running: int
    waiting: int
    kv_blocks_total: int
    kv_blocks_free: int
    step_ms: float
    steps: int
    tokens: int
    stale_drafts: int
    stale_epochs: int
    queue_wait_ms: float
    batch_occupancy: float
    draft_wait_ms: float
    plain_step_ms: float
    pairs: _containers.RepeatedCompositeFieldContainer[PairStatus]
    def __init__(self, accepting: bool = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., kv_blocks_free: _Optional[int] = ..., step_ms: _Optional[float] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., stale_drafts: _Optional[int] = ..., stale_epochs: _Optional[int] = ..., queue_wait_ms: _Optional[float] = ..., batch_occupancy: _Optional[float] = ..., draft_wait_ms: _Optional[float] = ..., plain_step_ms: _Optional[float] = ..., pairs: _Optional[_Iterable[_Union[PairStatus, _Mapping]]] = ...) -> None: ...

class PairStatus(_message.Message):
    __slots__ = ("drafter", "alive", "sessions", "rounds", "drafted_tokens", "accepted_tokens", "acceptance", "round_trip_ms", "draft_ms", "gain", "lane")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    drafter: str
    alive: bool
    sessions: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    acceptance: float
    round_trip_ms: float
    draft_ms: float
    gain: float
    lane: Lane
    def __init__(self, drafter: _Optional[str] = ..., alive: bool = ..., sessions: _Optional[int] = ..., rounds: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., acceptance: _Optional[float] = ..., round_trip_ms: _Optional[float] = ..., draft_ms: _Optional[float] = ..., gain: _Optional[float] = ..., lane: _Optional[_Union[Lane, str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: int
    def __init__(self, grace_s: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("remaining",)
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    remaining: int
    def __init__(self, remaining: _Optional[int] = ...) -> None: ...
