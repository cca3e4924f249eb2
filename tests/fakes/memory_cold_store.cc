#include "tests/fakes/memory_cold_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace unreft {

using durable::CheckColdDirectory;
using durable::CheckColdName;
using durable::ColdEntry;
using durable::ColdFile;

class MemoryColdStore::File final : public ColdFile {
 public:
  File(MemoryColdStore& store, std::string_view name)
      : store_(store), name_(name), crashes_(store.crashes_) {}
  ~File() override {
    std::lock_guard lock(store_.mutex_);
    if (!is_finished_ && crashes_ == store_.crashes_) store_.bytes_used_ -= bytes_.size();
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    std::lock_guard lock(store_.mutex_);
    if (absl::Status status = CheckUnderWay(); !status.ok()) return status;
    status_ = store_.CountWrite(bytes.size());
    if (!status_.ok()) return status_;
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  }

  uint64_t bytes() const override { return appended_ ? *appended_ : bytes_.size(); }

  absl::Status Finish() override {
    std::lock_guard lock(store_.mutex_);
    if (absl::Status status = CheckUnderWay(); !status.ok()) return status;
    status_ = store_.CountWrite(0);
    if (status_.ok()) status_ = store_.CheckFree(name_);
    if (!status_.ok()) return status_;
    appended_ = bytes_.size();
    store_.files_.emplace(name_, std::move(bytes_));
    is_finished_ = true;
    return absl::OkStatus();
  }

 private:
  absl::Status CheckUnderWay() {
    if (is_finished_) {
      return absl::FailedPreconditionError(fmt::format("'{}' is finished already", name_));
    }
    if (status_.ok() && crashes_ != store_.crashes_) {
      status_ = absl::UnavailableError(fmt::format("the writer of '{}' is dead", name_));
    }
    return status_;
  }

  MemoryColdStore& store_;
  const std::string name_;
  const uint64_t crashes_;  // of the store when it was begun
  std::string bytes_;
  std::optional<uint64_t> appended_;  // once it is finished
  absl::Status status_;
  bool is_finished_ = false;
};

absl::Status MemoryColdStore::CheckFree(std::string_view name) const {
  const auto taken = [](std::string_view what) {
    return absl::AlreadyExistsError(fmt::format("'{}' is there already", what));
  };
  if (files_.contains(name)) return taken(name);
  const std::string below = std::string(name) + "/";
  const auto first = files_.lower_bound(below);
  if (first != files_.end() && first->first.starts_with(below)) return taken(name);
  for (size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1)) {
    if (!files_.contains(name.substr(0, slash))) continue;
    return absl::FailedPreconditionError(
        fmt::format("'{}': '{}' is a file", name, name.substr(0, slash)));
  }
  return absl::OkStatus();
}

absl::Status MemoryColdStore::CountWrite(uint64_t bytes) {
  ++writes_;
  if (const auto failure = failures_.find(writes_); failure != failures_.end()) {
    return failure->second;
  }
  const uint64_t free = bytes_max_ - std::min(bytes_max_, bytes_used_);
  if (bytes > free) {
    return absl::ResourceExhaustedError(
        fmt::format("memory: needs {} bytes, {} bytes free of {}", bytes, free, bytes_max_));
  }
  bytes_used_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<const std::string*> MemoryColdStore::Find(std::string_view name) const {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  const auto found = files_.find(name);
  if (found == files_.end()) return absl::NotFoundError(fmt::format("'{}' is absent", name));
  return &found->second;
}

absl::StatusOr<std::unique_ptr<ColdFile>> MemoryColdStore::Create(std::string_view name) {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  if (absl::Status status = CheckFree(name); !status.ok()) return status;
  return std::make_unique<File>(*this, name);
}

absl::Status MemoryColdStore::Put(std::string_view name, std::string_view bytes) {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  if (absl::Status status = CheckFree(name); !status.ok()) return status;
  if (absl::Status status = CountWrite(bytes.size()); !status.ok()) return status;
  files_.emplace(name, bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryColdStore::Get(std::string_view name, uint64_t bytes_max) {
  std::lock_guard lock(mutex_);
  const auto file = Find(name);
  if (!file.ok()) return file.status();
  if ((*file)->size() <= bytes_max) return **file;
  return absl::ResourceExhaustedError(
      fmt::format("'{}' has {} bytes, at most {}", name, (*file)->size(), bytes_max));
}

absl::Status MemoryColdStore::Read(std::string_view name, uint64_t offset,
                                   std::span<std::byte> into) {
  std::lock_guard lock(mutex_);
  const auto file = Find(name);
  if (!file.ok()) return file.status();
  const uint64_t end = (*file)->size();
  if (offset > end || into.size() > end - offset) {
    return absl::OutOfRangeError(
        fmt::format("'{}': {} bytes at {} of {}", name, into.size(), offset, end));
  }
  if (!into.empty()) std::memcpy(into.data(), (*file)->data() + offset, into.size());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ColdEntry>> MemoryColdStore::List(std::string_view directory) {
  if (absl::Status status = CheckColdDirectory(directory); !status.ok()) return status;
  const std::string below = directory.empty() ? "" : std::string(directory) + "/";
  std::lock_guard lock(mutex_);
  std::vector<ColdEntry> entries;
  for (auto at = files_.lower_bound(below); at != files_.end(); ++at) {
    if (!at->first.starts_with(below)) break;
    entries.push_back({at->first, at->second.size()});
  }
  return entries;
}

absl::StatusOr<std::string> MemoryColdStore::Anything(std::string_view directory) {
  const auto files = List(directory);
  if (!files.ok()) return files.status();
  return files->empty() ? "" : files->front().name;
}

void MemoryColdStore::FailRemove(const std::string& name, absl::Status status) {
  std::lock_guard lock(mutex_);
  remove_failures_[name] = std::move(status);
}

absl::Status MemoryColdStore::Remove(std::string_view name) {
  std::lock_guard lock(mutex_);
  const auto file = Find(name);
  if (!file.ok()) return file.status();
  if (auto failure = remove_failures_.extract(std::string(name))) return failure.mapped();
  bytes_used_ -= (*file)->size();
  files_.erase(files_.find(name));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> MemoryColdStore::RemoveLeftovers(
    std::string_view directory, std::chrono::system_clock::time_point /*before*/) {
  if (absl::Status status = CheckColdDirectory(directory); !status.ok()) return status;
  return 0;
}

void MemoryColdStore::FailWrite(uint64_t nth, absl::Status status) {
  std::lock_guard lock(mutex_);
  UNREFT_CHECK(nth > 0 && !status.ok());
  failures_[writes_ + nth] = std::move(status);
}

void MemoryColdStore::set_bytes_max(uint64_t bytes_max) {
  std::lock_guard lock(mutex_);
  bytes_max_ = bytes_max;
}

uint64_t MemoryColdStore::bytes_used() const {
  std::lock_guard lock(mutex_);
  return bytes_used_;
}

void MemoryColdStore::Crash() {
  std::lock_guard lock(mutex_);
  ++crashes_;
  bytes_used_ = 0;
  for (const auto& [name, bytes] : files_) bytes_used_ += bytes.size();
}

void MemoryColdStore::FlipByte(const std::string& name, uint64_t offset) {
  std::lock_guard lock(mutex_);
  const auto file = files_.find(name);
  UNREFT_CHECK(file != files_.end() && offset < file->second.size(), "{} at {}", name, offset);
  file->second[offset] = static_cast<char>(file->second[offset] ^ 0xff);
}

}  // namespace unreft
