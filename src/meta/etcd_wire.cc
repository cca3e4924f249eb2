#include "meta/etcd_wire.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "meta/grpc_common.h"

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

absl::Status Misfit(const std::string& what) {
  return absl::UnavailableError("the answer does not fit what was asked: " + what);
}

}  // namespace

pb::TxnRequest ToWire(Txn&& txn) {
  pb::TxnRequest wire;
  for (Compare& compare : txn.compares) ToWire(std::move(compare), *wire.add_compare());
  for (Op& op : txn.then) ToWire(std::move(op), *wire.add_success());
  for (Op& op : txn.otherwise) ToWire(std::move(op), *wire.add_failure());
  return wire;
}

absl::StatusOr<TxnResult> FromWire(const pb::TxnRequest& request, pb::TxnResponse&& wire) {
  const auto& ops = wire.succeeded() ? request.success() : request.failure();
  if (wire.responses_size() != ops.size()) {
    return Misfit(fmt::format("{} answers to {} ops", wire.responses_size(), ops.size()));
  }
  TxnResult result{.succeeded = wire.succeeded(),
                   .revision = {static_cast<uint64_t>(wire.header().revision())}};
  for (int i = 0; i < ops.size(); ++i) {
    if (!ops[i].has_request_range()) continue;
    pb::ResponseOp& op = *wire.mutable_responses(i);
    if (!op.has_response_range()) return Misfit(fmt::format("none to the read of op {}", i));
    const KeySpan asked{ops[i].request_range().key(), ops[i].request_range().range_end()};
    std::vector<KeyValue>& kvs = result.gets.emplace_back();
    for (mvccpb::KeyValue& kv : *op.mutable_response_range()->mutable_kvs()) {
      if (!asked.Contains(kv.key())) return Misfit("a key that was not asked for");
      kvs.push_back(FromWire(std::move(kv)));
    }
  }
  return result;
}

absl::StatusOr<std::vector<WatchEvent>> FromWire(const KeySpan& watched, pb::WatchResponse&& wire) {
  std::vector<WatchEvent> events;
  for (mvccpb::Event& event : *wire.mutable_events()) {
    if (!watched.Contains(event.kv().key())) return Misfit("an event of a key not watched");
    events.push_back(FromWire(std::move(event)));
    const Revision revision = events.back().kv.mod_revision;
    if (events.size() > 1 && revision < events[events.size() - 2].kv.mod_revision) {
      return Misfit(fmt::format("an event of revision {} after a later one", revision));
    }
  }
  return events;
}

}  // namespace unreft::meta
