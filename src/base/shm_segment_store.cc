#include "base/shm_segment_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/fork_guard.h"
#include "base/host_memory.h"
#include "base/lost_pages.h"
#include "base/unique_fd.h"

namespace unreft {
namespace bip = boost::interprocess;

// Unmaps on a thread of its own, in order. Thread-safe.
class BackgroundUnmapper {
 public:
  BackgroundUnmapper() : thread_([this] { Run(); }) {}
  ~BackgroundUnmapper() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Take(bip::shared_memory_object file, bip::mapped_region region) {
    struct stat info{};
    const bool is_removed =
        fstat(file.get_mapping_handle().handle, &info) == 0 && info.st_nlink == 0;
    const uint64_t bytes = is_removed ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
    {
      std::lock_guard lock(mutex_);
      freeing_ += bytes;
      queue_.push_back({std::move(file), std::move(region), bytes});
    }
    changed_.notify_all();
  }

  void WaitUntilIdle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_ && queue_.empty(); });
  }

  // What will be free, if nobody else maps it.
  uint64_t freeing() const {
    std::lock_guard lock(mutex_);
    return freeing_;
  }

 private:
  struct Mapping {
    bip::shared_memory_object file;
    bip::mapped_region region;
    uint64_t bytes = 0;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      busy_ = true;
      std::optional<Mapping> mapping = std::move(queue_.front());
      queue_.pop_front();
      const uint64_t bytes = mapping->bytes;
      lock.unlock();
      mapping.reset();
      lock.lock();
      busy_ = false;
      freeing_ -= bytes;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Mapping> queue_;
  bool busy_ = false;
  bool ending_ = false;
  uint64_t freeing_ = 0;

  std::thread thread_;  // last, as it uses the others
};

namespace {

constexpr char kShmDirectory[] = "/dev/shm";
constexpr mode_t kMode = 0600;
constexpr uint64_t kOffsetUnit = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

std::string PathOf(const std::string& name) { return kShmDirectory + name; }

// A request about the lock of a whole file; the kernel wants l_pid to be 0.
struct flock WholeFile(short type) {
  struct flock request{};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  return request;
}

// Between a name and what makes it one of its own: no segment's name has it.
constexpr char kOwnMark = '~';

// Nobody knows it beforehand, so nobody can have taken it.
std::string OwnName(const std::string& name) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) random = 0;
  return fmt::format("{}{}{:016x}", name, kOwnMark, random);
}

// A link, a pipe or a directory is none, whosever it is: opening it might lead elsewhere, or wait.
bool IsOwnFile(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
}

// The names of this user's files that begin so, sorted.
absl::StatusOr<std::vector<std::string>> OwnFiles(std::string_view prefix) {
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator entry(kShmDirectory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = "/" + entry->path().filename().string();
    // Something may be removed meanwhile: then it is not there.
    if (name.starts_with(prefix) && IsOwnFile(entry->path())) found.push_back(std::move(name));
  }
  if (error) return absl::ErrnoToStatus(error.value(), fmt::format("list {}", kShmDirectory));
  std::sort(found.begin(), found.end());
  return found;
}

// The file of the segment of that name: of the name itself, or, when another user has taken that,
// or had, of a name of its own. None when neither is there.
std::optional<std::string> FileOf(const std::string& name) {
  if (IsOwnFile(PathOf(name))) return name;
  const auto own = OwnFiles(name + kOwnMark);
  if (!own.ok() || own->empty()) return std::nullopt;
  return own->front();
}

// The only place where exceptions of Boost.Interprocess arise; runs `body`, returns its errno or 0.
template <typename Body>
int CatchErrno(Body body) {
  try {
    body();
    return 0;
  } catch (const bip::interprocess_exception& error) {
    return error.get_native_error() != 0 ? error.get_native_error() : EIO;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

std::string BytesFree() {
  const uint64_t free = FileSystemFreeBytes(kShmDirectory);
  return free == UINT64_MAX ? std::string("unknown") : fmt::format("{}", free);
}

class ShmSegment final : public Segment {
 public:
  // `unmapper`: null, or who unmaps it.
  ShmSegment(std::string name, bip::shared_memory_object file, bip::mapped_region region,
             uint64_t offset, std::shared_ptr<BackgroundUnmapper> unmapper)
      : name_(std::move(name)),
        file_(std::move(file)),
        region_(std::move(region)),
        offset_(offset),
        unmapper_(std::move(unmapper)),
        known_(name_, bytes(), fd(), offset) {
    AdviseMapping();
  }
  ~ShmSegment() override {
    known_.Forget();
    if (has_lock_) {  // not only when it is unmapped
      struct flock none = WholeFile(F_UNLCK);
      fcntl(fd(), F_OFD_SETLK, &none);
    }
    if (unmapper_ != nullptr) unmapper_->Take(std::move(file_), std::move(region_));
  }

  const std::string& name() const override { return name_; }

  std::span<std::byte> bytes() override {
    return {static_cast<std::byte*>(region_.get_address()), region_.get_size()};
  }

  absl::Status Reserve(size_t offset, size_t length) override {
    if (offset > region_.get_size() || length > region_.get_size() - offset) {
      return absl::OutOfRangeError(fmt::format("segment {}: reserve [{}, +{}) of a mapping of {}",
                                               name_, offset, length, region_.get_size()));
    }
    if (file_.get_mode() != bip::read_write) {
      return absl::FailedPreconditionError(
          fmt::format("segment {}: reserve needs a read-write mapping", name_));
    }
    if (length == 0) return absl::OkStatus();
    absl::Status status = Allocate(offset, length);
    if (absl::IsResourceExhausted(status) && unmapper_ != nullptr) {
      unmapper_->WaitUntilIdle();  // it may be so already: after this one failed
      status = Allocate(offset, length);
    }
#ifdef MADV_POPULATE_WRITE
    // Zeroes the pages now, not under the first copy.
    if (status.ok()) Advise(offset, length, MADV_POPULATE_WRITE);
#endif
    return status;
  }

  void Populate(size_t offset, size_t length) override {
#ifdef MADV_POPULATE_READ
    const size_t begin = std::min(offset, region_.get_size());
    Advise(begin, std::min(length, region_.get_size() - begin), MADV_POPULATE_READ);
#endif
  }

  // By a lock of the open file description: neither a forked child's end nor another opening's lets
  // go of it, and whoever asks for it (IsServed) takes nothing.
  absl::Status Lock() override {
    struct flock all = WholeFile(F_WRLCK);
    int result = fcntl(fd(), F_OFD_SETLK, &all);
    while (result != 0 && errno == EINTR) result = fcntl(fd(), F_OFD_SETLK, &all);
    if (result != 0 && (errno == EAGAIN || errno == EACCES)) {
      return absl::FailedPreconditionError(
          fmt::format("segment {} is served by another process", name_));
    }
    if (result != 0) return absl::ErrnoToStatus(errno, "lock segment " + name_);
    struct stat own{};
    struct stat named{};
    const std::optional<std::string> file = FileOf(name_);
    if (file && fstat(fd(), &own) == 0 && stat(PathOf(*file).c_str(), &named) == 0 &&
        own.st_ino == named.st_ino) {
      has_lock_ = true;
      return absl::OkStatus();
    }
    return absl::NotFoundError(fmt::format("segment {} was removed meanwhile", name_));
  }

 private:
  int fd() const { return file_.get_mapping_handle().handle; }

  // The address of a mapped byte, rounded down to its page, as madvise wants it.
  std::pair<void*, size_t> Pages(size_t offset, size_t length) const {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* first = static_cast<char*>(region_.get_address()) + offset;
    const size_t before = reinterpret_cast<uintptr_t>(first) % page;
    return {first - before, length + before};
  }

  void AdviseMapping() {
    const auto [address, length] = Pages(0, region_.get_size());
    madvise(address, length, MADV_DONTFORK);
    // A hint, for hosts whose shmem_enabled is "advise".
    if (length >= kHugePageBytes) madvise(address, length, MADV_HUGEPAGE);
  }

  absl::Status Full(size_t length) const {
    return absl::ResourceExhaustedError(
        fmt::format("segment {}: needs {} bytes, {} bytes free in {}", name_, length, BytesFree(),
                    kShmDirectory));
  }

  // Gives the range its pages, all or none: a failing fallocate takes back what it added.
  absl::Status Allocate(size_t offset, size_t length) {
    // What can never fit is refused before it fills the file system for a while.
    struct stat info{};
    if (fstat(fd(), &info) != 0) return absl::ErrnoToStatus(errno, "stat segment " + name_);
    const uint64_t present = static_cast<uint64_t>(info.st_blocks) * 512;
    const uint64_t free = FileSystemFreeBytes(kShmDirectory);
    if (length > present && length - present > free) return Full(length);

    int result = 0;
    do {
      result = fallocate(fd(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_ + offset),
                         static_cast<off_t>(length));
    } while (result != 0 && errno == EINTR);
    if (result == 0) return absl::OkStatus();
    if (errno == ENOSPC || errno == ENOMEM) return Full(length);
    return absl::ErrnoToStatus(errno, fmt::format("reserve {} bytes of segment {}", length, name_));
  }

  // Kernels before 5.14 refuse to populate, and then the first touch does it.
  void Advise(size_t offset, size_t length, int advice) {
    const auto [address, bytes] = Pages(offset, length);
    madvise(address, bytes, advice);
  }

  const std::string name_;
  bip::shared_memory_object file_;
  bip::mapped_region region_;
  const uint64_t offset_;  // of the mapping in the segment
  const std::shared_ptr<BackgroundUnmapper> unmapper_;
  bool has_lock_ = false;
  KnownMapping known_;
};

absl::StatusOr<std::unique_ptr<Segment>> Map(const std::string& name,
                                             bip::shared_memory_object file, uint64_t offset,
                                             uint64_t length,
                                             std::shared_ptr<BackgroundUnmapper> unmapper,
                                             bool closes_file = false) {
  bip::mapped_region region;
  const int error = CatchErrno([&] {
    region = bip::mapped_region(file, file.get_mode(), static_cast<bip::offset_t>(offset), length);
  });
  if (error != 0) {
    return absl::ErrnoToStatus(error, fmt::format("map {} bytes of segment {}", length, name));
  }
  if (closes_file) file = bip::shared_memory_object();
  return std::make_unique<ShmSegment>(name, std::move(file), std::move(region), offset,
                                      std::move(unmapper));
}

absl::Status NotOurs(const std::string& name, uid_t owner) {
  return absl::PermissionDeniedError(
      fmt::format("segment {} belongs to user {}, this process is {}", name, owner, geteuid()));
}

// There is none of this user's.
absl::Status Absent(const std::string& name) {
  struct stat info{};
  if (lstat(PathOf(name).c_str(), &info) != 0) {
    return absl::NotFoundError(fmt::format("no segment {}", name));
  }
  if (info.st_uid != geteuid()) return NotOurs(name, info.st_uid);
  return absl::FailedPreconditionError(
      fmt::format("{} is no regular file, and so no segment", PathOf(name)));
}

uint64_t Plus(uint64_t bytes, uint64_t more) {
  return bytes > UINT64_MAX - more ? UINT64_MAX : bytes + more;
}

}  // namespace

ShmSegmentStore::ShmSegmentStore(uint64_t background_bytes, Descriptors descriptors)
    : background_bytes_(background_bytes),
      descriptors_(descriptors),
      unmapper_(background_bytes == UINT64_MAX ? nullptr : std::make_shared<BackgroundUnmapper>()) {
}

ShmSegmentStore::~ShmSegmentStore() {
  if (unmapper_ != nullptr) unmapper_->WaitUntilIdle();
}

absl::StatusOr<std::unique_ptr<Segment>> ShmSegmentStore::Create(const std::string& name,
                                                                 uint64_t bytes) {
  if (absl::Status status = CheckSegmentName(name); !status.ok()) return status;
  if (bytes == 0) return absl::InvalidArgumentError(fmt::format("segment {}: zero bytes", name));

  bip::shared_memory_object file;
  std::string file_name = name;
  const auto create = [&] {
    return CatchErrno([&] {
      file = bip::shared_memory_object(bip::create_only, file_name.c_str(), bip::read_write,
                                       bip::permissions(kMode));
    });
  };
  int error = FileOf(name) ? EEXIST : create();
  if (error == EEXIST && !FileOf(name)) {
    file_name = OwnName(name);
    error = create();
    if (error == 0 && on_taken_) on_taken_(Absent(name), file_name);
  }
  if (error == EEXIST) return absl::AlreadyExistsError(fmt::format("segment {} exists", name));
  if (error == ENOSPC) {  // no inode left
    return absl::ResourceExhaustedError(
        fmt::format("segment {}: {} takes no more files", name, kShmDirectory));
  }
  if (error != 0) return absl::ErrnoToStatus(error, "create segment " + name);

  // Not the object's truncate(), which would allocate the pages: that is for Reserve to do.
  absl::StatusOr<std::unique_ptr<Segment>> segment;
  if (ftruncate(file.get_mapping_handle().handle, static_cast<off_t>(bytes)) != 0) {
    segment = absl::ErrnoToStatus(errno, fmt::format("size segment {} to {} bytes", name, bytes));
  } else {
    segment = Map(name, std::move(file), 0, bytes, bytes < background_bytes_ ? nullptr : unmapper_);
  }
  if (!segment.ok()) bip::shared_memory_object::remove(file_name.c_str());
  return segment;
}

absl::StatusOr<std::unique_ptr<Segment>> ShmSegmentStore::Open(const std::string& name,
                                                               Access access, uint64_t offset,
                                                               uint64_t length) {
  if (absl::Status status = CheckSegmentName(name); !status.ok()) return status;
  std::optional<ForkGuard> no_fork;
  if (descriptors_ == Descriptors::kClosed) no_fork.emplace();
  const std::optional<std::string> file_name = FileOf(name);
  if (!file_name) return Absent(name);
  bip::shared_memory_object file;
  const auto mode = access == Access::kReadOnly ? bip::read_only : bip::read_write;
  const int error = CatchErrno(
      [&] { file = bip::shared_memory_object(bip::open_only, file_name->c_str(), mode); });
  if (error == ENOENT) return Absent(name);
  if (error != 0) return absl::ErrnoToStatus(error, "open segment " + name);

  struct stat info{};
  if (fstat(file.get_mapping_handle().handle, &info) != 0) {
    return absl::ErrnoToStatus(errno, "stat segment " + name);
  }
  if (info.st_uid != geteuid()) return NotOurs(name, info.st_uid);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (offset % kOffsetUnit != 0 || offset >= size || length > size - offset) {
    return absl::OutOfRangeError(
        fmt::format("segment {} has {} bytes: cannot map [{}, +{}) (offsets are multiples of {})",
                    name, size, offset, length, kOffsetUnit));
  }
  if (length == 0) length = size - offset;
  return Map(name, std::move(file), offset, length,
             length < background_bytes_ ? nullptr : unmapper_,
             descriptors_ == Descriptors::kClosed);
}

absl::StatusOr<std::vector<SegmentInfo>> ShmSegmentStore::List(std::string_view prefix) {
  const auto files = OwnFiles(prefix);
  if (!files.ok()) return files.status();
  std::map<std::string, uint64_t> bytes_of;  // those of a name of their own by the segment's
  for (const std::string& file : *files) {
    struct stat info{};
    if (lstat(PathOf(file).c_str(), &info) != 0) continue;
    bytes_of.try_emplace(file.substr(0, file.find(kOwnMark)), static_cast<uint64_t>(info.st_size));
  }
  std::vector<SegmentInfo> found;
  for (const auto& [name, bytes] : bytes_of) found.push_back({name, bytes});
  return found;
}

absl::Status ShmSegmentStore::Remove(const std::string& name) {
  if (absl::Status status = CheckSegmentName(name); !status.ok()) return status;
  const std::optional<std::string> file = FileOf(name);
  if (!file) return Absent(name);
  if (bip::shared_memory_object::remove(file->c_str())) return absl::OkStatus();
  if (errno == ENOENT) return Absent(name);
  return absl::ErrnoToStatus(errno, "remove segment " + name);
}

bool ShmSegmentStore::IsServed(const std::string& name) {
  const std::optional<std::string> file = FileOf(name);
  if (!file) return false;
  const UniqueFd fd(open(PathOf(*file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct flock held = WholeFile(F_RDLCK);
  return fd.get() >= 0 && fcntl(fd.get(), F_OFD_GETLK, &held) == 0 && held.l_type != F_UNLCK;
}

absl::StatusOr<MemoryCapacity> ShmSegmentStore::Capacity() {
  const uint64_t freeing = unmapper_ == nullptr ? 0 : unmapper_->freeing();
  return MemoryCapacity{.segments_free = Plus(FileSystemFreeBytes(kShmDirectory), freeing),
                        .ram_available = Plus(RamAvailableBytes(), freeing),
                        .memlock_limit = MemlockLimitBytes()};
}

}  // namespace unreft
