#include "durable/paced_cold_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace unreft::durable {

class PacedColdStore::PacedFile final : public ColdFile {
 public:
  PacedFile(PacedColdStore& store, std::unique_ptr<ColdFile> file)
      : store_(store), file_(std::move(file)) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    if (store_.options_.bytes_per_s == 0 || bytes.empty()) return file_->Append(bytes);
    while (!bytes.empty()) {
      const size_t piece = std::min<uint64_t>(bytes.size(), store_.options_.piece_bytes);
      store_.Await(piece);
      if (absl::Status status = file_->Append(bytes.first(piece)); !status.ok()) return status;
      bytes = bytes.subspan(piece);
    }
    return absl::OkStatus();
  }
  uint64_t bytes() const override { return file_->bytes(); }
  absl::Status Finish() override { return file_->Finish(); }

 private:
  PacedColdStore& store_;
  const std::unique_ptr<ColdFile> file_;
};

PacedColdStore::PacedColdStore(ColdStore& store, PacedColdOptions options)
    : store_(store), options_(std::move(options)) {
  UNREFT_CHECK(options_.piece_bytes > 0);
}

void PacedColdStore::Await(uint64_t bytes) {
  if (options_.bytes_per_s == 0) return;
  std::lock_guard lock(mutex_);
  Time now = options_.now();
  if (now < free_at_) {
    options_.pause(free_at_ - now);
    now = options_.now();  // it may be later than was asked for: that is not made up for
  }
  const std::chrono::duration<double> takes(static_cast<double>(bytes) /
                                            static_cast<double>(options_.bytes_per_s));
  free_at_ = std::max(now, free_at_) + std::chrono::ceil<Duration>(takes);
}

absl::StatusOr<std::unique_ptr<ColdFile>> PacedColdStore::Create(std::string_view name) {
  auto file = store_.Create(name);
  if (!file.ok()) return file.status();
  return std::make_unique<PacedFile>(*this, *std::move(file));
}

absl::Status PacedColdStore::Put(std::string_view name, std::string_view bytes) {
  Await(bytes.size());
  return store_.Put(name, bytes);
}

absl::StatusOr<std::string> PacedColdStore::Get(std::string_view name, uint64_t bytes_max) {
  return store_.Get(name, bytes_max);
}

absl::Status PacedColdStore::Read(std::string_view name, uint64_t offset,
                                  std::span<std::byte> into) {
  return store_.Read(name, offset, into);
}

absl::StatusOr<std::vector<ColdEntry>> PacedColdStore::List(std::string_view directory) {
  return store_.List(directory);
}

absl::StatusOr<std::string> PacedColdStore::Anything(std::string_view directory) {
  return store_.Anything(directory);
}

absl::Status PacedColdStore::Remove(std::string_view name) { return store_.Remove(name); }

absl::StatusOr<uint64_t> PacedColdStore::RemoveLeftovers(
    std::string_view directory, std::chrono::system_clock::time_point before) {
  return store_.RemoveLeftovers(directory, before);
}

std::string PacedColdStore::Describe() const { return store_.Describe(); }

}  // namespace unreft::durable
