// What becomes of a process whose segments are truncated. In children: the signal is the process's.
#include "base/lost_pages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/format.h"
#include "base/shm_segment_store.h"

namespace unreft {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = 16 * kPage;

class LostPagesDeathTest : public testing::Test {
 protected:
  // Before the fixture, which asks whether it is in a child of that style.
  static void SetUpTestSuite() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  ~LostPagesDeathTest() override { (void)store_.Remove(name_); }

  std::unique_ptr<Segment> Make() {
    (void)store_.Remove(name_);
    auto segment = store_.Create(name_, kBytes);
    UNREFT_CHECK(segment.ok() && (*segment)->Reserve(0, kBytes).ok());
    std::fill((*segment)->bytes().begin(), (*segment)->bytes().end(), std::byte{7});
    return *std::move(segment);
  }
  void Truncate(uint64_t bytes) {
    UNREFT_CHECK(truncate(("/dev/shm" + name_).c_str(), static_cast<off_t>(bytes)) == 0);
  }
  static bool IsReadable() {
    pollfd event{LostPagesDescriptor(), POLLIN, 0};
    return poll(&event, 1, 0) == 1;
  }

  // A child dies with its segment, which its parent removes: both have the parent's name for it.
  ShmSegmentStore store_;
  const pid_t parent_ = testing::internal::InDeathTestChild() ? getppid() : getpid();
  const std::string name_ =
      fmt::format("{}lost", SegmentPrefix(fmt::format("lost-pages-{}", parent_), 0));
};

TEST_F(LostPagesDeathTest, ATruncatedSegmentIsSurvivedAndNamedOnce) {
  const auto run = [this] {
    UNREFT_CHECK(SurviveLostPages().ok());
    const std::unique_ptr<Segment> segment = Make();
    const auto bytes = segment->bytes();
    UNREFT_CHECK(TakeLostPages().empty() && !IsReadable());
    Truncate(4 * kPage);
    UNREFT_CHECK(bytes[kPage] == std::byte{7}, "what is there is as it was");
    UNREFT_CHECK(CheckNoPagesLost(bytes).ok());
    UNREFT_CHECK(bytes[9 * kPage] == std::byte{0} && bytes[4 * kPage] == std::byte{0});
    bytes[5 * kPage] = std::byte{1};  // nobody else sees it
    UNREFT_CHECK(bytes[5 * kPage] == std::byte{1} && bytes[kPage] == std::byte{7});
    UNREFT_CHECK(absl::IsDataLoss(CheckNoPagesLost(bytes)) && IsReadable());
    const std::vector<LostPages> lost = TakeLostPages();
    UNREFT_CHECK(lost.size() == 1 && lost[0].segment == name_);
    UNREFT_CHECK(TakeLostPages().empty() && !IsReadable());
    fmt::print(stderr, "{}\n", lost[0].status.message());
    std::exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "needs 65536 bytes, its file has 16384");
}

TEST_F(LostPagesDeathTest, AMappingThatIsForgottenIsNotNamed) {
  const auto run = [this] {
    UNREFT_CHECK(SurviveLostPages().ok());
    std::unique_ptr<Segment> segment = Make();
    Truncate(0);
    UNREFT_CHECK(segment->bytes()[0] == std::byte{0});
    segment.reset();
    UNREFT_CHECK(TakeLostPages().empty());
    // Its place is another's, who has lost nothing.
    segment = Make();
    UNREFT_CHECK(CheckNoPagesLost(segment->bytes()).ok());
    UNREFT_CHECK(segment->bytes()[0] == std::byte{7});
    std::exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_F(LostPagesDeathTest, AnyOtherBusErrorEndsTheProcess) {
  const auto run = [this] {
    UNREFT_CHECK(SurviveLostPages().ok());
    const std::unique_ptr<Segment> segment = Make();
    FILE* const file = std::tmpfile();
    void* const mapped = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fileno(file), 0);
    UNREFT_CHECK(mapped != MAP_FAILED);
    std::exit(*static_cast<const volatile char*>(mapped));
  };
  EXPECT_EXIT(run(), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace unreft
