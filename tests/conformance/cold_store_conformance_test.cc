// The ColdStore suite on directories and on the fake, and what only the fake has;
// posix_cold_store_test.cc has what only directories have.
#include "tests/conformance/cold_store_conformance.h"

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/posix_cold_directory.h"
#include "tests/fakes/memory_cold_store.h"

namespace unreft {
namespace {

using durable::ColdStore;
using durable::PosixColdOptions;
using durable::PosixColdStore;
using Names = std::vector<std::string>;

// And without RENAME_NOREPLACE, as NFS.
PosixColdOptions Linked() {
  PosixColdOptions options = Hidden();
  options.calls.rename = [](int, const char*, const char*) {
    errno = EINVAL;
    return -1;
  };
  return options;
}

class PosixHarness : public ColdStoreHarness {
 public:
  explicit PosixHarness(PosixColdOptions options)
      : store_(OpenIn(directory_.path(), std::move(options))) {}
  // Nothing stays in the directory but files that are listed.
  ~PosixHarness() override {
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      if (!entry.is_directory()) ++files;
    }
    EXPECT_EQ(files, store_->List("")->size());
  }
  ColdStore& store() override { return *store_; }

 private:
  TestDirectory directory_;
  std::unique_ptr<PosixColdStore> store_;
};

class MemoryHarness : public ColdStoreHarness {
 public:
  ColdStore& store() override { return store_; }

 private:
  MemoryColdStore store_;
};

ColdStoreFactory Posix(PosixColdOptions options) {
  return [options] { return std::make_unique<PosixHarness>(options); };
}

INSTANTIATE_TEST_SUITE_P(Direct, ColdStoreConformance, testing::Values(Posix({})));
INSTANTIATE_TEST_SUITE_P(Buffered, ColdStoreConformance, testing::Values(Posix({.direct = false})));
INSTANTIATE_TEST_SUITE_P(HiddenNames, ColdStoreConformance, testing::Values(Posix(Hidden())));
INSTANTIATE_TEST_SUITE_P(HardLinks, ColdStoreConformance, testing::Values(Posix(Linked())));
INSTANTIATE_TEST_SUITE_P(SmallBuffer, ColdStoreConformance,
                         testing::Values(Posix({.direct = false, .buffer_bytes = 65536})));
INSTANTIATE_TEST_SUITE_P(Memory, ColdStoreConformance,
                         testing::Values([] { return std::make_unique<MemoryHarness>(); }));

TEST(MemoryColdStore, FailsTheWriteThatATestOrders) {
  MemoryColdStore store;
  store.FailWrite(2, absl::UnavailableError("once"));
  auto file = store.Create("a");
  EXPECT_TRUE((*file)->Append(AsBytes("1")).ok());
  EXPECT_EQ((*file)->Append(AsBytes("2")), absl::UnavailableError("once"));
  EXPECT_EQ((*file)->Finish(), absl::UnavailableError("once")) << "a failure is kept";
  EXPECT_TRUE(store.Put("a", "3").ok());
  store.FailWrite(1, absl::UnavailableError("put"));
  EXPECT_EQ(store.Put("b", "4"), absl::UnavailableError("put"));
  EXPECT_EQ(NamesIn(store), Names({"a"}));
}

TEST(MemoryColdStore, IsFullAtItsLimit) {
  MemoryColdStore store;
  store.set_bytes_max(10);
  auto file = store.Create("a");
  ASSERT_TRUE((*file)->Append(AsBytes("123456")).ok());
  EXPECT_EQ(store.Put("b", "12345").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store.Put("b", "1234").ok());
  EXPECT_EQ(store.bytes_used(), 10U);
  file->reset();
  EXPECT_EQ(store.bytes_used(), 4U);
  EXPECT_TRUE(store.Remove("b").ok());
  EXPECT_EQ(store.bytes_used(), 0U);
}

TEST(MemoryColdStore, ACrashTakesWhatIsUnderWay) {
  MemoryColdStore store;
  ASSERT_TRUE(store.Put("whole", "1").ok());
  auto file = store.Create("cut");
  ASSERT_TRUE((*file)->Append(AsBytes("23")).ok());
  store.Crash();
  EXPECT_EQ(store.bytes_used(), 1U);
  EXPECT_EQ((*file)->Append(AsBytes("4")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*file)->Finish().code(), absl::StatusCode::kUnavailable);
  file->reset();
  EXPECT_EQ(store.bytes_used(), 1U);
  EXPECT_EQ(NamesIn(store), Names({"whole"}));
}

TEST(MemoryColdStore, FlipsAByte) {
  MemoryColdStore store;
  ASSERT_TRUE(store.Put("a", "abc").ok());
  store.FlipByte("a", 1);
  EXPECT_EQ(*store.Get("a", 3), std::string("a\x9d") + "c");
}

}  // namespace
}  // namespace unreft
