// etcd's messages as the embedded store's questions and answers. Functions without state.
#pragma once

#include <absl/status/statusor.h>
#include <etcd/rpc.pb.h>

#include "meta/store_types.h"

namespace unreft::meta {

// Unimplemented names what the embedded store does not have: reads of the past, sorting by anything
// but the key, Txns within Txns, ranges in compares.
absl::StatusOr<StoreRange> FromWire(const etcdserverpb::RangeRequest& wire);
absl::StatusOr<StorePut> FromWire(const etcdserverpb::PutRequest& wire);
absl::StatusOr<StoreTxn> FromWire(const etcdserverpb::TxnRequest& wire);
StoreDelete FromWire(const etcdserverpb::DeleteRangeRequest& wire);

// Answers, without their header. `with_prev`: what was there before was asked for.
void ToWire(StoreOpReply&& reply, etcdserverpb::RangeResponse& wire);
void ToWire(StoreOpReply&& reply, bool with_prev, etcdserverpb::PutResponse& wire);
void ToWire(StoreOpReply&& reply, bool with_prev, etcdserverpb::DeleteRangeResponse& wire);
void ToWire(const etcdserverpb::TxnRequest& request, StoreReply&& reply,
            etcdserverpb::TxnResponse& wire);

}  // namespace unreft::meta
