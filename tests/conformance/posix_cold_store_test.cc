// What only directories have: links, permissions, the kernel's calls and errors, writers that die.
// The suite of all stores is in cold_store_conformance_test.cc.
#include "durable/posix_cold_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/cold_store_testing.h"
#include "tests/conformance/posix_cold_directory.h"
#include "tests/conformance/private_tmpfs.h"

namespace unreft {
namespace {

using durable::PosixColdOptions;
using durable::PosixColdStore;
using testing::AllOf;
using testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr uint64_t kMost = uint64_t{64} << 20;

bool IsDirect(int file) { return (fcntl(file, F_GETFL) & O_DIRECT) != 0; }

TEST(PosixColdStore, SaysWhatIsWrongWithItsRoot) {
  using absl::StatusCode;
  TestDirectory directory;
  const auto refused = [](const std::string& root, PosixColdOptions options = {}) {
    return PosixColdStore::Open(root, std::move(options)).status();
  };
  EXPECT_EQ(refused("some/where").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(directory.path(), {.buffer_bytes = 1000}).code(), StatusCode::kInvalidArgument);
  const absl::Status absent = refused(directory.path() + "/absent");
  EXPECT_EQ(absent.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), AllOf(HasSubstr("/absent"), HasSubstr("mount")));
  std::fclose(std::fopen((directory.path() + "/file").c_str(), "w"));
  const absl::Status file = refused(directory.path() + "/file");
  EXPECT_EQ(file.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(file.message()), HasSubstr("not a directory"));
  EXPECT_EQ(OpenIn(directory.path() + "///")->Describe(), directory.path());
}

// Run by another user than root, who may do anything.
int OpenWhatMayNotBeWrittenTo() {
  TestDirectory directory;
  if (chmod(directory.path().c_str(), 0555) != 0) return 1;
  if (geteuid() == 0 && seteuid(65534) != 0) return 2;
  const absl::Status status = PosixColdStore::Open(directory.path()).status();
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  if (getuid() == 0 && seteuid(0) != 0) return 3;
  return absl::IsPermissionDenied(status) ? 0 : 4;
}

TEST(PosixColdStoreDeathTest, ADirectoryOfAnothersIsRefused) {
  EXPECT_EXIT(_exit(OpenWhatMayNotBeWrittenTo()), testing::ExitedWithCode(0),
              "belongs to user .* with mode 0555");
}

int OpenReadOnly(const std::string& path) {
  auto store = PosixColdStore::Open(path);
  if (!store.ok()) return 1;
  if (mount("tmpfs", path.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) != 0) return 2;
  // One that became so later, too.
  if (!absl::IsPermissionDenied((*store)->Put("a/b", "x"))) return 3;
  const absl::Status status = PosixColdStore::Open(path).status();
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return absl::IsPermissionDenied(status) ? 0 : 4;
}

TEST(PosixColdStoreDeathTest, AReadOnlyFileSystemIsTold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = testing::TempDir() + "/cold-read-only";
  EXPECT_EXIT(RunInPrivateTmpfs(path, 1 << 20, [&] { return OpenReadOnly(path); }),
              ExitedWellOrNotRun, "read-only file system|not tested");
  rmdir(path.c_str());
}

int FillDirectory(const std::string& path) {
  for (const bool direct : {true, false}) {
    auto store = PosixColdStore::Open(path, {.direct = direct});
    if (!store.ok()) return 1;
    const absl::Status status = WriteColdFile(**store, "d/large", RandomBytes(40 << 20));
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    if (!absl::IsResourceExhausted(status)) return 2;
    // Its bytes are free again, and it is nowhere.
    if (!NamesIn(**store).empty()) return 3;
    if (!WriteColdFile(**store, "d/small", RandomBytes(15 << 20)).ok()) return 4;
    if (!(*store)->Remove("d/small").ok()) return 5;
  }
  return 0;
}

TEST(PosixColdStoreDeathTest, AFullFileSystemIsTold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = testing::TempDir() + "/cold-full";
  EXPECT_EXIT(RunInPrivateTmpfs(path, 20 << 20, [&] { return FillDirectory(path); }),
              ExitedWellOrNotRun,
              "write [0-9]+ bytes.*cold-full/d/large.*free in.*[0-9]+ bytes|not tested");
  rmdir(path.c_str());
}

TEST(PosixColdStore, NoLinkBelowTheRootIsFollowed) {
  TestDirectory outside;
  TestDirectory directory;
  auto store = OpenIn(directory.path());
  OpenIn(outside.path())->Put("secret", "theirs").IgnoreError();
  ASSERT_EQ(symlink(outside.path().c_str(), (directory.path() + "/out").c_str()), 0);
  ASSERT_EQ(symlink((outside.path() + "/secret").c_str(), (directory.path() + "/file").c_str()), 0);
  using absl::StatusCode;
  for (const char* name : {"out/secret", "file"}) {
    EXPECT_EQ(store->Get(name, kMost).status().code(), StatusCode::kFailedPrecondition) << name;
    EXPECT_EQ(store->Read(name, 0, {}).code(), StatusCode::kFailedPrecondition) << name;
    EXPECT_EQ(store->Remove(name).code(), StatusCode::kFailedPrecondition) << name;
  }
  const absl::Status put = store->Put("out/new", "ours");
  EXPECT_EQ(put.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(put.message()), AllOf(HasSubstr("out/new"), HasSubstr("symbolic link")));
  EXPECT_EQ(store->Put("file", "ours").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(store->List("out").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(NamesIn(*store), Names());
  EXPECT_NE(*store->Anything(""), "") << "it is there all the same";
  EXPECT_EQ(NamesIn(*OpenIn(outside.path())), Names({"secret"}));
}

TEST(PosixColdStore, WhatHasAnotherNameThanAFileOfAStoreIsThere) {
  TestDirectory directory;
  auto store = OpenIn(directory.path());
  EXPECT_EQ(*store->Anything(""), "");
  auto under_way = store->Create("new");
  ASSERT_TRUE(under_way.ok());
  EXPECT_EQ(*store->Anything(""), "") << "a file under way";
  std::ofstream(directory.path() + "/model (old).safetensors") << "old";
  EXPECT_EQ(NamesIn(*store), Names());
  EXPECT_EQ(*store->Anything(""), "model (old).safetensors");
}

TEST(PosixColdStore, TheRootMayBeALink) {
  TestDirectory target;
  TestDirectory directory;
  const std::string link = directory.path() + "/link";
  ASSERT_EQ(symlink(target.path().c_str(), link.c_str()), 0);
  ASSERT_TRUE(OpenIn(link)->Put("a", "1").ok());
  EXPECT_EQ(NamesIn(*OpenIn(target.path())), Names({"a"}));
}

// A pipe would be waited for.
TEST(PosixColdStore, WhatIsNoFileIsPassedOver) {
  TestDirectory directory;
  auto store = OpenIn(directory.path());
  ASSERT_EQ(mkfifo((directory.path() + "/pipe").c_str(), 0600), 0);
  std::fclose(std::fopen((directory.path() + "/a name of others").c_str(), "w"));
  EXPECT_EQ(store->Get("pipe", kMost).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Remove("pipe").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(NamesIn(*store), Names());
}

// Writes more than a buffer, then dies; returns when it is dead.
void DieWhileWriting(const std::string& path, const PosixColdOptions& options) {
  const std::string bytes = RandomBytes(9 << 20);
  const pid_t child = fork();
  if (child == 0) {
    auto store = PosixColdStore::Open(path, options);
    auto file = (*store)->Create("job/step/shard");
    _exit((*file)->Append(AsBytes(bytes)).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(PosixColdStore, AKilledWriterLeavesNoFile) {
  const auto now = std::chrono::system_clock::now();
  const auto hour = std::chrono::hours(1);
  for (const auto& options : {PosixColdOptions(), Hidden()}) {
    TestDirectory directory;
    DieWhileWriting(directory.path(), options);
    auto store = OpenIn(directory.path(), options);
    EXPECT_EQ(NamesIn(*store), Names());
    EXPECT_EQ(store->Get("job/step/shard", kMost).status().code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(WriteColdFile(*store, "job/step/shard", "whole").ok());
  }
  TestDirectory directory;
  DieWhileWriting(directory.path(), Hidden());
  auto store = OpenIn(directory.path());
  ASSERT_TRUE(store->Put("job/other", "x").ok());
  EXPECT_EQ(*store->RemoveLeftovers("", now - hour), 0U) << "it may be alive";
  EXPECT_EQ(*store->RemoveLeftovers("elsewhere", now + hour), 0U);
  EXPECT_EQ(*store->RemoveLeftovers("job", now + hour), 1U);
  EXPECT_EQ(*store->RemoveLeftovers("job", now + hour), 0U);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/job/step")) << "it was left empty";
  EXPECT_EQ(NamesIn(*store), Names({"job/other"}));
}

TEST(PosixColdStore, AWriterTakenForDeadIsTold) {
  TestDirectory directory;
  auto store = OpenIn(directory.path(), Hidden());
  auto file = store->Create("d/file");
  ASSERT_TRUE((*file)->Append(AsBytes("x")).ok());
  const auto later = std::chrono::system_clock::now() + std::chrono::hours(1);
  EXPECT_EQ(*store->RemoveLeftovers("", later), 1U);
  EXPECT_EQ((*file)->Finish().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(NamesIn(*store), Names());
}

// What a writer asks of the kernel, and what is counted of it.
struct Counts {
  int direct = 0;
  int buffered = 0;
  int calls = 0;
};

PosixColdOptions Counting(Counts& counts, PosixColdOptions options = {}) {
  options.buffer_bytes = uint64_t{8} << 20;
  const auto pwrite = options.calls.pwrite;
  options.calls.pwrite = [&counts, pwrite](int file, const void* bytes, size_t count,
                                           off_t offset) {
    ++(IsDirect(file) ? counts.direct : counts.buffered);
    if (IsDirect(file)) {
      EXPECT_EQ(count % 4096, 0U);
      EXPECT_EQ(offset % 4096, 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 4096, 0U);
    }
    return pwrite(file, bytes, count, offset);
  };
  return options;
}

void ExpectWrites(PosixColdOptions options) {
  TestDirectory directory;
  auto store = OpenIn(directory.path(), std::move(options));
  const std::string bytes = RandomBytes((20 << 20) + 1234);
  const absl::Status status = WriteColdFile(*store, "written", bytes);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(*store->Get("written", kMost) == bytes);
}

TEST(PosixColdStore, WithoutODirectTheSameBytesAreWritten) {
  Counts counts;
  PosixColdOptions options = Counting(counts);
  options.calls.set_direct = [](int) {
    errno = EINVAL;
    return -1;
  };
  ExpectWrites(options);
  EXPECT_EQ(counts.direct, 0);
  EXPECT_EQ(counts.buffered, 3);
}

// Some file systems say so only now.
TEST(PosixColdStore, WhenADirectWriteIsRefusedTheSameBytesAreWritten) {
  for (const int refused : {1, 2, 3}) {
    Counts counts;
    PosixColdOptions options = Counting(counts);
    const auto pwrite = options.calls.pwrite;
    options.calls.pwrite = [&counts, pwrite, refused](int file, const void* bytes, size_t count,
                                                      off_t offset) -> ssize_t {
      if (!IsDirect(file) || ++counts.calls < refused) return pwrite(file, bytes, count, offset);
      errno = EINVAL;
      return -1;
    };
    ExpectWrites(options);
    if (counts.calls == 0) GTEST_SKIP() << "O_DIRECT is not to be had in " << testing::TempDir();
    EXPECT_EQ(counts.buffered, 4 - refused);
  }
}

TEST(PosixColdStore, ShortAndInterruptedWritesGoOn) {
  for (const bool direct : {true, false}) {
    for (const size_t most : {size_t{1} << 20, size_t{333'333}}) {
      Counts counts;
      PosixColdOptions options = Counting(counts, {.direct = direct});
      const auto pwrite = options.calls.pwrite;
      options.calls.pwrite = [&counts, pwrite, most](int file, const void* bytes, size_t count,
                                                     off_t offset) -> ssize_t {
        if (++counts.calls % 3 == 0) {
          errno = EINTR;
          return -1;
        }
        // O_DIRECT itself writes whole blocks, but a file system may not have done all.
        const size_t whole = std::min(count, (most + 4095) / 4096 * 4096);
        const ssize_t written =
            pwrite(file, bytes, IsDirect(file) ? whole : std::min(count, most), offset);
        return std::min<ssize_t>(written, static_cast<ssize_t>(most));
      };
      ExpectWrites(options);
      EXPECT_GT(counts.calls, 20);
    }
  }
}

TEST(PosixColdStore, TellsWhatTheKernelsErrorsMean) {
  using absl::StatusCode;
  const std::vector<std::pair<int, StatusCode>> meanings = {
      {ENOSPC, StatusCode::kResourceExhausted}, {EDQUOT, StatusCode::kResourceExhausted},
      {EROFS, StatusCode::kPermissionDenied},   {EACCES, StatusCode::kPermissionDenied},
      {EIO, StatusCode::kUnavailable},          {ESTALE, StatusCode::kUnavailable},
  };
  for (const auto& [error, code] : meanings) {
    const auto fail = [error = error](auto...) {
      errno = error;
      return -1;
    };
    PosixColdOptions open;
    open.calls.open = fail;
    PosixColdOptions write;
    write.calls.pwrite = fail;
    PosixColdOptions sync;
    sync.calls.fdatasync = fail;
    PosixColdOptions rename = Hidden();
    rename.calls.rename = fail;
    for (const PosixColdOptions& options : {open, write, sync, rename}) {
      TestDirectory directory;
      auto store = OpenIn(directory.path(), options);
      const absl::Status status = WriteColdFile(*store, "d/file", RandomBytes(9 << 20));
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(directory.path() + "/d/file"));
      EXPECT_EQ(store->Put("d/file", "x").code(), code);
      EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "something is left";
    }
  }
}

TEST(PosixColdStore, BytesAreDurableBeforeTheNameAndDirectoriesAfterIt) {
  for (PosixColdOptions options : {PosixColdOptions(), Hidden()}) {
    TestDirectory directory;
    const auto is_there = [&] { return std::filesystem::exists(directory.path() + "/a/b/file"); };
    std::string calls;
    options.calls.fdatasync = [&](int) { return calls += is_there() ? "F" : "f", 0; };
    options.calls.fsync = [&](int) { return calls += is_there() ? "D" : "d", 0; };
    auto store = OpenIn(directory.path(), options);
    EXPECT_TRUE(store->Put("a/b/file", "x").ok());
    EXPECT_EQ(calls, "fDDD") << "the root, a, and b";
    EXPECT_TRUE(store->Remove("a/b/file").ok());
    EXPECT_EQ(calls, "fDDDddd");
  }
}

// Once a write has failed, nobody can know what the file has.
TEST(PosixColdStore, AFailureIsKept) {
  TestDirectory directory;
  PosixColdOptions options;
  int calls = 0;
  options.calls.pwrite = [&calls, pwrite = options.calls.pwrite](
                             int file, const void* bytes, size_t count, off_t offset) -> ssize_t {
    if (++calls != 1) return pwrite(file, bytes, count, offset);
    errno = EIO;
    return -1;
  };
  auto store = OpenIn(directory.path(), options);
  auto file = store->Create("file");
  const absl::Status first = (*file)->Append(AsBytes(RandomBytes(9 << 20)));
  EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*file)->Append(AsBytes("x")), first);
  EXPECT_EQ((*file)->Finish(), first);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(NamesIn(*store), Names());
}

}  // namespace
}  // namespace unreft
