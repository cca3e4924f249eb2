// PacedColdStore: another cold store with a limit on how fast it is written to.
//
// Over any second, no more bytes begin to be written than the limit and one piece besides, of all
// files together. Reading has no limit. Thread-safe, as the seam says: writers wait their turn.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/executor.h"
#include "durable/cold_store.h"

namespace unreft::durable {

struct PacedColdOptions {
  uint64_t bytes_per_s = 0;                  // 0: no limit
  uint64_t piece_bytes = uint64_t{8} << 20;  // an append of more goes in pieces; not 0
  std::function<Time()> now;
  // Blocks the calling thread for so long. Returning early lets the write go on early, as it should
  // when the process is to end.
  std::function<void(Duration)> pause;
};

class PacedColdStore final : public ColdStore {
 public:
  // `store` outlives this.
  PacedColdStore(ColdStore& store, PacedColdOptions options);

  absl::StatusOr<std::unique_ptr<ColdFile>> Create(std::string_view name) override;
  // All bytes at once, as one piece.
  absl::Status Put(std::string_view name, std::string_view bytes) override;
  absl::StatusOr<std::string> Get(std::string_view name, uint64_t bytes_max) override;
  absl::Status Read(std::string_view name, uint64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<std::vector<ColdEntry>> List(std::string_view directory) override;
  absl::StatusOr<std::string> Anything(std::string_view directory) override;
  absl::Status Remove(std::string_view name) override;
  absl::StatusOr<uint64_t> RemoveLeftovers(std::string_view directory,
                                           std::chrono::system_clock::time_point before) override;
  std::string Describe() const override;

 private:
  class PacedFile;

  // Blocks until so many bytes may begin to be written.
  void Await(uint64_t bytes);

  ColdStore& store_;
  const PacedColdOptions options_;

  std::mutex mutex_;  // held while one writer pauses, so that the others stand behind it
  Time free_at_{};    // guarded by mutex_: when the next piece may begin
};

}  // namespace unreft::durable
