// The RecordStore suites on RocksDB, on the fake and on memory, and what only each of them has.

#include "tests/conformance/record_store_conformance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "base/lock_file.h"
#include "base/memory_record_store.h"
#include "base/rocks_record_store.h"
#include "tests/conformance/private_tmpfs.h"
#include "tests/fakes/fake_record_store.h"

namespace unreft {
namespace {

// An empty directory, removed at the end.
class TestDirectory {
 public:
  TestDirectory() {
    std::string path = testing::TempDir() + "unreft_records_XXXXXX";
    UNREFT_CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class RocksWorld : public RecordStoreWorld {
 public:
  World& world() override { return world_; }
  absl::StatusOr<std::unique_ptr<RecordStore>> Open() override {
    return RocksRecordStore::Open({.directory = directory_.path() + "/records"},
                                  world_.executor(0));
  }
  std::string directory() const { return directory_.path() + "/records"; }

 private:
  TestDirectory directory_;
  AsioWorld world_;
};

class FakeRecordWorld : public RecordStoreWorld {
 public:
  explicit FakeRecordWorld(uint64_t seed) : world_(seed), disk_(seed) {}
  World& world() override { return world_; }
  absl::StatusOr<std::unique_ptr<RecordStore>> Open() override {
    return FakeRecordStore::Open(disk_, world_.executor(0));
  }
  FakeDisk& disk() { return disk_; }

 private:
  SimWorld world_;
  FakeDisk disk_;
};

class MemoryRecordWorld : public RecordStoreWorld {
 public:
  explicit MemoryRecordWorld(uint64_t seed) : world_(seed) {}
  World& world() override { return world_; }
  absl::StatusOr<std::unique_ptr<RecordStore>> Open() override {
    return std::make_unique<MemoryRecordStore>(world_.executor(0));
  }

 private:
  SimWorld world_;
};

const WorldMaker<RecordStoreWorld> kRocksWorlds[] = {
    {"Rocks", [] { return std::make_unique<RocksWorld>(); }}};
const auto kFakeWorlds = SimWorlds<RecordStoreWorld, FakeRecordWorld>();

INSTANTIATE_TEST_SUITE_P(Rocks, RecordStoreConformance, testing::ValuesIn(kRocksWorlds),
                         WorldName<RecordStoreWorld>);
INSTANTIATE_TEST_SUITE_P(Fake, RecordStoreConformance, testing::ValuesIn(kFakeWorlds),
                         WorldName<RecordStoreWorld>);
INSTANTIATE_TEST_SUITE_P(Memory, RecordStoreConformance,
                         testing::ValuesIn(SimWorlds<RecordStoreWorld, MemoryRecordWorld>()),
                         WorldName<RecordStoreWorld>);
INSTANTIATE_TEST_SUITE_P(Rocks, DiskRecordStoreConformance, testing::ValuesIn(kRocksWorlds),
                         WorldName<RecordStoreWorld>);
INSTANTIATE_TEST_SUITE_P(Fake, DiskRecordStoreConformance, testing::ValuesIn(kFakeWorlds),
                         WorldName<RecordStoreWorld>);

// Writes and waits for the outcome.
absl::Status WriteNow(World& world, RecordStore& store, std::vector<RecordChange> batch,
                      Durability durability = Durability::kBuffered) {
  std::optional<absl::Status> result;
  world.InTurn([&] {
    store.Write(std::move(batch), durability, [&](absl::Status status) { result = status; });
  });
  UNREFT_CHECK(world.RunUntil([&] { return result.has_value(); }));
  return *result;
}

absl::StatusOr<std::vector<Record>> ScanNow(World& world, RecordStore& store) {
  std::optional<absl::StatusOr<std::vector<Record>>> result;
  world.InTurn([&] { store.Scan("", [&](auto records) { result = std::move(records); }); });
  UNREFT_CHECK(world.RunUntil([&] { return result.has_value(); }));
  return *std::move(result);
}

TEST(RocksRecordStore, TheSecondOpenNamesDirectoryAndHolder) {
  RocksWorld world;
  auto store = world.Open();
  ASSERT_TRUE(store.ok());
  const absl::Status status = world.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(world.directory()));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(getpid())));
}

TEST(RocksRecordStore, TooManyWaitingCallsAreRefused) {
  TestDirectory directory;
  AsioWorld world;
  auto store =
      RocksRecordStore::Open({.directory = directory.path(), .queue_max = 2}, world.executor(0));
  ASSERT_TRUE(store.ok());
  int done = 0;
  int refused = 0;
  world.InTurn([&] {
    for (int i = 0; i < 200; ++i) {
      (*store)->Write({{"k", "v"}}, Durability::kSynced, [&](absl::Status status) {
        ++done;
        if (absl::IsResourceExhausted(status)) ++refused;
      });
    }
  });
  EXPECT_TRUE(world.RunUntil([&] { return done == 200; }));
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 200);
}

TEST(RocksRecordStore, CorruptFilesAreDataLoss) {
  RocksWorld world;
  for (int life = 0; life < 2; ++life) {  // opening moves the records from the log to a table
    auto store = world.Open();
    ASSERT_TRUE(store.ok());
    const std::string value(10000, 'v');
    EXPECT_TRUE(WriteNow(world.world(), **store, {{fmt::format("k{}", life), value}}).ok());
  }
  ASSERT_TRUE(world.Open().ok());
  for (const auto& entry : std::filesystem::directory_iterator(world.directory())) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.write("garbage", 7);
  }
  auto store = world.Open();
  const absl::Status status =
      store.ok() ? ScanNow(world.world(), **store).status() : store.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(world.directory()));
}

TEST(RocksRecordStore, WhatCannotBeOpenedMayBeMendedLater) {
  RocksWorld world;
  {
    auto store = world.Open();
    ASSERT_TRUE(store.ok());
    EXPECT_TRUE(WriteNow(world.world(), **store, {{"k", "v"}}).ok());
  }
  const std::filesystem::path current = world.directory() + "/CURRENT";
  const std::filesystem::path away = world.directory() + "/away";
  std::filesystem::rename(current, away);
  std::ofstream(current) << "garbage";
  const absl::Status refused = world.Open().status();
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr(world.directory()));
  auto store = RocksRecordStore::Open({.directory = world.directory(), .open_at_once = false},
                                      world.world().executor(0));
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(ScanNow(world.world(), **store).status(), refused);
  EXPECT_EQ(WriteNow(world.world(), **store, {{"k", "w"}}), refused);
  std::filesystem::rename(away, current);
  auto records = ScanNow(world.world(), **store);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ((*records)[0].value, "v");
}

// A process that writes until it is killed; says each batch that was reported on `pipe`.
[[noreturn]] void WriteForEver(const std::string& directory, int pipe) {
  AsioWorld world;
  auto store = RocksRecordStore::Open({.directory = directory}, world.executor(0));
  for (uint32_t i = 1; store.ok(); ++i) {
    const std::string value = std::to_string(i);
    if (!WriteNow(world, **store, {{"a", value}, {"b", value}}).ok()) break;
    if (write(pipe, &i, sizeof(i)) != sizeof(i)) break;
  }
  _exit(1);
}

TEST(RocksRecordStoreDeathTest, BufferedBatchesSurviveKill9) {
  RocksWorld world;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) WriteForEver(world.directory(), ends[1]);
  close(ends[1]);
  uint32_t reported = 0;
  while (reported < 50) ASSERT_EQ(read(ends[0], &reported, sizeof(reported)), 4);
  kill(child, SIGKILL);
  while (read(ends[0], &reported, sizeof(reported)) == 4) {
  }
  close(ends[0]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);

  auto store = world.Open();
  ASSERT_TRUE(store.ok()) << store.status();
  const auto records = ScanNow(world.world(), **store);
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 2u);
  EXPECT_EQ((*records)[0].value, (*records)[1].value);
  EXPECT_GE(std::stoul((*records)[0].value), reported);
}

// A disk whose changes fail from one on, until it is mended: those of a full one those of bytes,
// which are then written in part, of a read-only one all.
class FailingDisk {
 public:
  explicit FailingDisk(bool is_full) : is_full_(is_full) {}
  std::function<bool(bool)> Hook() {
    return [this](bool of_bytes) { return (of_bytes || !is_full_) && changes_++ >= good_; };
  }
  void FailAfter(uint64_t good) { good_ = changes_ + good; }
  void Mend() { good_ = UINT64_MAX; }
  uint64_t changes() const { return changes_; }

 private:
  const bool is_full_;
  std::atomic<uint64_t> changes_ = 0;
  std::atomic<uint64_t> good_ = UINT64_MAX;
};

constexpr int kBatches = 8;

struct Failing {
  uint64_t changes = 0;  // that were tried on the failing disk
  bool was_read = false;
};

// Writes, with a disk that fails after so many changes, and once it is mended.
Failing WriteOnFailingDisk(bool is_full, uint64_t good) {
  SCOPED_TRACE(fmt::format("{} changes go well", good));
  TestDirectory directory;
  AsioWorld world;
  FailingDisk disk(is_full);
  const RocksRecordStoreOptions options{.directory = directory.path() + "/records",
                                        .write_buffer_bytes = 64 << 10,  // the least it takes
                                        .open_at_once = false,
                                        .disk_fails = disk.Hook()};
  std::set<std::string> kept;
  const auto write = [&](RecordStore& store, const std::string& key) {
    const std::string value(30 << 10, 'v');  // some of them fill a table
    const auto durability = key.back() % 2 == 0 ? Durability::kSynced : Durability::kBuffered;
    if (WriteNow(world, store, {{key, value}}, durability).ok()) kept.insert(key);
  };
  auto store = *RocksRecordStore::Open(options, world.executor(0));
  write(*store, "before");
  EXPECT_EQ(kept.size(), 1u);
  disk.FailAfter(good);
  const uint64_t from = disk.changes();
  for (int i = 0; i < kBatches; ++i) write(*store, fmt::format("k{}", i));
  Failing result{.changes = disk.changes() - from};
  const auto failing = ScanNow(world, *store);
  if (failing.ok()) {
    EXPECT_GE(failing->size(), kept.size());
    result.was_read = kept.size() <= kBatches;
  }
  store.reset();
  store = *RocksRecordStore::Open(options, world.executor(0));
  disk.Mend();
  write(*store, "after");
  EXPECT_TRUE(kept.contains("after"));
  const auto records = ScanNow(world, *store);
  EXPECT_TRUE(records.ok()) << records.status();
  std::set<std::string> found;
  if (records.ok()) {
    for (const Record& record : *records) found.insert(record.key);
  }
  EXPECT_TRUE(std::ranges::includes(found, kept)) << fmt::format("{}", fmt::join(found, " "));
  return result;
}

// Debian's RocksDB ended the process at the write, or the opening, after one that had failed.
TEST(RocksRecordStore, FailsAndGoesOnAtEveryChangeOfTheDisk) {
  constexpr uint64_t kThreads = 16;  // after an error RocksDB sleeps
  std::vector<std::thread> threads;
  std::atomic<int> read = 0;
  for (const bool is_full : {true, false}) {
    const uint64_t changes = WriteOnFailingDisk(is_full, uint64_t{1} << 40).changes;
    EXPECT_GT(changes, 50u);
    for (uint64_t first = 0; first < kThreads; ++first) {
      threads.emplace_back([&read, is_full, first, changes] {
        for (uint64_t good = first; good < changes; good += kThreads) {
          read += WriteOnFailingDisk(is_full, good).was_read;
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(read, 0);
}

// Fills a small disk, finds the records readable, makes room, and writes again.
int FillSmallDisk(const std::string& directory) {
  constexpr size_t kBallastBytes = 4 << 20;
  std::ofstream(directory + "/ballast") << std::string(kBallastBytes, 'b');
  AsioWorld world;
  auto store = RocksRecordStore::Open({.directory = directory + "/records"}, world.executor(0));
  if (!store.ok()) return 1;
  const std::string value(64 << 10, 'v');
  int written = 0;
  absl::Status status;
  while (written < 1000) {
    status = WriteNow(world, **store, {{fmt::format("{:04}", written), value}},
                      written % 2 == 0 ? Durability::kSynced : Durability::kBuffered);
    if (!status.ok()) break;
    ++written;
  }
  std::fprintf(stderr, "%d written, then %s\n", written, status.ToString().c_str());
  if (!absl::IsResourceExhausted(status) || written < 5) return 2;
  if (!absl::IsResourceExhausted(WriteNow(world, **store, {{"full", value}}))) return 3;

  std::filesystem::remove(directory + "/ballast");
  if (!WriteNow(world, **store, {{"zz", "again"}}, Durability::kSynced).ok()) return 4;
  const auto records = ScanNow(world, **store);
  if (!records.ok() || records->back().value != "again") return 5;
  for (int i = 0; i < written; ++i) {
    if ((*records)[i].key != fmt::format("{:04}", i)) return 6;
  }
  store->reset();
  store = RocksRecordStore::Open({.directory = directory + "/records"}, world.executor(0));
  if (!store.ok() || ScanNow(world, **store)->size() != records->size()) return 7;
  return 0;
}

TEST(RocksRecordStoreDeathTest, AFullDiskIsAnErrorAndPasses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string directory = testing::TempDir() + "unreft_full_disk";
  EXPECT_EXIT(RunInPrivateTmpfs(directory, 12 << 20, [&] { return FillSmallDisk(directory); }),
              ExitedWellOrNotRun, "");
  std::filesystem::remove(directory);  // the empty one that the tmpfs hid
}

TEST(LockFile, HeldByOneAndPassedOn) {
  TestDirectory directory;
  const std::string nested = directory.path() + "/a/b";
  auto lock = LockFile::Acquire(nested);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(LockFile::Acquire(nested).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(LockFile::Acquire(nested, "other.lock").ok());
  {
    const LockFile moved = *std::move(lock);
  }
  EXPECT_TRUE(LockFile::Acquire(nested).ok());
}

TEST(FakeRecordStore, AHostCrashKeepsSyncedBatchesAndAPrefixOfTheRest) {
  bool lost_some = false;
  bool kept_some = false;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    FakeRecordWorld world(seed);
    auto store = world.Open();
    ASSERT_TRUE(store.ok());
    EXPECT_TRUE(WriteNow(world.world(), **store, {{"k", "0"}}, Durability::kSynced).ok());
    for (int i = 1; i <= 5; ++i) {
      EXPECT_TRUE(
          WriteNow(world.world(), **store, {{"k", std::to_string(i)}, {fmt::format("n{}", i), ""}})
              .ok());
    }
    store->reset();
    EXPECT_EQ(world.disk().applied().at("k"), "5") << "the death of the process loses nothing";
    world.disk().CrashHost();
    const int kept = std::stoi(world.disk().applied().at("k"));
    EXPECT_EQ(world.disk().applied().size(), 1u + kept);
    lost_some |= kept < 5;
    kept_some |= kept > 0;
  }
  EXPECT_TRUE(lost_some && kept_some);
}

TEST(FakeRecordStore, ABatchInFlightIsWholeOrAbsent) {
  std::set<size_t> outcomes;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    FakeRecordWorld world(seed);
    auto store = world.Open();
    world.world().InTurn([&] {
      (*store)->Write({{"a", ""}, {"b", ""}}, Durability::kSynced, [](absl::Status) {});
      (*store)->Write({{"c", ""}}, Durability::kSynced, [](absl::Status) {});
      store->reset();
    });
    outcomes.insert(world.disk().applied().size());
    EXPECT_NE(world.disk().applied().size(), 1u);
  }
  EXPECT_EQ(outcomes, (std::set<size_t>{0, 2, 3}));
}

TEST(FakeRecordStore, AFullDiskRefusesUntilThereIsRoom) {
  FakeRecordWorld world(1);
  world.disk().set_bytes_max(10);
  auto store = world.Open();
  EXPECT_TRUE(WriteNow(world.world(), **store, {{"k", "123456789"}}).ok());
  const absl::Status full = WriteNow(world.world(), **store, {{"l", "1"}});
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_TRUE(WriteNow(world.world(), **store, {{"k", std::nullopt}}).ok());
  EXPECT_TRUE(WriteNow(world.world(), **store, {{"l", "1"}}).ok());
}

TEST(FakeRecordStore, FailuresAreAppliedOrNotAndEnd) {
  bool applied = false;
  bool dropped = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeRecordWorld world(seed);
    auto store = world.Open();
    world.disk().FailWrites(1, absl::UnavailableError("disk"));
    EXPECT_TRUE(absl::IsUnavailable(WriteNow(world.world(), **store, {{"k", "1"}})));
    (world.disk().applied().contains("k") ? applied : dropped) = true;
    EXPECT_TRUE(WriteNow(world.world(), **store, {{"k", "2"}}).ok());
  }
  EXPECT_TRUE(applied && dropped);
}

TEST(FakeRecordStore, ACorruptDiskIsDataLoss) {
  FakeRecordWorld world(1);
  auto store = world.Open();
  world.disk().set_corrupt(true);
  EXPECT_TRUE(absl::IsDataLoss(ScanNow(world.world(), **store).status()));
  store->reset();
  EXPECT_TRUE(absl::IsDataLoss(world.Open().status()));
}

}  // namespace
}  // namespace unreft
