// RocksRecordStore: records in RocksDB, in a directory that one process holds at a time.
//
// All disk work is on one thread of its own, in the order of the calls. After an error (a full
// disk) the database is closed and opened again by the next call, so the store works again as soon
// as the disk does; where that has no room for it nothing is written, but what is there is read.
// Calls are thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/record_store.h"

namespace unreft {

struct RocksRecordStoreOptions {
  std::string directory;
  // Calls that wait for the disk; beyond it a call fails with ResourceExhausted.
  size_t queue_max = 1024;
  uint64_t write_buffer_bytes = uint64_t{1} << 20;
  // Whether Open fails when the records cannot be read. Otherwise the calls do, each with the
  // reason, until the disk is mended.
  bool open_at_once = true;
  // For tests (base/rocks_file_system.h).
  std::function<bool(bool of_bytes)> disk_fails;
};

class RocksRecordStore : public RecordStore {
 public:
  // Blocks until the records of a former life are read, some milliseconds. FailedPrecondition names
  // the directory and the process that holds it; with open_at_once ResourceExhausted and DataLoss,
  // too. `executor` outlives the store.
  static absl::StatusOr<std::unique_ptr<RocksRecordStore>> Open(RocksRecordStoreOptions options,
                                                                Executor& executor);
  // Removes what a store, which is closed now, has written in the directory, and it, if nothing
  // else is in it. OK for an absent one.
  static absl::Status Destroy(const std::string& directory);

  // Blocks until the batches accepted are written.
  ~RocksRecordStore() override;

  void Write(std::vector<RecordChange> batch, Durability durability, WriteDone done) override;
  void Scan(std::string prefix, ScanDone done) override;

 private:
  class Impl;
  explicit RocksRecordStore(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace unreft
