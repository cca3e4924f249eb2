#include "tests/fakes/fake_segment_store.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace unreft {
namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t PagesOf(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

}  // namespace

// How many bytes a host has and how many are taken. Thread-safe.
class FakeMemoryAccount {
 public:
  explicit FakeMemoryAccount(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  bool Take(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes_used_ > bytes_max_ || bytes > bytes_max_ - bytes_used_) return false;
    bytes_used_ += bytes;
    return true;
  }

  void GiveBack(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    bytes_used_ -= bytes;
  }

  uint64_t used() const {
    std::lock_guard lock(mutex_);
    return bytes_used_;
  }

  uint64_t max() const {
    std::lock_guard lock(mutex_);
    return bytes_max_;
  }

  uint64_t free() const {
    std::lock_guard lock(mutex_);
    return bytes_max_ > bytes_used_ ? bytes_max_ - bytes_used_ : 0;
  }

  void set_max(uint64_t bytes_max) {
    std::lock_guard lock(mutex_);
    bytes_max_ = bytes_max;
  }

 private:
  mutable std::mutex mutex_;
  uint64_t bytes_max_;
  uint64_t bytes_used_ = 0;
};

// The bytes of one segment: the same memory mapped twice, read-write and read-only, its pages
// untouchable until reserved. Thread-safe.
class FakeSegmentMemory {
 public:
  FakeSegmentMemory(uint64_t bytes, std::shared_ptr<FakeMemoryAccount> account)
      : bytes_(bytes), account_(std::move(account)), reserved_(PagesOf(bytes)) {
    const int file = memfd_create("unreft-fake-segment", MFD_CLOEXEC);
    UNREFT_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(mapped_bytes())) == 0);
    for (std::byte*& view : views_) {
      void* address = mmap(nullptr, mapped_bytes(), PROT_NONE, MAP_SHARED, file, 0);
      UNREFT_CHECK(address != MAP_FAILED, "{} bytes of fake memory", bytes);
      view = static_cast<std::byte*>(address);
    }
    close(file);
  }

  ~FakeSegmentMemory() {
    for (std::byte* view : views_) munmap(view, mapped_bytes());
    account_->GiveBack(reserved_bytes());
  }

  FakeSegmentMemory(const FakeSegmentMemory&) = delete;
  FakeSegmentMemory& operator=(const FakeSegmentMemory&) = delete;

  uint64_t bytes() const { return bytes_; }
  std::byte* view(Access access) const { return views_[access == Access::kReadOnly ? 1 : 0]; }

  uint64_t reserved_bytes() const {
    std::lock_guard lock(mutex_);
    return reserved_count_ * kPageBytes;
  }

  bool IsReserved(uint64_t offset) const {
    std::lock_guard lock(mutex_);
    return offset < bytes_ && reserved_[offset / kPageBytes];
  }

  // All pages of the range or none; returns how many bytes they lack, 0 when done.
  uint64_t Reserve(uint64_t offset, uint64_t length) {
    std::lock_guard lock(mutex_);
    const uint64_t first = offset / kPageBytes;
    const uint64_t end = PagesOf(offset + length);
    uint64_t missing = 0;
    for (uint64_t page = first; page < end; ++page) missing += reserved_[page] ? 0 : 1;
    if (!account_->Take(missing * kPageBytes)) return missing * kPageBytes;
    reserved_count_ += missing;
    for (uint64_t page = first; page < end; ++page) reserved_[page] = true;
    Protect(first, end, Access::kReadWrite, PROT_READ | PROT_WRITE);
    Protect(first, end, Access::kReadOnly, PROT_READ);
    return 0;
  }

  void set_removed() {
    std::lock_guard lock(mutex_);
    removed_ = true;
  }

  absl::Status Lock(const std::string& name) {
    std::lock_guard lock(mutex_);
    if (removed_) return absl::NotFoundError(fmt::format("segment {} was removed meanwhile", name));
    if (std::exchange(locked_, true)) {
      return absl::FailedPreconditionError(
          fmt::format("segment {} is served by another process", name));
    }
    return absl::OkStatus();
  }

  void Unlock() {
    std::lock_guard lock(mutex_);
    locked_ = false;
  }

 private:
  uint64_t mapped_bytes() const { return PagesOf(bytes_) * kPageBytes; }

  void Protect(uint64_t first, uint64_t end, Access access, int protection) {
    const int result =
        mprotect(view(access) + first * kPageBytes, (end - first) * kPageBytes, protection);
    UNREFT_CHECK(result == 0);
  }

  const uint64_t bytes_;
  const std::shared_ptr<FakeMemoryAccount> account_;
  std::byte* views_[2] = {nullptr, nullptr};

  mutable std::mutex mutex_;    // covers all below
  std::vector<bool> reserved_;  // by page
  uint64_t reserved_count_ = 0;
  bool removed_ = false;
  bool locked_ = false;
};

namespace {

class FakeSegment final : public Segment {
 public:
  FakeSegment(std::string name, std::shared_ptr<FakeSegmentMemory> memory,
              std::shared_ptr<FakeMemoryAccount> account, Access access, uint64_t offset,
              uint64_t length)
      : name_(std::move(name)),
        memory_(std::move(memory)),
        account_(std::move(account)),
        access_(access),
        offset_(offset),
        length_(length) {}

  ~FakeSegment() override {
    if (has_lock_) memory_->Unlock();
  }

  const std::string& name() const override { return name_; }

  std::span<std::byte> bytes() override { return {memory_->view(access_) + offset_, length_}; }

  absl::Status Reserve(size_t offset, size_t length) override {
    if (offset > length_ || length > length_ - offset) {
      return absl::OutOfRangeError(fmt::format("segment {}: reserve [{}, +{}) of a mapping of {}",
                                               name_, offset, length, length_));
    }
    if (access_ != Access::kReadWrite) {
      return absl::FailedPreconditionError(
          fmt::format("segment {}: reserve needs a read-write mapping", name_));
    }
    if (length == 0) return absl::OkStatus();
    const uint64_t missing = memory_->Reserve(offset_ + offset, length);
    if (missing == 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(fmt::format(
        "segment {}: needs {} bytes, {} bytes free in the fake", name_, missing, account_->free()));
  }

  void Populate(size_t, size_t) override {}  // its pages are all there

  absl::Status Lock() override {
    if (has_lock_) return absl::OkStatus();
    absl::Status status = memory_->Lock(name_);
    has_lock_ = status.ok();
    return status;
  }

 private:
  const std::string name_;
  const std::shared_ptr<FakeSegmentMemory> memory_;
  const std::shared_ptr<FakeMemoryAccount> account_;
  const Access access_;
  const uint64_t offset_;
  const uint64_t length_;
  bool has_lock_ = false;
};

}  // namespace

FakeHostMemory::FakeHostMemory(uint64_t bytes_max)
    : account_(std::make_shared<FakeMemoryAccount>(bytes_max)) {}

FakeHostMemory::~FakeHostMemory() = default;

uint64_t FakeHostMemory::bytes_used() const { return account_->used(); }
uint64_t FakeHostMemory::bytes_max() const { return account_->max(); }
void FakeHostMemory::set_bytes_max(uint64_t bytes_max) { account_->set_max(bytes_max); }

absl::StatusOr<uint64_t> FakeHostMemory::ReservedBytes(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = segments_.find(name);
  if (found == segments_.end()) return absl::NotFoundError(fmt::format("no segment {}", name));
  return found->second.memory->reserved_bytes();
}

void FakeHostMemory::set_ram_available(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  ram_available_ = bytes;
}

void FakeHostMemory::set_memlock_limit(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  memlock_limit_ = bytes;
}

void FakeHostMemory::FailCreates(std::optional<absl::Status> status) {
  std::lock_guard lock(mutex_);
  create_failure_ = std::move(status);
}

void FakeHostMemory::FlipBit(const std::string& name, uint64_t offset, int bit) {
  std::lock_guard lock(mutex_);
  const auto found = segments_.find(name);
  UNREFT_CHECK(found != segments_.end(), "no segment {}", name);
  const FakeSegmentMemory& memory = *found->second.memory;
  UNREFT_CHECK(memory.IsReserved(offset), "byte {} of {} is not reserved", offset, name);
  UNREFT_CHECK(bit >= 0 && bit < 8, "bit {}", bit);
  memory.view(Access::kReadWrite)[offset] ^= std::byte{1} << bit;
}

std::vector<std::string> FakeHostMemory::Names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : segments_) names.push_back(name);
  return names;
}

absl::StatusOr<std::unique_ptr<Segment>> FakeSegmentStore::Create(const std::string& name,
                                                                  uint64_t bytes) {
  if (absl::Status status = CheckSegmentName(name); !status.ok()) return status;
  if (bytes == 0) return absl::InvalidArgumentError(fmt::format("segment {}: zero bytes", name));
  std::lock_guard lock(host_.mutex_);
  if (host_.create_failure_) return *host_.create_failure_;
  if (host_.segments_.contains(name)) {
    return absl::AlreadyExistsError(fmt::format("segment {} exists", name));
  }
  auto memory = std::make_shared<FakeSegmentMemory>(bytes, host_.account_);
  host_.segments_[name] = {memory, uid_};
  return std::make_unique<FakeSegment>(name, memory, host_.account_, Access::kReadWrite, 0, bytes);
}

absl::StatusOr<std::unique_ptr<Segment>> FakeSegmentStore::Open(const std::string& name,
                                                                Access access, uint64_t offset,
                                                                uint64_t length) {
  if (absl::Status status = CheckSegmentName(name); !status.ok()) return status;
  std::lock_guard lock(host_.mutex_);
  const auto found = host_.segments_.find(name);
  if (found == host_.segments_.end()) {
    return absl::NotFoundError(fmt::format("no segment {}", name));
  }
  const auto& [memory, owner] = found->second;
  if (owner != uid_) {
    return absl::PermissionDeniedError(
        fmt::format("segment {} belongs to user {}, this process is {}", name, owner, uid_));
  }
  const uint64_t size = memory->bytes();
  if (offset % kPageBytes != 0 || offset >= size || length > size - offset) {
    return absl::OutOfRangeError(
        fmt::format("segment {} has {} bytes: cannot map [{}, +{}) (offsets are multiples of {})",
                    name, size, offset, length, kPageBytes));
  }
  return std::make_unique<FakeSegment>(name, memory, host_.account_, access, offset,
                                       length == 0 ? size - offset : length);
}

absl::StatusOr<std::vector<SegmentInfo>> FakeSegmentStore::List(std::string_view prefix) {
  std::lock_guard lock(host_.mutex_);
  std::vector<SegmentInfo> found;
  for (const auto& [name, entry] : host_.segments_) {
    if (std::string_view(name).starts_with(prefix)) found.push_back({name, entry.memory->bytes()});
  }
  return found;
}

absl::Status FakeSegmentStore::Remove(const std::string& name) {
  if (absl::Status status = CheckSegmentName(name); !status.ok()) return status;
  std::lock_guard lock(host_.mutex_);
  const auto found = host_.segments_.find(name);
  if (found == host_.segments_.end()) {
    return absl::NotFoundError(fmt::format("no segment {}", name));
  }
  found->second.memory->set_removed();
  host_.segments_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<MemoryCapacity> FakeSegmentStore::Capacity() {
  std::lock_guard lock(host_.mutex_);
  return MemoryCapacity{.segments_free = host_.account_->free(),
                        .ram_available = host_.ram_available_,
                        .memlock_limit = host_.memlock_limit_};
}

}  // namespace unreft
