#include "meta/server_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "meta/grpc_common.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

absl::Status NotHere(std::string_view what) {
  return absl::UnimplementedError(fmt::format("the embedded meta store has no {}", what));
}

absl::StatusOr<StoreCompare> CompareFromWire(const pb::Compare& wire) {
  if (!wire.range_end().empty()) return NotHere("compares of a range");
  if (wire.target() < 0 || wire.target() > 4 || wire.result() < 0 || wire.result() > 3) {
    return NotHere("compare of that kind");
  }
  StoreCompare compare{.key = wire.key(),
                       .target = static_cast<StoreCompare::Target>(wire.target()),
                       .result = static_cast<StoreCompare::Result>(wire.result())};
  switch (wire.target()) {
    case pb::Compare::VERSION:
      compare.number = static_cast<uint64_t>(wire.version());
      break;
    case pb::Compare::CREATE:
      compare.number = static_cast<uint64_t>(wire.create_revision());
      break;
    case pb::Compare::MOD:
      compare.number = static_cast<uint64_t>(wire.mod_revision());
      break;
    case pb::Compare::LEASE:
      compare.number = static_cast<uint64_t>(wire.lease());
      break;
    default:
      compare.value = wire.value();
  }
  return compare;
}

absl::StatusOr<StoreOp> OpFromWire(const pb::RequestOp& wire) {
  if (wire.has_request_range()) {
    absl::StatusOr<StoreRange> range = FromWire(wire.request_range());
    if (!range.ok()) return range.status();
    return StoreOp(*std::move(range));
  }
  if (wire.has_request_put()) {
    absl::StatusOr<StorePut> put = FromWire(wire.request_put());
    if (!put.ok()) return put.status();
    return StoreOp(*std::move(put));
  }
  if (wire.has_request_delete_range()) return StoreOp(FromWire(wire.request_delete_range()));
  return NotHere("Txns within Txns");
}

}  // namespace

absl::StatusOr<StoreRange> FromWire(const pb::RangeRequest& wire) {
  if (wire.revision() > 0) return NotHere("reads of the past");
  if (wire.min_mod_revision() != 0 || wire.max_mod_revision() != 0 ||
      wire.min_create_revision() != 0 || wire.max_create_revision() != 0) {
    return NotHere("reads by revision");
  }
  if (wire.sort_target() != pb::RangeRequest::KEY && wire.sort_order() != pb::RangeRequest::NONE) {
    return NotHere("order but by key");
  }
  return StoreRange{.span = {wire.key(), wire.range_end()},
                    .limit = static_cast<uint64_t>(std::max<int64_t>(wire.limit(), 0)),
                    .descending = wire.sort_order() == pb::RangeRequest::DESCEND,
                    .keys_only = wire.keys_only(),
                    .count_only = wire.count_only()};
}

absl::StatusOr<StorePut> FromWire(const pb::PutRequest& wire) {
  if (wire.ignore_value() || wire.ignore_lease()) return NotHere("puts of a part of a key");
  return StorePut{wire.key(), wire.value(), {static_cast<uint64_t>(wire.lease())}};
}

StoreDelete FromWire(const pb::DeleteRangeRequest& wire) {
  return {{wire.key(), wire.range_end()}};
}

absl::StatusOr<StoreTxn> FromWire(const pb::TxnRequest& wire) {
  StoreTxn txn;
  for (const pb::Compare& compare : wire.compare()) {
    absl::StatusOr<StoreCompare> read = CompareFromWire(compare);
    if (!read.ok()) return read.status();
    txn.compares.push_back(*std::move(read));
  }
  for (auto [ops, to] :
       {std::pair{&wire.success(), &txn.then}, std::pair{&wire.failure(), &txn.otherwise}}) {
    for (const pb::RequestOp& op : *ops) {
      absl::StatusOr<StoreOp> read = OpFromWire(op);
      if (!read.ok()) return read.status();
      to->push_back(*std::move(read));
    }
  }
  return txn;
}

void ToWire(StoreOpReply&& reply, pb::RangeResponse& wire) {
  for (const KeyValue& kv : reply.kvs) ToWire(kv, *wire.add_kvs());
  wire.set_count(static_cast<int64_t>(reply.count));
  wire.set_more(!reply.kvs.empty() && reply.kvs.size() < reply.count);
}

void ToWire(StoreOpReply&& reply, bool with_prev, pb::PutResponse& wire) {
  if (with_prev && !reply.kvs.empty()) ToWire(reply.kvs.front(), *wire.mutable_prev_kv());
}

void ToWire(StoreOpReply&& reply, bool with_prev, pb::DeleteRangeResponse& wire) {
  wire.set_deleted(static_cast<int64_t>(reply.count));
  if (!with_prev) return;
  for (const KeyValue& kv : reply.kvs) ToWire(kv, *wire.add_prev_kvs());
}

void ToWire(const pb::TxnRequest& request, StoreReply&& reply, pb::TxnResponse& wire) {
  wire.set_succeeded(reply.succeeded);
  const auto& ops = reply.succeeded ? request.success() : request.failure();
  for (int i = 0; i < ops.size(); ++i) {
    StoreOpReply& from = reply.replies[static_cast<size_t>(i)];
    pb::ResponseOp& to = *wire.add_responses();
    if (ops[i].has_request_range()) {
      ToWire(std::move(from), *to.mutable_response_range());
    } else if (ops[i].has_request_put()) {
      ToWire(std::move(from), ops[i].request_put().prev_kv(), *to.mutable_response_put());
    } else {
      ToWire(std::move(from), ops[i].request_delete_range().prev_kv(),
             *to.mutable_response_delete_range());
    }
  }
}

}  // namespace unreft::meta
