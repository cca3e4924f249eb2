#include "base/memory_record_store.h"

#include <utility>

namespace unreft {

void MemoryRecordStore::Write(std::vector<RecordChange> batch, Durability, WriteDone done) {
  for (RecordChange& change : batch) {
    if (change.value) {
      records_.insert_or_assign(std::move(change.key), *std::move(change.value));
    } else {
      records_.erase(change.key);
    }
  }
  executor_.Post(lifetime_.Bind([done = std::move(done)]() mutable { done(absl::OkStatus()); }));
}

void MemoryRecordStore::Scan(std::string prefix, ScanDone done) {
  std::vector<Record> found;
  for (auto it = records_.lower_bound(prefix); it != records_.end(); ++it) {
    if (!it->first.starts_with(prefix)) break;
    found.push_back({it->first, it->second});
  }
  executor_.Post(lifetime_.Bind(
      [found = std::move(found), done = std::move(done)]() mutable { done(std::move(found)); }));
}

}  // namespace unreft
