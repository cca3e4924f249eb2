// What the embedded store is asked and answers: the etcd v3 API as plain structs. Kv's own words
// (meta/kv.h) are a part of it.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "meta/kv.h"

namespace unreft::meta {

// The keys from `begin` up to `end`, as etcd writes it: without an end the key `begin` alone, with
// the end "\0" every key from `begin` on.
struct KeySpan {
  std::string begin;
  std::string end;

  static KeySpan Of(const KeyRange& range);
  bool is_one_key() const { return end.empty(); }
  bool has_no_end() const { return end.size() == 1 && end[0] == '\0'; }
  bool Contains(std::string_view key) const;
};

struct StoreCompare {
  enum class Target { kVersion = 0, kCreateRevision = 1, kModRevision = 2, kValue = 3, kLease = 4 };
  enum class Result { kEqual = 0, kGreater = 1, kLess = 2, kNotEqual = 3 };
  std::string key;
  Target target = Target::kModRevision;
  Result result = Result::kEqual;
  uint64_t number = 0;  // of all targets but kValue
  std::string value;    // of kValue
};

struct StoreRange {
  KeySpan span;
  uint64_t limit = 0;  // 0 = none
  bool descending = false;
  bool keys_only = false;
  bool count_only = false;
};
struct StorePut {
  std::string key;
  std::string value;
  LeaseId lease;
};
struct StoreDelete {
  KeySpan span;
};
using StoreOp = std::variant<StoreRange, StorePut, StoreDelete>;

struct StoreTxn {
  std::vector<StoreCompare> compares;
  std::vector<StoreOp> then;
  std::vector<StoreOp> otherwise;

  static StoreTxn Of(const Txn& txn);
};

// Of a range: what was found, `count` without the limit. Of a put and a delete: what was there
// before, and how many.
struct StoreOpReply {
  std::vector<KeyValue> kvs;
  uint64_t count = 0;
};

struct StoreReply {
  bool succeeded = false;
  Revision revision;                  // of the store, after it
  std::vector<StoreOpReply> replies;  // one per op of the branch taken
};

// What a Kv answers; `txn` is what was asked.
TxnResult TxnResultOf(const StoreTxn& txn, StoreReply reply);

}  // namespace unreft::meta
