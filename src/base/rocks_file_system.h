// The disk as RocksDB sees it: an error ends its writing, and RocksDB does not learn of it.
//
// Debian's build of RocksDB has its assertions on, and one of them ends the process when a file is
// used on which a write has failed. So after the first change that fails nothing is changed on the
// disk any more, and RocksDB is told that all is well: the disk is as if the process had died in
// that moment, from which the database recovers when it is opened anew, by a new file system.
// Whoever uses the database asks after each call whether the disk has failed meanwhile.
#pragma once

#include <rocksdb/file_system.h>

#include <functional>
#include <memory>

namespace unreft {

// Whether a change on a disk fails; shared by a file system and its open files. Thread-safe.
class DiskErrors;

// For tests: asked by any thread before each change on the disk, of a file's bytes or of the
// directory, whether it fails.
using DiskFails = std::function<bool(bool of_bytes)>;

class RocksFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit RocksFileSystem(DiskFails fails);

  const char* Name() const override { return "UnreftFileSystem"; }

  // Of the first change that failed; OK: none.
  rocksdb::IOStatus first_error() const;
  // From now on nothing is changed.
  void Stop();

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* file,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus Truncate(const std::string& name, size_t size,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDir(const std::string& name, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDirIfMissing(const std::string& name, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteDir(const std::string& name, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override;

 private:
  const std::shared_ptr<DiskErrors> errors_;
};

}  // namespace unreft
