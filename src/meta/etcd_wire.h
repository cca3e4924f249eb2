// Kv's words in etcd's messages, as a client sends them, and what a store answers in Kv's: of an
// answer nothing is believed before it fits what was asked. Functions without state.
#pragma once

#include <absl/status/statusor.h>
#include <etcd/rpc.pb.h>

#include <vector>

#include "meta/kv.h"
#include "meta/store_types.h"

namespace unreft::meta {

etcdserverpb::TxnRequest ToWire(Txn&& txn);
// Unavailable, since nothing follows about what was done: an answer that lacks one to an op, or has
// keys that were not asked for.
absl::StatusOr<TxnResult> FromWire(const etcdserverpb::TxnRequest& request,
                                   etcdserverpb::TxnResponse&& wire);
// Unavailable: keys that are not watched, or revisions that go back.
absl::StatusOr<std::vector<WatchEvent>> FromWire(const KeySpan& watched,
                                                 etcdserverpb::WatchResponse&& wire);

}  // namespace unreft::meta
