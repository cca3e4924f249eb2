#include "meta/store_types.h"

#include <utility>

namespace unreft::meta {
namespace {

const std::string kNoEnd(1, '\0');

// The first key behind all that begin with `prefix`.
std::string EndOfPrefix(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return kNoEnd;
  ++prefix.back();
  return prefix;
}

StoreCompare::Target TargetOf(Compare::Field field) {
  switch (field) {
    case Compare::Field::kCreateRevision:
      return StoreCompare::Target::kCreateRevision;
    case Compare::Field::kModRevision:
      return StoreCompare::Target::kModRevision;
    case Compare::Field::kVersion:
      return StoreCompare::Target::kVersion;
    case Compare::Field::kValue:
      break;
  }
  return StoreCompare::Target::kValue;
}

std::vector<StoreOp> OpsOf(const std::vector<Op>& ops) {
  std::vector<StoreOp> result;
  for (const Op& op : ops) {
    if (const auto* put = std::get_if<PutOp>(&op)) {
      result.push_back(StorePut{put->key, put->value, put->lease});
    } else if (const auto* erase = std::get_if<DeleteOp>(&op)) {
      result.push_back(StoreDelete{KeySpan::Of(erase->range)});
    } else {
      result.push_back(StoreRange{.span = KeySpan::Of(std::get<GetOp>(op).range)});
    }
  }
  return result;
}

}  // namespace

KeySpan KeySpan::Of(const KeyRange& range) {
  if (!range.is_prefix) return {range.key, ""};
  if (range.key.empty()) return {kNoEnd, kNoEnd};  // every key: the least one is "\0"
  return {range.key, EndOfPrefix(range.key)};
}

bool KeySpan::Contains(std::string_view key) const {
  if (is_one_key()) return key == begin;
  return key >= begin && (has_no_end() || key < end);
}

StoreTxn StoreTxn::Of(const Txn& txn) {
  StoreTxn result;
  for (const Compare& compare : txn.compares) {
    result.compares.push_back({.key = compare.key,
                               .target = TargetOf(compare.field),
                               .number = compare.number,
                               .value = compare.value});
  }
  result.then = OpsOf(txn.then);
  result.otherwise = OpsOf(txn.otherwise);
  return result;
}

TxnResult TxnResultOf(const StoreTxn& txn, StoreReply reply) {
  TxnResult result{.succeeded = reply.succeeded, .revision = reply.revision};
  const std::vector<StoreOp>& ops = reply.succeeded ? txn.then : txn.otherwise;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!std::holds_alternative<StoreRange>(ops[i])) continue;
    result.gets.push_back(std::move(reply.replies[i].kvs));
  }
  return result;
}

}  // namespace unreft::meta
