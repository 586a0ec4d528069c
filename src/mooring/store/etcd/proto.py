"""The supported part of etcd's v3 wire format, as messages built at import.

They are in a private pool and package (`mooring.protobuf`), so that other etcd clients can be
imported in the same process. Only field numbers and method paths are on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from google.protobuf import message

from mooring.protobuf import build

DecodeError = message.DecodeError
"""Raised for bytes that are not a valid message."""

# `mooring_time` is an extension: the clock of `mooring serve`, in seconds since 1970.
_MESSAGES = {
    "ResponseHeader": "cluster_id=1:uint64 member_id=2:uint64 revision=3:int64 raft_term=4:uint64",
    "KeyValue": """key=1:bytes create_revision=2:int64 mod_revision=3:int64 version=4:int64
        value=5:bytes lease=6:int64""",
    "Event": "type=1:int32 kv=2:KeyValue prev_kv=3:KeyValue",
    "RangeRequest": """key=1:bytes range_end=2:bytes limit=3:int64 revision=4:int64
        sort_order=5:int32 sort_target=6:int32 serializable=7:bool keys_only=8:bool
        count_only=9:bool min_mod_revision=10:int64 max_mod_revision=11:int64
        min_create_revision=12:int64 max_create_revision=13:int64""",
    "RangeResponse": "header=1:ResponseHeader kvs=2:*KeyValue more=3:bool count=4:int64",
    "PutRequest": """key=1:bytes value=2:bytes lease=3:int64 prev_kv=4:bool ignore_value=5:bool
        ignore_lease=6:bool""",
    "PutResponse": "header=1:ResponseHeader prev_kv=2:KeyValue",
    "DeleteRangeRequest": "key=1:bytes range_end=2:bytes prev_kv=3:bool",
    "DeleteRangeResponse": "header=1:ResponseHeader deleted=2:int64 prev_kvs=3:*KeyValue",
    "RequestOp": """request_range=1:RangeRequest|request_put=2:PutRequest|
        request_delete_range=3:DeleteRangeRequest|request_txn=4:TxnRequest""",
    "ResponseOp": """response_range=1:RangeResponse|response_put=2:PutResponse|
        response_delete_range=3:DeleteRangeResponse|response_txn=4:TxnResponse""",
    "Compare": """result=1:int32 target=2:int32 key=3:bytes
        version=4:int64|create_revision=5:int64|mod_revision=6:int64|value=7:bytes|lease=8:int64
        range_end=64:bytes""",
    "TxnRequest": "compare=1:*Compare success=2:*RequestOp failure=3:*RequestOp",
    "TxnResponse": "header=1:ResponseHeader succeeded=2:bool responses=3:*ResponseOp",
    "CompactionRequest": "revision=1:int64 physical=2:bool",
    "CompactionResponse": "header=1:ResponseHeader",
    "WatchRequest": """create_request=1:WatchCreateRequest|cancel_request=2:WatchCancelRequest|
        progress_request=3:WatchProgressRequest""",
    "WatchCreateRequest": """key=1:bytes range_end=2:bytes start_revision=3:int64
        progress_notify=4:bool filters=5:*int32 prev_kv=6:bool watch_id=7:int64 fragment=8:bool""",
    "WatchCancelRequest": "watch_id=1:int64",
    "WatchProgressRequest": "",
    "WatchResponse": """header=1:ResponseHeader watch_id=2:int64 created=3:bool canceled=4:bool
        compact_revision=5:int64 cancel_reason=6:string fragment=7:bool events=11:*Event""",
    "LeaseGrantRequest": "TTL=1:int64 ID=2:int64",
    "LeaseGrantResponse": "header=1:ResponseHeader ID=2:int64 TTL=3:int64 error=4:string",
    "LeaseRevokeRequest": "ID=1:int64",
    "LeaseRevokeResponse": "header=1:ResponseHeader",
    "LeaseKeepAliveRequest": "ID=1:int64",
    "LeaseKeepAliveResponse": "header=1:ResponseHeader ID=2:int64 TTL=3:int64",
    "LeaseTimeToLiveRequest": "ID=1:int64 keys=2:bool",
    "LeaseTimeToLiveResponse": """header=1:ResponseHeader ID=2:int64 TTL=3:int64
        grantedTTL=4:int64 keys=5:*bytes""",
    "LeaseLeasesRequest": "",
    "LeaseStatus": "ID=1:int64",
    "LeaseLeasesResponse": "header=1:ResponseHeader leases=2:*LeaseStatus",
    "StatusRequest": "",
    "StatusResponse": """header=1:ResponseHeader version=2:string dbSize=3:int64 leader=4:uint64
        raftIndex=5:uint64 raftTerm=6:uint64 raftAppliedIndex=7:uint64 errors=8:*string
        dbSizeInUse=9:int64 isLearner=10:bool mooring_time=2379:double""",
    "HashRequest": "",
    "HashResponse": "header=1:ResponseHeader hash=2:uint32",
    "HashKVRequest": "revision=1:int64",
    "HashKVResponse": "header=1:ResponseHeader hash=2:uint32 compact_revision=3:int64",
    "AlarmRequest": "action=1:int32 memberID=2:uint64 alarm=3:int32",
    "AlarmMember": "memberID=1:uint64 alarm=2:int32",
    "AlarmResponse": "header=1:ResponseHeader alarms=2:*AlarmMember",
    "SnapshotRequest": "",
    "SnapshotResponse": "header=1:ResponseHeader remaining_bytes=2:uint64 blob=3:bytes",
    "DefragmentRequest": "",
    "DefragmentResponse": "header=1:ResponseHeader",
    "Member": """ID=1:uint64 name=2:string peerURLs=3:*string clientURLs=4:*string
        isLearner=5:bool""",
    "MemberListRequest": "linearizable=1:bool",
    "MemberListResponse": "header=1:ResponseHeader members=2:*Member",
    "AuthStatusRequest": "",
    "AuthStatusResponse": "header=1:ResponseHeader enabled=2:bool authRevision=3:uint64",
    "AuthenticateRequest": "name=1:string password=2:string",
    "AuthenticateResponse": "header=1:ResponseHeader token=2:string",
    "LockRequest": "name=1:bytes lease=2:int64",
    "LockResponse": "header=1:ResponseHeader key=2:bytes",
    "UnlockRequest": "key=1:bytes",
    "UnlockResponse": "header=1:ResponseHeader",
    "LeaderKey": "name=1:bytes key=2:bytes rev=3:int64 lease=4:int64",
    "CampaignRequest": "name=1:bytes lease=2:int64 value=3:bytes",
    "CampaignResponse": "header=1:ResponseHeader leader=2:LeaderKey",
    "ProclaimRequest": "leader=1:LeaderKey value=2:bytes",
    "ProclaimResponse": "header=1:ResponseHeader",
    "LeaderRequest": "name=1:bytes",
    "LeaderResponse": "header=1:ResponseHeader kv=2:KeyValue",
    "ResignRequest": "leader=1:LeaderKey",
    "ResignResponse": "header=1:ResponseHeader",
}

# Service → its methods: `name=Path`, with messages of the same name, or of that after a colon.
_SERVICES = {
    "etcdserverpb.KV": "range=Range put=Put delete_range=DeleteRange txn=Txn "
    "compact=Compact:Compaction",
    "etcdserverpb.Watch": "watch=Watch",
    "etcdserverpb.Lease": "grant=LeaseGrant revoke=LeaseRevoke keepalive=LeaseKeepAlive "
    "time_to_live=LeaseTimeToLive leases=LeaseLeases",
    "etcdserverpb.Maintenance": "status=Status hash=Hash hash_kv=HashKV alarm=Alarm "
    "snapshot=Snapshot defragment=Defragment",
    "etcdserverpb.Cluster": "member_list=MemberList",
    "etcdserverpb.Auth": "auth_status=AuthStatus authenticate=Authenticate",
    "v3lockpb.Lock": "lock=Lock unlock=Unlock",
    "v3electionpb.Election": "campaign=Campaign proclaim=Proclaim leader=Leader "
    "observe=Observe:Leader resign=Resign",
}


_classes = build("mooring.etcd", _MESSAGES)
globals().update(_classes)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


# Enumerations are varints on the wire, like int32.
EQUAL, GREATER, LESS, NOT_EQUAL = range(4)
VERSION, CREATE, MOD, VALUE, LEASE = range(5)
UNSORTED, ASCEND, DESCEND = range(3)
SORT_BY_KEY, SORT_BY_VERSION, SORT_BY_CREATE, SORT_BY_MOD, SORT_BY_VALUE = range(5)
PUT, DELETE = range(2)
NOPUT, NODELETE = range(2)
ALARMS_GET, ALARM_ACTIVATE, ALARM_DEACTIVATE = 0, 1, 2
NOSPACE = 1


_STREAMS = {
    "watch": "stream_stream",
    "keepalive": "stream_stream",
    "snapshot": "unary_stream",
    "observe": "unary_stream",
}


def _methods() -> Iterator[tuple[str, tuple[str, Any, Any]]]:
    """The name of each method, its path, and the classes of its request and response."""
    for service, methods in _SERVICES.items():
        for method in methods.split():
            name, _, path = method.partition("=")
            path, _, messages = path.partition(":")
            request, response = (f"{messages or path}{kind}" for kind in ("Request", "Response"))
            yield name, (f"/{service}/{path}", _classes[request], _classes[response])


_METHODS = dict(_methods())


class Methods(SimpleNamespace):
    """The methods of etcd on one channel, each a gRPC multi-callable."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        for name, (path, request, response) in _METHODS.items():
            make = getattr(channel, _STREAMS.get(name, "unary_unary"))
            # As in generated stubs: registered methods are looked up only once.
            call = make(
                path, request.SerializeToString, response.FromString, _registered_method=True
            )
            setattr(self, name, call)


def serving(name: str) -> tuple[str, Any, Any]:
    """For serving a method: its path, request parser and response serialiser."""
    path, request, response = _METHODS[name]
    return path, request.FromString, response.SerializeToString
