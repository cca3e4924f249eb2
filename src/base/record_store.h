// RecordStore: the seam to small durable records (RocksDB; the fake in memory).
//
// Asynchronous: every callback runs in a turn of the executor given at construction, exactly once
// and never inline. Any call may fail (a full disk, too many calls waiting), and callers go on: the
// records are an index and a memory across reboots, the segment headers are the truth
// (docs/protocol.md, rule 2).
//
// Called and destroyed only in turns of that executor, or when it runs no turns. No callback runs
// after the destructor; a batch that was not reported yet is then applied whole or not at all, as
// after a crash, and none without those before it.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

namespace unreft {

enum class Durability {
  kBuffered,  // survives the death of the process
  kSynced,    // survives the death of the host
};

struct Record {
  std::string key;
  std::string value;
};

// Puts `value` at `key`, or removes the key when there is no value.
struct RecordChange {
  std::string key;
  std::optional<std::string> value;
};

class RecordStore {
 public:
  using WriteDone = absl::AnyInvocable<void(absl::Status)>;
  using ScanDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<Record>>)>;

  virtual ~RecordStore() = default;

  // Applies all changes or none; batches take effect in the order of the calls.
  // ResourceExhausted when the disk is full; a failed batch leaves the store usable, and may turn
  // out to have been applied (whole).
  virtual void Write(std::vector<RecordChange> batch, Durability durability, WriteDone done) = 0;

  // All records whose key begins with `prefix`, sorted by key; sees every batch written before.
  // DataLoss when the store finds its own files corrupt.
  virtual void Scan(std::string prefix, ScanDone done) = 0;
};

}  // namespace unreft
