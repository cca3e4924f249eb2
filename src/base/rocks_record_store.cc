#include "base/rocks_record_store.h"

#include <fmt/format.h>
#include <pthread.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdarg>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/lock_file.h"
#include "base/rocks_file_system.h"

namespace unreft {
namespace {

// RocksDB's own log would lie on the same disk. Where that is full its writer fails, and an
// assertion ends the process when the database is opened again. What matters comes as a status.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Records are tiny and few: RocksDB's defaults would take 64 MiB and more.
rocksdb::Options DatabaseOptions(const RocksRecordStoreOptions& options) {
  rocksdb::Options result;
  result.create_if_missing = true;
  // After the death of the host the log may end in garbage: everything up to it counts.
  result.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  result.write_buffer_size = options.write_buffer_bytes;
  result.max_write_buffer_number = 2;
  result.max_total_wal_size = 4 * options.write_buffer_bytes;
  result.max_open_files = 64;
  result.compression = rocksdb::kNoCompression;
  result.allow_fallocate = false;
  result.manifest_preallocation_size = 64 << 10;
  result.info_log = std::make_shared<NoLog>();
  result.stats_dump_period_sec = 0;
  result.stats_persist_period_sec = 0;
  // An error closes the database (see RecordDatabase), so RocksDB need not try on its own.
  result.max_bgerror_resume_count = 0;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(1 << 20);
  result.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return result;
}

absl::Status ToStatus(const rocksdb::Status& status, const std::string& directory) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = fmt::format("records in {}: {}", directory, status.ToString());
  if (status.IsNoSpace() || status.subcode() == rocksdb::Status::kSpaceLimit) {
    return absl::ResourceExhaustedError(message);
  }
  if (status.IsCorruption()) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

// The first key behind all that begin with `prefix`; empty when there is none.
std::string EndOfPrefix(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

// The database, open or closed by an error: it is not used again after one, but opened anew.
// Single-threaded.
class RecordDatabase {
 public:
  explicit RecordDatabase(RocksRecordStoreOptions options) : options_(std::move(options)) {}

  absl::Status Open() {
    if (db_ != nullptr) return absl::OkStatus();
    if (absl::Status status = CheckSpace(); !status.ok()) return status;
    file_system_ = std::make_shared<RocksFileSystem>(options_.disk_fails);
    env_ = rocksdb::NewCompositeEnv(file_system_);
    rocksdb::Options options = DatabaseOptions(options_);
    options.env = env_.get();
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, options_.directory, &db);
    db_.reset(db);
    return Outcome(status);
  }

  absl::Status Write(const std::vector<RecordChange>& batch, Durability durability) {
    rocksdb::WriteBatch changes;
    for (const RecordChange& change : batch) {
      const rocksdb::Status status =
          change.value ? changes.Put(change.key, *change.value) : changes.Delete(change.key);
      if (!status.ok()) return ToStatus(status, options_.directory);
    }
    const bool was_open = db_ != nullptr;
    absl::Status status = TryWrite(changes, durability);
    // An error of the background may be long over: once more, on a database just opened.
    if (!status.ok() && was_open) status = TryWrite(changes, durability);
    return status;
  }

  // Where the disk takes nothing the records are read all the same.
  absl::StatusOr<std::vector<Record>> Scan(const std::string& prefix) {
    absl::Status status = Open();
    if (status.ok()) return Read(*db_, prefix);
    rocksdb::Options options = DatabaseOptions(options_);
    options.create_if_missing = false;
    rocksdb::DB* db = nullptr;
    const bool is_readable = rocksdb::DB::OpenForReadOnly(options, options_.directory, &db).ok();
    const std::unique_ptr<rocksdb::DB> closed(db);
    if (!is_readable) return status;
    return Read(*closed, prefix);
  }

 private:
  // Opening writes: a new log, and the records of the one before into a table.
  absl::Status CheckSpace() const {
    const uint64_t needed = 2 * options_.write_buffer_bytes;
    struct statvfs disk{};
    if (statvfs(options_.directory.c_str(), &disk) != 0) return absl::OkStatus();
    const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
    if (free >= needed) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        fmt::format("records in {}: No space left on the disk: needed {} bytes free, found {}",
                    options_.directory, needed, free));
  }

  absl::StatusOr<std::vector<Record>> Read(rocksdb::DB& db, const std::string& prefix) const {
    const std::string end = EndOfPrefix(prefix);
    const rocksdb::Slice end_slice(end);
    rocksdb::ReadOptions read;
    if (!end.empty()) read.iterate_upper_bound = &end_slice;
    std::vector<Record> records;
    const std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(read));
    for (it->Seek(prefix); it->Valid(); it->Next()) {
      records.push_back({it->key().ToString(), it->value().ToString()});
    }
    if (!it->status().ok()) return ToStatus(it->status(), options_.directory);
    return records;
  }

  absl::Status TryWrite(rocksdb::WriteBatch& changes, Durability durability) {
    if (absl::Status status = Open(); !status.ok()) return status;
    rocksdb::WriteOptions write;
    write.sync = durability == Durability::kSynced;
    return Outcome(db_->Write(write, &changes));
  }

  // Of a call that may have changed the disk. The log may end in a torn record after an error,
  // behind which nothing would be found again: opening reads what is whole and begins a new log.
  absl::Status Outcome(const rocksdb::Status& status) {
    const rocksdb::IOStatus failed = file_system_->first_error();
    if (status.ok() && failed.ok()) return absl::OkStatus();
    file_system_->Stop();
    db_.reset();
    return ToStatus(failed.ok() ? status : failed, options_.directory);
  }

  const RocksRecordStoreOptions options_;
  // In this order: the database goes first.
  std::shared_ptr<RocksFileSystem> file_system_;
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace

class RocksRecordStore::Impl {
 public:
  Impl(RocksRecordStoreOptions options, LockFile lock, Executor& executor)
      : queue_max_(options.queue_max),
        open_at_once_(options.open_at_once),
        directory_(options.directory),
        lock_(std::move(lock)),
        executor_(executor),
        database_(std::move(options)) {}

  ~Impl() {
    *alive_ = false;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    if (absl::Status status = database_.Open(); open_at_once_ && !status.ok()) return status;
    thread_ = std::thread([this] { RunThread(); });
    pthread_setname_np(thread_.native_handle(), "unreft-records");
    return absl::OkStatus();
  }

  void Write(std::vector<RecordChange> batch, Durability durability, WriteDone done) {
    Submit<absl::Status>(
        [this, batch = std::move(batch), durability] { return database_.Write(batch, durability); },
        std::move(done));
  }

  void Scan(std::string prefix, ScanDone done) {
    Submit<absl::StatusOr<std::vector<Record>>>(
        [this, prefix = std::move(prefix)] { return database_.Scan(prefix); }, std::move(done));
  }

 private:
  // Runs `work` on the thread and then `done` with its result in a turn.
  template <typename Result>
  void Submit(absl::AnyInvocable<Result()> work, absl::AnyInvocable<void(Result)> done) {
    {
      std::lock_guard lock(mutex_);
      if (queue_.size() < queue_max_) {
        queue_.push_back([this, work = std::move(work), done = std::move(done)]() mutable {
          Report(std::move(done), work());
        });
        wake_.notify_one();
        return;
      }
    }
    Report<Result>(std::move(done), absl::ResourceExhaustedError(fmt::format(
                                        "records in {}: {} calls wait already, the limit is {}",
                                        directory_, queue_max_, queue_max_)));
  }

  template <typename Result>
  void Report(absl::AnyInvocable<void(Result)> done, Result result) {
    executor_.Post([alive = alive_, done = std::move(done), result = std::move(result)]() mutable {
      if (*alive) done(std::move(result));
    });
  }

  void RunThread() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Task task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t queue_max_;
  const bool open_at_once_;
  const std::string directory_;
  const LockFile lock_;
  Executor& executor_;
  RecordDatabase database_;  // used only by the thread, once it runs
  // Shared with the reports that are on their way when the store goes.
  const std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);

  std::mutex mutex_;  // covers the two below
  std::deque<Task> queue_;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

RocksRecordStore::RocksRecordStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RocksRecordStore::~RocksRecordStore() = default;

absl::StatusOr<std::unique_ptr<RocksRecordStore>> RocksRecordStore::Open(
    RocksRecordStoreOptions options, Executor& executor) {
  auto lock = LockFile::Acquire(options.directory);
  if (!lock.ok()) return lock.status();
  auto impl = std::make_unique<Impl>(std::move(options), *std::move(lock), executor);
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<RocksRecordStore>(new RocksRecordStore(std::move(impl)));
}

absl::Status RocksRecordStore::Destroy(const std::string& directory) {
  if (access(directory.c_str(), F_OK) != 0 && errno == ENOENT) return absl::OkStatus();
  const rocksdb::Status status = rocksdb::DestroyDB(directory, rocksdb::Options());
  if (!status.ok() && !status.IsNotFound()) return ToStatus(status, directory);
  LockFile::Remove(directory);
  return absl::OkStatus();
}

void RocksRecordStore::Write(std::vector<RecordChange> batch, Durability durability,
                             WriteDone done) {
  impl_->Write(std::move(batch), durability, std::move(done));
}

void RocksRecordStore::Scan(std::string prefix, ScanDone done) {
  impl_->Scan(std::move(prefix), std::move(done));
}

}  // namespace unreft
