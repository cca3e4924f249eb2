// FakeRecordStore and FakeDisk: records of a simulated node, with the losses that crashes cause.
//
//   FakeDisk         outlives every process of its node, and the node's reboots
//     ^   applied    what a scan sees; survives the death of the process
//     |   synced     survives the death of the host: everything up to the last kSynced batch,
//     |              and a random part of the kBuffered ones behind it
//   FakeRecordStore  one open store; its calls complete one by one after random delays
//
// Destroying the store is the death of the process: of the calls in flight a random number of the
// first are applied, each whole. Single-threaded on the executor, like the seam.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/random.h"
#include "base/record_store.h"

namespace unreft {

class FakeDisk {
 public:
  explicit FakeDisk(uint64_t seed) : random_(seed) {}
  // Stores on it are destroyed before.
  ~FakeDisk();
  FakeDisk(const FakeDisk&) = delete;
  FakeDisk& operator=(const FakeDisk&) = delete;

  // The host dies or reboots: what was not synced is lost, but for a random part from the front.
  // No store may be open.
  void CrashHost();

  // All records are gone, as when a node is replaced. No store may be open.
  void Wipe();

  // All records are these, synced: an older copy is put back. No store may be open.
  void Replace(std::map<std::string, std::string> records);

  // A write that would leave more bytes of keys and values than this fails: the disk is full.
  void set_bytes_max(uint64_t bytes_max) { bytes_max_ = bytes_max; }
  uint64_t bytes_used() const;
  uint64_t bytes_max() const { return bytes_max_; }

  // The next `count` writes fail with `status`; each is applied all the same or not, at random.
  void FailWrites(int count, absl::Status status);

  // While set, every scan, and opening, is DataLoss.
  void set_corrupt(bool corrupt) { corrupt_ = corrupt; }

  // A call takes a random time up to this.
  void set_latency_max(Duration latency_max) { latency_max_ = latency_max; }

  // What a scan would see; for the test's own checks.
  const std::map<std::string, std::string>& applied() const { return applied_; }
  const std::map<std::string, std::string>& synced() const { return synced_; }

 private:
  friend class FakeRecordStore;
  using Records = std::map<std::string, std::string>;
  using Batch = std::vector<RecordChange>;

  static void Apply(const Batch& batch, Records& records);

  // What a write of this batch returns, having applied it or not.
  absl::Status Write(const Batch& batch, Durability durability);
  void ApplyUnsynced(const Batch& batch);
  // The first `count` batches that are applied only become synced too.
  void Sync(size_t count);
  Duration Latency();

  Random random_;
  Records applied_;
  Records synced_;
  std::deque<Batch> unsynced_;  // applied_ is synced_ and then these
  uint64_t bytes_max_ = UINT64_MAX;
  Duration latency_max_ = std::chrono::milliseconds(1);
  bool corrupt_ = false;
  bool open_ = false;
  int failures_left_ = 0;
  absl::Status failure_;
};

struct FakeRecordStoreOptions {
  size_t queue_max = 1024;
};

class FakeRecordStore : public RecordStore {
 public:
  // FailedPrecondition when another store is open on the disk; DataLoss.
  static absl::StatusOr<std::unique_ptr<FakeRecordStore>> Open(FakeDisk& disk, Executor& executor,
                                                               FakeRecordStoreOptions options = {});
  ~FakeRecordStore() override;

  void Write(std::vector<RecordChange> batch, Durability durability, WriteDone done) override;
  void Scan(std::string prefix, ScanDone done) override;

 private:
  struct Call {
    std::vector<RecordChange> batch;
    Durability durability = Durability::kBuffered;
    WriteDone write_done;  // of a write
    std::string prefix;
    ScanDone scan_done;  // of a scan
  };

  FakeRecordStore(FakeDisk& disk, Executor& executor, FakeRecordStoreOptions options);
  void Add(Call call);
  void StartNext();
  void FinishFirst();
  absl::StatusOr<std::vector<Record>> Read(const std::string& prefix) const;
  void Report(Call call, absl::Status written, absl::StatusOr<std::vector<Record>> scanned);

  FakeDisk& disk_;
  Executor& executor_;
  const FakeRecordStoreOptions options_;
  std::deque<Call> calls_;
  bool busy_ = false;  // the first call has its timer
  // Shared with the tasks that are on their way when the store goes.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace unreft
