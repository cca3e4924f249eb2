#include "smp/desk/scrubber.h"

#include <cstdio>
#include <optional>

#include "tests/fakes/capture_log_sink.h"
#include "tests/unit/smp/sealed_slot_fixture.h"

namespace unreft::smp {
namespace {

constexpr Version kFirst{Timeline{1}, Step{5}};
constexpr Version kSecond{Timeline{1}, Step{6}};

class ScrubberTest : public SealedSlotFixture {
 protected:
  ScrubberTest() {
    options_.scrub_interval = std::chrono::seconds(10);
    state_.options = options_;
    state_.record = NewRecord();
    state_.slots = NewStore();
  }
  ~ScrubberTest() override {
    for (const std::string& line : lines_.lines()) {
      if (HasFailure()) std::puts(line.c_str());
    }
    InTurn([&] {
      scrubber_.reset();
      state_.slots.reset();
      state_.record.reset();
    });
  }

  // The first version is committed, and it is time to scrub; then `meanwhile`, before the pool has
  // read anything.
  void Scrub(absl::FunctionRef<void(Slot&)> meanwhile) {
    Slot& slot = Seal(*state_.slots, kFirst);
    InTurn([&] {
      state_.record->SetCommitted(kFirst, 1);
      scrubber_.emplace(state_);
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return pool_.pending() > 0; }, 100000));
    InTurn([&] { meanwhile(slot); });
    Settle();
  }

  CaptureLogSink lines_;
  Log captured_{lines_};
  NodeState state_{
      NodeSeams{*executor_, pool_, random_, segments_, *records_, processes_, captured_}};
  std::optional<Scrubber> scrubber_;
};

TEST_F(ScrubberTest, IsSilentAboutWhatVerifiesAndLooksAgain) {
  Scrub([](Slot&) {});
  EXPECT_EQ(lines_.Count("scrub"), 0U);
  EXPECT_TRUE(scheduler_.RunUntil([&] { return pool_.pending() > 0; }, 100000));
}

// It named the version that was committed by then.
TEST_F(ScrubberTest, NamesTheVersionThatItHasRead) {
  Scrub([&](Slot& slot) {
    Flip(slot);
    state_.record->SetCommitted(kSecond, 1);
  });
  EXPECT_EQ(lines_.Count("error: scrub: version 1:5: slot 0: block 1 has CRC"), 1U);
}

TEST_F(ScrubberTest, IsSilentAboutASlotThatIsCapturedAnewMeanwhile) {
  Scrub([&](Slot& slot) {
    state_.record->SetCommitted(kSecond, 1);
    state_.slots->Free(slot);
    EXPECT_EQ(state_.slots->Grant(kRank, table_.Start(), 1, Attempt{1}, Timeline{1}), &slot);
  });
  EXPECT_EQ(lines_.Count("scrub"), 0U);
}

}  // namespace
}  // namespace unreft::smp
