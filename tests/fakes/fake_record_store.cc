#include "tests/fakes/fake_record_store.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace unreft {

FakeDisk::~FakeDisk() { UNREFT_CHECK(!open_); }

void FakeDisk::CrashHost() {
  UNREFT_CHECK(!open_, "the processes of a host die before its disk's cache");
  Sync(random_.Below(unsynced_.size() + 1));
  unsynced_.clear();
  applied_ = synced_;
}

void FakeDisk::Wipe() {
  UNREFT_CHECK(!open_);
  applied_.clear();
  synced_.clear();
  unsynced_.clear();
}

void FakeDisk::Replace(std::map<std::string, std::string> records) {
  Wipe();
  synced_ = std::move(records);
  applied_ = synced_;
}

uint64_t FakeDisk::bytes_used() const {
  uint64_t bytes = 0;
  for (const auto& [key, value] : applied_) bytes += key.size() + value.size();
  return bytes;
}

void FakeDisk::FailWrites(int count, absl::Status status) {
  UNREFT_CHECK(count == 0 || !status.ok());
  failures_left_ = count;
  failure_ = std::move(status);
}

void FakeDisk::Apply(const Batch& batch, Records& records) {
  for (const RecordChange& change : batch) {
    if (change.value) {
      records[change.key] = *change.value;
    } else {
      records.erase(change.key);
    }
  }
}

absl::Status FakeDisk::Write(const Batch& batch, Durability durability) {
  if (failures_left_ > 0) {
    --failures_left_;
    if (random_.OneIn(2)) ApplyUnsynced(batch);
    return failure_;
  }
  uint64_t bytes = 0;
  for (const RecordChange& change : batch) {
    if (change.value) bytes += change.key.size() + change.value->size();
  }
  // Like a log, a full disk refuses before it sees that a change would replace an older value.
  if (bytes > 0 && (bytes > bytes_max_ || bytes_used() > bytes_max_ - bytes)) {
    return absl::ResourceExhaustedError(
        fmt::format("fake disk: {} bytes more on {} of {}", bytes, bytes_used(), bytes_max_));
  }
  ApplyUnsynced(batch);
  if (durability == Durability::kSynced) {
    Sync(unsynced_.size());
  } else if (random_.OneIn(4)) {
    Sync(random_.Below(unsynced_.size() + 1));  // the kernel writes back when it likes
  }
  return absl::OkStatus();
}

void FakeDisk::ApplyUnsynced(const Batch& batch) {
  Apply(batch, applied_);
  unsynced_.push_back(batch);
}

void FakeDisk::Sync(size_t count) {
  for (; count > 0; --count) {
    Apply(unsynced_.front(), synced_);
    unsynced_.pop_front();
  }
}

Duration FakeDisk::Latency() {
  return Duration(static_cast<int64_t>(random_.Below(latency_max_.count() + 1)));
}

absl::StatusOr<std::unique_ptr<FakeRecordStore>> FakeRecordStore::Open(
    FakeDisk& disk, Executor& executor, FakeRecordStoreOptions options) {
  if (disk.open_) return absl::FailedPreconditionError("the fake disk is in use");
  if (disk.corrupt_) return absl::DataLossError("the fake disk is corrupt");
  disk.open_ = true;
  return std::unique_ptr<FakeRecordStore>(new FakeRecordStore(disk, executor, options));
}

FakeRecordStore::FakeRecordStore(FakeDisk& disk, Executor& executor, FakeRecordStoreOptions options)
    : disk_(disk), executor_(executor), options_(options) {}

FakeRecordStore::~FakeRecordStore() {
  *alive_ = false;
  for (uint64_t left = disk_.random_.Below(calls_.size() + 1); left > 0; --left) {
    const Call& call = calls_.front();
    if (call.write_done) disk_.Write(call.batch, call.durability).IgnoreError();
    calls_.pop_front();
  }
  disk_.open_ = false;
}

void FakeRecordStore::Write(std::vector<RecordChange> batch, Durability durability,
                            WriteDone done) {
  Add({.batch = std::move(batch), .durability = durability, .write_done = std::move(done)});
}

void FakeRecordStore::Scan(std::string prefix, ScanDone done) {
  Add({.prefix = std::move(prefix), .scan_done = std::move(done)});
}

void FakeRecordStore::Add(Call call) {
  if (calls_.size() >= options_.queue_max) {
    const auto status = absl::ResourceExhaustedError(
        fmt::format("fake disk: {} calls wait already", calls_.size()));
    Report(std::move(call), status, status);
    return;
  }
  calls_.push_back(std::move(call));
  if (!busy_) StartNext();
}

void FakeRecordStore::StartNext() {
  busy_ = true;
  executor_.After(disk_.Latency(), [this, alive = alive_] {
    if (*alive) FinishFirst();
  });
}

void FakeRecordStore::FinishFirst() {
  Call call = std::move(calls_.front());
  calls_.pop_front();
  absl::Status written;
  absl::StatusOr<std::vector<Record>> scanned;
  if (call.write_done) {
    written = disk_.Write(call.batch, call.durability);
  } else {
    scanned = Read(call.prefix);
  }
  Report(std::move(call), std::move(written), std::move(scanned));
  busy_ = false;
  if (!calls_.empty()) StartNext();
}

absl::StatusOr<std::vector<Record>> FakeRecordStore::Read(const std::string& prefix) const {
  if (disk_.corrupt_) return absl::DataLossError("the fake disk is corrupt");
  std::vector<Record> records;
  const auto& applied = disk_.applied_;
  for (auto it = applied.lower_bound(prefix); it != applied.end() && it->first.starts_with(prefix);
       ++it) {
    records.push_back({it->first, it->second});
  }
  return records;
}

void FakeRecordStore::Report(Call call, absl::Status written,
                             absl::StatusOr<std::vector<Record>> scanned) {
  executor_.Post([alive = alive_, call = std::move(call), written = std::move(written),
                  scanned = std::move(scanned)]() mutable {
    if (!*alive) return;
    if (call.write_done) {
      call.write_done(std::move(written));
    } else {
      call.scan_done(std::move(scanned));
    }
  });
}

}  // namespace unreft
