from paceline.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_BROKEN: _ClassVar[WorkerState]
    WORKER_STATE_LOST: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_BROKEN: WorkerState
WORKER_STATE_LOST: WorkerState

class WatchFleetRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class WatchFleetResponse(_message.Message):
    __slots__ = ("workers", "pairs", "pools")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[FleetWorker]
    pairs: _containers.RepeatedCompositeFieldContainer[FleetPair]
    pools: _containers.RepeatedCompositeFieldContainer[FleetPool]
    def __init__(self, workers: _Optional[_Iterable[_Union[FleetWorker, _Mapping]]] = ..., pairs: _Optional[_Iterable[_Union[FleetPair, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[FleetPool, _Mapping]]] = ...) -> None: ...

class FleetWorker(_message.Message):
    __slots__ = ("address", "tier", "state", "description", "status", "in_flight")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    address: str
    tier: _worker_pb2.Tier
    state: WorkerState
    description: _worker_pb2.DescribeResponse
    status: _worker_pb2.WatchStatusResponse
    in_flight: int
    def __init__(self, address: _Optional[str] = ..., tier: _Optional[_Union[_worker_pb2.Tier, str]] = ..., state: _Optional[_Union[WorkerState, str]] = ..., description: _Optional[_Union[_worker_pb2.DescribeResponse, _Mapping]] = ..., status: _Optional[_Union[_worker_pb2.WatchStatusResponse, _Mapping]] = ..., in_flight: _Optional[int] = ...) -> None: ...

class FleetPair(_message.Message):
    __slots__ = ("verifier", "drafter", "misfit", "measured", "offered")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MISFIT_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    drafter: str
    misfit: str
    measured: _worker_pb2.PairStatus
    offered: bool
    def __init__(self, verifier: _Optional[str] = ..., drafter: _Optional[str] = ..., misfit: _Optional[str] = ..., measured: _Optional[_Union[_worker_pb2.PairStatus, _Mapping]] = ..., offered: bool = ...) -> None: ...

class FleetPool(_message.Message):
    __slots__ = ("tier", "pool", "ready", "desired")
    TIER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    tier: _worker_pb2.Tier
    pool: str
    ready: int
    desired: int
    def __init__(self, tier: _Optional[_Union[_worker_pb2.Tier, str]] = ..., pool: _Optional[str] = ..., ready: _Optional[int] = ..., desired: _Optional[int] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("address", "grace_s")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    address: str
    grace_s: int
    def __init__(self, address: _Optional[str] = ..., grace_s: _Optional[int] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ("remaining",)
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    remaining: int
    def __init__(self, remaining: _Optional[int] = ...) -> None: ...
