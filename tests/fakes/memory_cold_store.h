// MemoryColdStore: a cold store in the memory of the test, with the faults that a test orders.
//
// As strict as a file system about names: none is both a file's and a directory's. Thread-safe,
// like the seam.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "durable/cold_store.h"

namespace unreft {

class MemoryColdStore : public durable::ColdStore {
 public:
  absl::StatusOr<std::unique_ptr<durable::ColdFile>> Create(std::string_view name) override;
  absl::Status Put(std::string_view name, std::string_view bytes) override;
  absl::StatusOr<std::string> Get(std::string_view name, uint64_t bytes_max) override;
  absl::Status Read(std::string_view name, uint64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<std::vector<durable::ColdEntry>> List(std::string_view directory) override;
  absl::StatusOr<std::string> Anything(std::string_view directory) override;
  absl::Status Remove(std::string_view name) override;
  // Nothing is ever left over: 0.
  absl::StatusOr<uint64_t> RemoveLeftovers(std::string_view directory,
                                           std::chrono::system_clock::time_point before) override;
  std::string Describe() const override { return "memory"; }

  // The write that is the `nth` from now (1: the next one) fails with `status`, and takes no
  // effect. Each Append, Finish and Put is a write.
  void FailWrite(uint64_t nth, absl::Status status);

  // The next Remove of the file fails with `status`, and takes no effect.
  void FailRemove(const std::string& name, absl::Status status);

  // What would leave more bytes than this, of files whole or under way, is ResourceExhausted.
  void set_bytes_max(uint64_t bytes_max);
  uint64_t bytes_used() const;

  // All writers die: no file under way will ever be finished, and their bytes are freed.
  void Crash();

  // Turns a byte of a whole file into another. CHECKs that there is such a byte.
  void FlipByte(const std::string& name, uint64_t offset);

 private:
  class File;

  // All with the mutex held.
  absl::Status CheckFree(std::string_view name) const;
  absl::Status CountWrite(uint64_t bytes);
  absl::StatusOr<const std::string*> Find(std::string_view name) const;

  mutable std::mutex mutex_;  // covers all below
  std::map<std::string, std::string, std::less<>> files_;
  uint64_t bytes_used_ = 0;
  uint64_t bytes_max_ = UINT64_MAX;
  uint64_t crashes_ = 0;
  uint64_t writes_ = 0;                                               // so far
  std::map<std::string, absl::Status, std::less<>> remove_failures_;  // by name
  std::map<uint64_t, absl::Status> failures_;                         // by the number of the write
};

}  // namespace unreft
