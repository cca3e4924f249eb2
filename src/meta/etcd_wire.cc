#include "meta/etcd_wire.h"

#include <utility>

#include "meta/grpc_common.h"
#include "meta/store_types.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

void ToWire(const KeyRange& range, pb::RangeRequest& wire) {
  KeySpan span = KeySpan::Of(range);
  wire.set_key(std::move(span.begin));
  wire.set_range_end(std::move(span.end));
}

void ToWire(Op&& op, pb::RequestOp& wire) {
  if (auto* put = std::get_if<PutOp>(&op)) {
    pb::PutRequest& request = *wire.mutable_request_put();
    request.set_key(std::move(put->key));
    request.set_value(std::move(put->value));
    request.set_lease(static_cast<int64_t>(put->lease.value));
  } else if (const auto* erase = std::get_if<DeleteOp>(&op)) {
    KeySpan span = KeySpan::Of(erase->range);
    pb::DeleteRangeRequest& request = *wire.mutable_request_delete_range();
    request.set_key(std::move(span.begin));
    request.set_range_end(std::move(span.end));
  } else {
    ToWire(std::get<GetOp>(op).range, *wire.mutable_request_range());
  }
}

void ToWire(Compare&& compare, pb::Compare& wire) {
  wire.set_key(std::move(compare.key));
  const auto number = static_cast<int64_t>(compare.number);
  switch (compare.field) {
    case Compare::Field::kCreateRevision:
      wire.set_target(pb::Compare::CREATE);
      return wire.set_create_revision(number);
    case Compare::Field::kModRevision:
      wire.set_target(pb::Compare::MOD);
      return wire.set_mod_revision(number);
    case Compare::Field::kVersion:
      wire.set_target(pb::Compare::VERSION);
      return wire.set_version(number);
    case Compare::Field::kValue:
      wire.set_target(pb::Compare::VALUE);
      return wire.set_value(std::move(compare.value));
  }
}

}  // namespace

pb::TxnRequest ToWire(Txn&& txn) {
  pb::TxnRequest wire;
  for (Compare& compare : txn.compares) ToWire(std::move(compare), *wire.add_compare());
  for (Op& op : txn.then) ToWire(std::move(op), *wire.add_success());
  for (Op& op : txn.otherwise) ToWire(std::move(op), *wire.add_failure());
  return wire;
}

TxnResult FromWire(pb::TxnResponse&& wire) {
  TxnResult result{.succeeded = wire.succeeded(),
                   .revision = {static_cast<uint64_t>(wire.header().revision())}};
  for (pb::ResponseOp& op : *wire.mutable_responses()) {
    if (!op.has_response_range()) continue;
    std::vector<KeyValue>& kvs = result.gets.emplace_back();
    for (mvccpb::KeyValue& kv : *op.mutable_response_range()->mutable_kvs()) {
      kvs.push_back(FromWire(std::move(kv)));
    }
  }
  return result;
}

}  // namespace unreft::meta
