#include "durable/posix_cold_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace unreft::durable {
namespace {

constexpr size_t kBlockBytes = 4096;  // what O_DIRECT is sure to take, of memory and of files
constexpr int kTriesMax = 100;        // while somebody else removes the directory each time
constexpr char kOwnFiles[] = "/proc/self/fd";

bool IsUnsupported(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS || error == EISDIR;
}

// Of a directory that was removed ext4 says EPERM where another system says ENOENT. Keeps errno.
bool IsRemoved(int directory) {
  const int error = errno;
  struct stat found {};
  const bool is_removed = fstat(directory, &found) == 0 && found.st_nlink == 0;
  errno = error;
  return is_removed;
}

// Others may remove a directory as it gets empty, and then it is made again.
template <typename Step>
int Retried(Step step) {
  int error = ENOENT;
  for (int i = 0; i < kTriesMax && error == ENOENT; ++i) error = step();
  return error;
}

class PosixColdFile final : public ColdFile {
 public:
  PosixColdFile(std::shared_ptr<const PosixColdRoot> root, std::string_view name, bool direct,
                uint64_t buffer_bytes)
      : root_(std::move(root)), name_(name), direct_(direct), buffer_bytes_(buffer_bytes) {}

  ~PosixColdFile() override {
    if (is_there_) return;
    if (!part_.empty()) unlinkat(way_.holder(), part_.c_str(), 0);
    file_ = UniqueFd();
    way_.RemoveEmpty();
  }

  absl::Status Begin() {
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, buffer_bytes_)));
    if (buffer_ == nullptr) {
      return absl::ResourceExhaustedError(
          fmt::format("write '{}/{}': no {} bytes of memory for its buffer", root_->path, name_,
                      buffer_bytes_));
    }
    const int error = Retried([this] {
      if (const int error = way_.Open(*root_, name_, /*make=*/true); error != 0) return error;
      struct stat found {};
      if (fstatat(way_.holder(), way_.leaf(), &found, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
      return OpenNew();
    });
    if (error != 0) return ColdFailure(*root_, error, "create", name_);
    if (direct_ && root_->options.calls.set_direct(file_.get()) != 0) direct_ = false;
    return absl::OkStatus();
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    if (is_there_) return Finished();
    while (status_.ok() && !bytes.empty()) {
      const size_t count = std::min<uint64_t>(bytes.size(), buffer_bytes_ - filled_);
      std::memcpy(buffer_.get() + filled_, bytes.data(), count);
      filled_ += count;
      bytes_ += count;
      bytes = bytes.subspan(count);
      if (filled_ == buffer_bytes_) status_ = Flush();
    }
    return status_;
  }

  uint64_t bytes() const override { return bytes_; }

  absl::Status Finish() override {
    if (is_there_) return Finished();
    if (status_.ok()) status_ = Flush();
    if (status_.ok()) status_ = MakeDurable();
    if (status_.ok()) status_ = Publish();
    return status_;
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  absl::Status Finished() const {
    return absl::FailedPreconditionError(
        fmt::format("'{}/{}' is finished already", root_->path, name_));
  }

  // 0, or errno.
  int OpenNew() {
    const auto& open = root_->options.calls.open;
    if (root_->has_proc) {
      file_ = UniqueFd(open(way_.holder(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
      if (file_) return 0;
      if (!IsUnsupported(errno)) return IsRemoved(way_.holder()) ? ENOENT : errno;
    }
    uint64_t random[2] = {};
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) return EAGAIN;
    part_ = fmt::format("{}{:016x}{:016x}", kColdUnfinishedPrefix, random[0], random[1]);
    file_ = UniqueFd(open(way_.holder(), part_.c_str(),
                          O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0666));
    if (file_) return 0;
    part_.clear();
    return errno;
  }

  void StopDirect() {
    direct_ = false;
    fcntl(file_.get(), F_SETFL, fcntl(file_.get(), F_GETFL) & ~O_DIRECT);
  }

  absl::Status FailedWrite(int error, uint64_t written) const {
    return ColdFailure(
        *root_, error,
        fmt::format("write {} bytes, after the first {} of", bytes_ - written, written), name_);
  }

  // Writes what the buffer has, of which only the last may be no whole buffer.
  absl::Status Flush() {
    if (filled_ == 0) return absl::OkStatus();
    const uint64_t offset = bytes_ - filled_;
    // O_DIRECT takes whole blocks: what is too much is cut off again.
    const size_t padded = (filled_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    std::memset(buffer_.get() + filled_, 0, padded - filled_);
    size_t done = 0;
    while (done < filled_) {
      if (done % kBlockBytes != 0 && direct_) StopDirect();  // as a short write left it
      const size_t end = direct_ ? padded : filled_;
      const ssize_t count = root_->options.calls.pwrite(
          file_.get(), buffer_.get() + done, end - done, static_cast<off_t>(offset + done));
      if (count > 0) {
        done += static_cast<size_t>(count);
      } else if (count == 0) {
        return FailedWrite(EIO, offset + done);
      } else if (errno == EINVAL && direct_) {
        StopDirect();
      } else if (errno != EINTR) {
        return FailedWrite(errno, offset + done);
      }
    }
    if (done > filled_ &&
        Uninterrupted([&] { return ftruncate(file_.get(), static_cast<off_t>(bytes_)); }) != 0) {
      return FailedWrite(errno, bytes_);
    }
    const size_t flushed = std::exchange(filled_, 0);
    return direct_ ? absl::OkStatus() : PushOut(offset, flushed);
  }

  // Keeps the page cache small: starts writing back these bytes, and drops those before them.
  absl::Status PushOut(uint64_t offset, uint64_t count) {
    const auto write_back = [&](uint64_t from, uint64_t bytes, unsigned flags) {
      return sync_file_range(file_.get(), static_cast<off_t>(from), static_cast<off_t>(bytes),
                             flags) == 0
                 ? 0
                 : errno;
    };
    int error = write_back(offset, count, SYNC_FILE_RANGE_WRITE);
    if (error == 0 && offset > dropped_) {
      error = write_back(
          dropped_, offset - dropped_,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      posix_fadvise(file_.get(), static_cast<off_t>(dropped_),
                    static_cast<off_t>(offset - dropped_), POSIX_FADV_DONTNEED);
      dropped_ = offset;
    }
    // Any other error says that the file system cannot do this, which it need not.
    const bool is_lost = error == EIO || error == ENOSPC || error == EDQUOT;
    return is_lost ? FailedWrite(error, dropped_) : absl::OkStatus();
  }

  absl::Status MakeDurable() {
    const auto& sync = root_->options.calls.fdatasync;
    if (Uninterrupted([&] { return sync(file_.get()); }) != 0) return FailedWrite(errno, 0);
    if (dropped_ > 0) posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
    return absl::OkStatus();
  }

  absl::Status Publish() {
    int error = part_.empty() ? Retried([this] {
      if (const int error = way_.Open(*root_, name_, /*make=*/true); error != 0) return error;
      return Link(AT_FDCWD, fmt::format("{}/{}", kOwnFiles, file_.get()).c_str());
    })
                              : Rename();
    if (error == ENOENT) {
      return absl::AbortedError(
          fmt::format("finish '{}/{}': it, or its directory, was removed while it was under way: "
                      "write it again",
                      root_->path, name_));
    }
    if (error != 0) {
      return IsUnsupported(error) || error == EMLINK
                 ? absl::UnimplementedError(fmt::format("finish '{}/{}': {}: needed a file system "
                                                        "with hard links, or with renameat2 "
                                                        "and RENAME_NOREPLACE",
                                                        root_->path, name_, strerror(error)))
                 : ColdFailure(*root_, error, "finish", name_);
    }
    is_there_ = true;
    error = way_.Sync(*root_);
    file_ = UniqueFd();
    buffer_.reset();
    if (error == 0) return absl::OkStatus();
    return absl::UnavailableError(fmt::format(
        "'{}/{}' is there, but may be gone after a crash, as its directories cannot be synced: {}",
        root_->path, name_, strerror(error)));
  }

  // Gives the file its name. 0, or errno.
  int Link(int directory, const char* from) const {
    if (linkat(directory, from, way_.holder(), way_.leaf(), AT_SYMLINK_FOLLOW) == 0) return 0;
    // Over NFS an answer may be lost, and the call made again finds what it did itself.
    const int error = errno;
    struct stat own {};
    struct stat named {};
    const bool is_own = error == EEXIST && fstat(file_.get(), &own) == 0 &&
                        fstatat(way_.holder(), way_.leaf(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                        own.st_ino == named.st_ino && own.st_dev == named.st_dev;
    return is_own ? 0 : error;
  }

  // The same, of a file that has a hidden name, in the same directory.
  int Rename() {
    if (root_->options.calls.rename(way_.holder(), part_.c_str(), way_.leaf()) == 0) return 0;
    if (!IsUnsupported(errno)) return errno;
    const int error = Link(way_.holder(), part_.c_str());
    if (error == 0) unlinkat(way_.holder(), part_.c_str(), 0);
    return error;
  }

  const std::shared_ptr<const PosixColdRoot> root_;
  const std::string name_;
  bool direct_;
  const uint64_t buffer_bytes_;
  ColdWay way_;
  std::string part_;  // its hidden name, in the last directory of the way; empty: it has none
  UniqueFd file_;
  std::unique_ptr<std::byte, Free> buffer_;
  size_t filled_ = 0;     // of the buffer
  uint64_t bytes_ = 0;    // appended, those in the buffer included
  uint64_t dropped_ = 0;  // from the page cache, from the beginning
  absl::Status status_;
  bool is_there_ = false;  // under its name
};

}  // namespace

absl::StatusOr<std::unique_ptr<ColdFile>> BeginPosixColdFile(
    std::shared_ptr<const PosixColdRoot> root, std::string_view name, bool direct,
    uint64_t buffer_bytes) {
  if (absl::Status status = CheckColdName(name); !status.ok()) return status;
  auto file = std::make_unique<PosixColdFile>(std::move(root), name, direct, buffer_bytes);
  if (absl::Status status = file->Begin(); !status.ok()) return status;
  return file;
}

}  // namespace unreft::durable
