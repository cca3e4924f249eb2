#include "base/rocks_file_system.h"

#include <mutex>
#include <utility>

namespace unreft {

using rocksdb::FSDirectory;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

class DiskErrors {
 public:
  explicit DiskErrors(DiskFails fails) : fails_(std::move(fails)) {}

  // `change`, unless one has failed before. Whoever changes what is not there is told so. `in_part`
  // is what a planted error leaves of it.
  template <typename Change, typename Part>
  IOStatus Try(bool of_bytes, Change change, Part in_part) {
    {
      std::lock_guard lock(mutex_);
      if (is_stopped_) return IOStatus::OK();
      if (fails_ && fails_(of_bytes)) {
        in_part();
        return Fail(IOStatus::NoSpace("a planted error"));
      }
    }
    IOStatus status = change();
    if (status.ok() || status.IsNotFound() || status.IsPathNotFound() || status.IsNotSupported()) {
      return status;
    }
    std::lock_guard lock(mutex_);
    return Fail(std::move(status));
  }

  template <typename Change>
  IOStatus TryBytes(Change change) {
    return Try(true, std::move(change), [] {});
  }
  template <typename Change>
  IOStatus TryNames(Change change) {
    return Try(false, std::move(change), [] {});
  }

  void Stop() {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }

  IOStatus first_error() const {
    std::lock_guard lock(mutex_);
    return first_error_;
  }

 private:
  IOStatus Fail(IOStatus status) {
    if (!std::exchange(is_stopped_, true)) first_error_ = std::move(status);
    return IOStatus::OK();
  }

  const DiskFails fails_;
  mutable std::mutex mutex_;  // covers the two below
  bool is_stopped_ = false;
  IOStatus first_error_;
};

namespace {

class WritableFile final : public FSWritableFile {
 public:
  // `file` is null when the disk has failed before it was made.
  WritableFile(std::shared_ptr<DiskErrors> errors, std::unique_ptr<FSWritableFile> file)
      : errors_(std::move(errors)), file_(std::move(file)) {}

  using FSWritableFile::Append;
  using FSWritableFile::PositionedAppend;
  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    bytes_ += data.size();
    return errors_->Try(
        true, [&] { return file_->Append(data, options, debug); },
        [&] { (void)file_->Append(Slice(data.data(), data.size() / 2), options, debug); });
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    bytes_ = offset + data.size();
    return errors_->TryBytes([&] { return file_->PositionedAppend(data, offset, options, debug); });
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    bytes_ = size;
    return errors_->TryBytes([&] { return file_->Truncate(size, options, debug); });
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    return errors_->TryBytes([&] { return file_->Close(options, debug); });
  }
  IOStatus Flush(const IOOptions& options, IODebugContext* debug) override {
    return errors_->TryBytes([&] { return file_->Flush(options, debug); });
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return errors_->TryBytes([&] { return file_->Sync(options, debug); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return errors_->TryBytes([&] { return file_->Fsync(options, debug); });
  }
  IOStatus RangeSync(uint64_t offset, uint64_t bytes, const IOOptions& options,
                     IODebugContext* debug) override {
    return errors_->TryBytes([&] { return file_->RangeSync(offset, bytes, options, debug); });
  }
  bool IsSyncThreadSafe() const override { return true; }  // as that of every POSIX file
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return bytes_; }

 private:
  const std::shared_ptr<DiskErrors> errors_;
  const std::unique_ptr<FSWritableFile> file_;
  uint64_t bytes_ = 0;
};

class Directory final : public FSDirectory {
 public:
  Directory(std::shared_ptr<DiskErrors> errors, std::unique_ptr<FSDirectory> directory)
      : errors_(std::move(errors)), directory_(std::move(directory)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return errors_->TryNames([&] { return directory_->Fsync(options, debug); });
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions& how) override {
    return errors_->TryNames([&] { return directory_->FsyncWithDirOptions(options, debug, how); });
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    return errors_->TryNames([&] { return directory_->Close(options, debug); });
  }

 private:
  const std::shared_ptr<DiskErrors> errors_;
  const std::unique_ptr<FSDirectory> directory_;
};

}  // namespace

RocksFileSystem::RocksFileSystem(DiskFails fails)
    : FileSystemWrapper(rocksdb::FileSystem::Default()),
      errors_(std::make_shared<DiskErrors>(std::move(fails))) {}

IOStatus RocksFileSystem::first_error() const { return errors_->first_error(); }

void RocksFileSystem::Stop() { errors_->Stop(); }

IOStatus RocksFileSystem::NewWritableFile(const std::string& name,
                                          const rocksdb::FileOptions& options,
                                          std::unique_ptr<FSWritableFile>* file,
                                          IODebugContext* debug) {
  std::unique_ptr<FSWritableFile> made;
  IOStatus status =
      errors_->TryNames([&] { return target()->NewWritableFile(name, options, &made, debug); });
  if (status.ok()) *file = std::make_unique<WritableFile>(errors_, std::move(made));
  return status;
}

// Only to write on in files of before, which no database does that is set up as ours.
IOStatus RocksFileSystem::ReopenWritableFile(const std::string& name, const rocksdb::FileOptions&,
                                             std::unique_ptr<FSWritableFile>*, IODebugContext*) {
  return IOStatus::NotSupported("writing on in " + name);
}

IOStatus RocksFileSystem::ReuseWritableFile(const std::string& name, const std::string&,
                                            const rocksdb::FileOptions&,
                                            std::unique_ptr<FSWritableFile>*, IODebugContext*) {
  return IOStatus::NotSupported("another file for " + name);
}

IOStatus RocksFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                       std::unique_ptr<FSDirectory>* directory,
                                       IODebugContext* debug) {
  std::unique_ptr<FSDirectory> opened;
  IOStatus status = target()->NewDirectory(name, options, &opened, debug);
  if (status.ok()) *directory = std::make_unique<Directory>(errors_, std::move(opened));
  return status;
}

IOStatus RocksFileSystem::DeleteFile(const std::string& name, const IOOptions& options,
                                     IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->DeleteFile(name, options, debug); });
}

IOStatus RocksFileSystem::Truncate(const std::string& name, size_t size, const IOOptions& options,
                                   IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->Truncate(name, size, options, debug); });
}

IOStatus RocksFileSystem::CreateDir(const std::string& name, const IOOptions& options,
                                    IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->CreateDir(name, options, debug); });
}

IOStatus RocksFileSystem::CreateDirIfMissing(const std::string& name, const IOOptions& options,
                                             IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->CreateDirIfMissing(name, options, debug); });
}

IOStatus RocksFileSystem::DeleteDir(const std::string& name, const IOOptions& options,
                                    IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->DeleteDir(name, options, debug); });
}

IOStatus RocksFileSystem::RenameFile(const std::string& from, const std::string& to,
                                     const IOOptions& options, IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->RenameFile(from, to, options, debug); });
}

IOStatus RocksFileSystem::LinkFile(const std::string& from, const std::string& to,
                                   const IOOptions& options, IODebugContext* debug) {
  return errors_->TryNames([&] { return target()->LinkFile(from, to, options, debug); });
}

}  // namespace unreft
