// MemoryRecordStore: records that end with the process, of a store whose truth is kept elsewhere.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/record_store.h"

namespace unreft {

// No call fails; both durabilities are the life of this object.
class MemoryRecordStore final : public RecordStore {
 public:
  // `executor` outlives it.
  explicit MemoryRecordStore(Executor& executor) : executor_(executor) {}

  void Write(std::vector<RecordChange> batch, Durability durability, WriteDone done) override;
  void Scan(std::string prefix, ScanDone done) override;

 private:
  Executor& executor_;
  std::map<std::string, std::string> records_;
  Lifetime lifetime_;
};

}  // namespace unreft
