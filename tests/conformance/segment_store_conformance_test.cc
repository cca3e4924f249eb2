// The SegmentStore suite on shared memory and on the fake, and what only each of them has.

#include "tests/conformance/segment_store_conformance.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/shm_segment_store.h"
#include "tests/conformance/private_tmpfs.h"
#include "tests/fakes/fake_segment_store.h"

namespace unreft {
namespace {

// One job per process, so that tests run side by side.
class ShmHarness : public SegmentStoreHarness {
 public:
  explicit ShmHarness(uint64_t background_bytes = UINT64_MAX) : store_(background_bytes) {
    RemoveAll();
  }
  ~ShmHarness() override { RemoveAll(); }
  ShmSegmentStore& store() override { return store_; }
  std::string prefix() override { return SegmentPrefix(fmt::format("test-{}", getpid()), 0); }

 private:
  void RemoveAll() {
    const auto segments = store_.List(prefix());
    for (const SegmentInfo& segment : *segments) store_.Remove(segment.name).IgnoreError();
  }
  ShmSegmentStore store_;
};

class FakeHarness : public SegmentStoreHarness {
 public:
  SegmentStore& store() override { return store_; }
  std::string prefix() override { return SegmentPrefix("test", 0); }

 private:
  FakeHostMemory host_{uint64_t{1} << 20};
  FakeSegmentStore store_{host_};
};

INSTANTIATE_TEST_SUITE_P(Shm, SegmentStoreConformance,
                         testing::Values([] { return std::make_unique<ShmHarness>(); }));
INSTANTIATE_TEST_SUITE_P(ShmInBackground, SegmentStoreConformance,
                         testing::Values([] { return std::make_unique<ShmHarness>(1); }));
INSTANTIATE_TEST_SUITE_P(Fake, SegmentStoreConformance,
                         testing::Values([] { return std::make_unique<FakeHarness>(); }));
INSTANTIATE_TEST_SUITE_P(Shm, SegmentStoreConformanceDeathTest,
                         testing::Values([] { return std::make_unique<ShmHarness>(); }));
INSTANTIATE_TEST_SUITE_P(Fake, SegmentStoreConformanceDeathTest,
                         testing::Values([] { return std::make_unique<FakeHarness>(); }));

std::string ShmPath(const std::string& name) { return "/dev/shm" + name; }

TEST(ShmSegmentStore, FilesArePrivate) {
  ShmHarness harness;
  ASSERT_TRUE(harness.store().Create(harness.prefix() + "mode", 4096).ok());
  struct stat info{};
  ASSERT_EQ(stat(ShmPath(harness.prefix() + "mode").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(ShmSegmentStore, CreateTakesNoPagesAndReserveTakesThem) {
  ShmHarness harness;
  const std::string name = harness.prefix() + "pages";
  auto segment = harness.store().Create(name, 1 << 20);
  ASSERT_TRUE(segment.ok());
  struct stat info{};
  ASSERT_EQ(stat(ShmPath(name).c_str(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  ASSERT_TRUE((*segment)->Reserve(4096, 8192).ok());
  ASSERT_EQ(stat(ShmPath(name).c_str(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, 8192);
  EXPECT_EQ(info.st_size, 1 << 20);
}

TEST(ShmSegmentStore, AnotherUsersSegmentIsRefusedByBothNames) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make another user's file";
  ShmHarness harness;
  const std::string name = harness.prefix() + "theirs";
  ASSERT_TRUE(harness.store().Create(name, 4096).ok());
  ASSERT_EQ(chown(ShmPath(name).c_str(), 65534, 65534), 0);
  const absl::Status status = harness.store().Open(name, Access::kReadOnly).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("65534"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("this process is 0"));
  EXPECT_EQ(unlink(ShmPath(name).c_str()), 0);
}

// Whose names can be foreseen could be kept from all of them.
class TakenNamesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to make another user's file";
    harness_.store().set_on_taken([this](const absl::Status& by_whom, const std::string& file) {
      EXPECT_TRUE(absl::IsPermissionDenied(by_whom)) << by_whom;
      told_.push_back(file);
    });
  }
  void TearDown() override { std::filesystem::remove_all(ShmPath(name_)); }

  void GiveAway() { ASSERT_EQ(lchown(ShmPath(name_).c_str(), 65534, 65534), 0); }
  // All that is to be done with a segment can be.
  void ExpectUsable() {
    ShmSegmentStore& store = harness_.store();
    EXPECT_TRUE(absl::IsPermissionDenied(store.Open(name_, Access::kReadOnly).status()));
    EXPECT_TRUE(store.List(name_)->empty()) << "another user's is none";
    {
      auto made = store.Create(name_, 8192);
      ASSERT_TRUE(made.ok()) << made.status();
      EXPECT_EQ((*made)->name(), name_);
      ASSERT_TRUE((*made)->Reserve(0, 8192).ok());
      (*made)->bytes()[5000] = std::byte{7};
      EXPECT_TRUE((*made)->Lock().ok());
    }
    ASSERT_EQ(told_.size(), 1U);
    EXPECT_TRUE(told_[0].starts_with(name_ + "~")) << told_[0];
    EXPECT_TRUE(absl::IsAlreadyExists(store.Create(name_, 8192).status()));
    const auto listed = store.List(name_);
    ASSERT_EQ(listed->size(), 1U);
    EXPECT_EQ((*listed)[0].name, name_);
    EXPECT_EQ((*listed)[0].bytes, 8192U);
    EXPECT_EQ((*store.Open(name_, Access::kReadOnly))->bytes()[5000], std::byte{7});
  }
  void ExpectRemovable() {
    ShmSegmentStore& store = harness_.store();
    EXPECT_TRUE(store.Remove(name_).ok());
    EXPECT_TRUE(store.List(name_)->empty());
    EXPECT_FALSE(store.Remove(name_).ok());
  }

  ShmHarness harness_;
  const std::string name_ = harness_.prefix() + "taken";
  std::vector<std::string> told_;
};

TEST_F(TakenNamesTest, AnotherUsersFileKeepsNobodyFromTheName) {
  ASSERT_TRUE(harness_.store().Create(name_, 4096).ok());
  GiveAway();
  ExpectUsable();
  ExpectRemovable();
  EXPECT_TRUE(std::filesystem::exists(ShmPath(name_))) << "it is left alone";
}

TEST_F(TakenNamesTest, WhatWasMadeMeanwhileIsFoundWhenTheirsIsGone) {
  ASSERT_TRUE(harness_.store().Create(name_, 4096).ok());
  GiveAway();
  ExpectUsable();
  std::filesystem::remove(ShmPath(name_));
  EXPECT_EQ((*harness_.store().Open(name_, Access::kReadWrite))->bytes()[5000], std::byte{7});
  EXPECT_TRUE(absl::IsAlreadyExists(harness_.store().Create(name_, 8192).status()));
  ExpectRemovable();
}

// Opened, it would lead elsewhere, or wait for ever for a writer.
TEST_F(TakenNamesTest, ALinkAPipeOrADirectoryIsNoSegment) {
  const std::string path = ShmPath(name_);
  const auto make = std::to_array<std::function<int()>>({
      [&] { return symlink("/dev/shm/nowhere", path.c_str()); },
      [&] { return mkfifo(path.c_str(), 0666); },
      [&] { return mkdir(path.c_str(), 0777); },
  });
  for (const auto& one : make) {
    ASSERT_EQ(one(), 0);
    GiveAway();
    ExpectUsable();
    ExpectRemovable();
    std::filesystem::remove_all(path);
    told_.clear();
  }
}

TEST(ShmSegmentStore, ACreateThatWasCutShortCanBeListedAndRemoved) {
  ShmHarness harness;
  const std::string name = harness.prefix() + "cut";
  const int file = open(ShmPath(name).c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(file, 0);
  close(file);
  EXPECT_EQ(harness.store().Open(name, Access::kReadWrite).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(harness.store().List(harness.prefix())->size(), 1u);
  EXPECT_TRUE(harness.store().Remove(name).ok());
}

// Reserves piece by piece until the file system is full; every reserved byte can then be written.
int FillSmallShm() {
  ShmHarness harness;
  auto segment = harness.store().Create(harness.prefix() + "fill", 4 << 20);
  if (!segment.ok()) return 1;
  constexpr size_t kPiece = 192 << 10;
  size_t reserved = 0;
  absl::Status status;
  while (status.ok() && reserved + kPiece <= (*segment)->bytes().size()) {
    status = (*segment)->Reserve(reserved, kPiece);
    if (status.ok()) reserved += kPiece;
  }
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  if (status.code() != absl::StatusCode::kResourceExhausted) return 2;
  if (reserved < kPiece || harness.store().Capacity()->segments_free >= kPiece) return 3;
  std::fill_n((*segment)->bytes().begin(), reserved, std::byte{1});
  // The failed piece took nothing, so what is left is still there to take.
  const uint64_t left = harness.store().Capacity()->segments_free;
  if (left > 0 && !(*segment)->Reserve(reserved, left).ok()) return 4;
  return 0;
}

TEST(ShmSegmentStoreDeathTest, AFullFileSystemIsAnErrorAndNeverASignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunInPrivateTmpfs("/dev/shm", 1 << 20, FillSmallShm), ExitedWellOrNotRun, "");
}

// What was given up and is still being unmapped is free to whoever needs it.
int ReuseSmallShm() {
  ShmHarness harness(1);
  constexpr size_t kMost = 768 << 10;
  for (int round = 1; round <= 50; ++round) {
    auto segment = harness.store().Create(harness.prefix() + "reused", kMost);
    if (!segment.ok() || !(*segment)->Reserve(0, kMost).ok()) return round;
    std::fill_n((*segment)->bytes().begin(), kMost, std::byte{1});
    if (!harness.store().Remove(harness.prefix() + "reused").ok()) return round;
    segment->reset();
    if (harness.store().Capacity()->segments_free < kMost) return round;
  }
  return 0;
}

TEST(ShmSegmentStoreDeathTest, WhatIsUnmappedInTheBackgroundIsFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunInPrivateTmpfs("/dev/shm", 1 << 20, ReuseSmallShm), ExitedWellOrNotRun, "");
}

// A forked data loader must not hold the state (docs/protocol.md, rule 5).
TEST(ShmSegmentStoreDeathTest, AForkedChildHasNoMapping) {
  ShmHarness harness;
  auto segment = harness.store().Create(harness.prefix() + "fork", 4096);
  ASSERT_TRUE(segment.ok() && (*segment)->Reserve(0, 4096).ok());
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident = 0;
    const bool mapped = mincore((*segment)->bytes().data(), 4096, &resident) == 0;
    _exit(mapped ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(FakeSegmentStore, HostMemoryIsSharedByItsProcesses) {
  FakeHostMemory host(uint64_t{1} << 20);
  {
    FakeSegmentStore daemon(host);
    auto segment = daemon.Create("/unreft.j.0.s", 8192);
    ASSERT_TRUE(segment.ok() && (*segment)->Reserve(0, 4096).ok());
    (*segment)->bytes()[1] = std::byte{5};
  }
  FakeSegmentStore restarted(host);
  auto segment = restarted.Open("/unreft.j.0.s", Access::kReadOnly);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ((*segment)->bytes()[1], std::byte{5});
  EXPECT_EQ(*host.ReservedBytes("/unreft.j.0.s"), 4096u);
  FakeSegmentStore stranger(host, 1000);
  EXPECT_EQ(stranger.Open("/unreft.j.0.s", Access::kReadOnly).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(FakeSegmentStore, CountsUntilTheLastMappingGoes) {
  FakeHostMemory host(16384);
  FakeSegmentStore store(host);
  auto segment = store.Create("/unreft.j.0.s", 16384);
  ASSERT_TRUE((*segment)->Reserve(0, 12288).ok());
  EXPECT_EQ((*segment)->Reserve(0, 16384), absl::OkStatus());
  EXPECT_EQ(host.bytes_used(), 16384u);
  auto other = store.Create("/unreft.j.0.t", 4096);
  EXPECT_EQ((*other)->Reserve(0, 1).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(store.Remove("/unreft.j.0.s").ok());
  EXPECT_EQ(host.bytes_used(), 16384u);
  segment->reset();
  EXPECT_EQ(host.bytes_used(), 0u);
  EXPECT_TRUE((*other)->Reserve(0, 1).ok());
}

TEST(FakeSegmentStore, FlipsABitAndFailsOnDemand) {
  FakeHostMemory host;
  FakeSegmentStore store(host);
  auto segment = store.Create("/unreft.j.0.s", 4096);
  ASSERT_TRUE((*segment)->Reserve(0, 4096).ok());
  host.FlipBit("/unreft.j.0.s", 17, 3);
  EXPECT_EQ((*segment)->bytes()[17], std::byte{8});
  host.FailCreates(absl::ResourceExhaustedError("full"));
  EXPECT_EQ(store.Create("/unreft.j.0.t", 4096).status().code(),
            absl::StatusCode::kResourceExhausted);
  host.FailCreates(std::nullopt);
  EXPECT_TRUE(store.Create("/unreft.j.0.t", 4096).ok());
}

TEST(FakeSegmentStoreDeathTest, UnreservedBytesCannotBeTouched) {
  FakeHostMemory host;
  FakeSegmentStore store(host);
  auto segment = store.Create("/unreft.j.0.s", 8192);
  ASSERT_TRUE((*segment)->Reserve(0, 4096).ok());
  auto* bytes = reinterpret_cast<volatile unsigned char*>((*segment)->bytes().data());
  EXPECT_DEATH(bytes[4096] = 1, "");
}

TEST(SegmentNames, NoJobsPrefixBeginsAnothers) {
  EXPECT_EQ(SegmentPrefix("run_7", 12), "/unreft.run_7.12.");
  EXPECT_TRUE(CheckJobName("Llama-3_70b").ok());
  for (const char* job : {"", "a.b", "a/b", "ü"}) EXPECT_FALSE(CheckJobName(job).ok()) << job;
  EXPECT_FALSE(CheckJobName(std::string(65, 'a')).ok());
}

}  // namespace
}  // namespace unreft
