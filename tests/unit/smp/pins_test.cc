// What a pin needs, and when it is over.

#include "smp/job/pins.h"

#include <gmock/gmock.h>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "tests/fakes/sim_executor.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Version At(uint64_t timeline, uint64_t step) { return {Timeline{timeline}, Step{step}}; }

class PinsTest : public ::testing::Test {
 protected:
  absl::StatusOr<PinReply> Ask(const std::string& owner, uint64_t step = 0, uint64_t for_ms = 100,
                               bool unpin = false) {
    PinRequest request;
    request.set_owner(owner);
    request.set_step(step);
    request.set_for_ms(for_ms);
    request.set_unpin(unpin);
    return ChangePins(request, committed_, world_, slots_, record_);
  }
  absl::StatusOr<PinReply> Unpin(const std::string& owner, uint64_t step = 0) {
    return Ask(owner, step, 0, true);
  }

  Version committed_ = At(2, 40);
  uint64_t world_ = 4;
  uint32_t slots_ = 1;
  PinRecord record_;
};

TEST_F(PinsTest, WhatIsCommittedIsPinned) {
  const auto reply = Ask("export");
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->pins_size(), 1);
  EXPECT_EQ(VersionOf(reply->pins(0)), At(2, 40));
  EXPECT_TRUE(IsPinned(record_, At(2, 40)));
  EXPECT_FALSE(IsPinned(record_, At(1, 40)));
}

TEST_F(PinsTest, AnotherStepThanTheCommittedIsRefusedNamingIt) {
  const auto status = Ask("export", 39).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2:40"));
  EXPECT_THAT(record_.pins(), IsEmpty());
}

TEST_F(PinsTest, WithoutAFreeSlotItNamesWhatIsNeededAndWhoHasIt) {
  ASSERT_TRUE(Ask("export").ok());
  committed_ = At(2, 41);
  const auto status = Ask("nightly").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 pin slot needed, 0 of 1 free"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2:40 is pinned by 'export'"));
  slots_ = 2;
  EXPECT_TRUE(Ask("nightly").ok());
}

TEST_F(PinsTest, WithoutPinSlotsItSaysHowToGetThem) {
  slots_ = 0;
  const auto status = Ask("export").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--pins"));
}

TEST_F(PinsTest, TwoOwnersShareTheSlotOfOneVersion) {
  ASSERT_TRUE(Ask("export").ok());
  ASSERT_TRUE(Ask("nightly").ok());
  ASSERT_TRUE(Unpin("export").ok());
  EXPECT_TRUE(IsPinned(record_, At(2, 40)));
  ASSERT_TRUE(Unpin("nightly").ok());
  EXPECT_FALSE(IsPinned(record_, At(2, 40)));
}

TEST_F(PinsTest, ItsOwnerRenewsItAlsoWhenANewerVersionIsCommitted) {
  ASSERT_TRUE(Ask("export", 40, 100).ok());
  const uint64_t first = record_.pins(0).number();
  committed_ = At(2, 41);
  ASSERT_TRUE(Ask("export", 40, 500).ok());
  ASSERT_EQ(record_.pins_size(), 1);
  EXPECT_EQ(record_.pins(0).for_ms(), 500U);
  EXPECT_NE(record_.pins(0).number(), first);
}

TEST_F(PinsTest, UnpinNamesWhatIsPinnedWhenItIsNotTheOwners) {
  ASSERT_TRUE(Ask("export").ok());
  const auto status = Unpin("nightly").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2:40 is pinned by 'export'"));
  EXPECT_TRUE(absl::IsNotFound(Unpin("export", 39).status()));
  EXPECT_EQ(record_.pins_size(), 1);
}

TEST_F(PinsTest, NeedsAnOwnerATimeAndSomethingCommitted) {
  EXPECT_TRUE(absl::IsInvalidArgument(Ask("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(std::string(65, 'x')).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask("export", 0, 0).status()));
  world_ = 0;
  EXPECT_TRUE(absl::IsNotFound(Ask("export").status()));
}

TEST_F(PinsTest, ThoseThatAreOverAndThoseOfDeadVersionsAreDropped) {
  slots_ = 3;
  for (const uint64_t step : {40, 41, 42}) {
    committed_ = At(2, step);
    ASSERT_TRUE(Ask("export").ok());
  }
  // Timeline 3 stands on 2:41.
  const recovery::TimelineChain chain({{Timeline{2}, Version{}}, {Timeline{3}, At(2, 41)}});
  EXPECT_TRUE(DropPins({record_.pins(0).number()}, chain, record_));
  ASSERT_EQ(record_.pins_size(), 1);
  EXPECT_EQ(VersionOf(record_.pins(0)), At(2, 41));
  EXPECT_FALSE(DropPins({}, chain, record_));
}

TEST_F(PinsTest, TheClockSaysWhoseTimeIsUp) {
  slots_ = 2;
  SimScheduler scheduler(1);
  const auto executor = scheduler.NewExecutor("coordinator");
  int told = 0;
  PinClock clock(*executor, [&] { ++told; });
  const auto follow = [&] {
    executor->Deliver(Duration{}, [&] { clock.Follow(record_); });
    scheduler.RunFor(milliseconds(1));
  };
  ASSERT_TRUE(Ask("short", 0, 100).ok());
  ASSERT_TRUE(Ask("long", 0, 10'000).ok());
  follow();
  scheduler.RunFor(milliseconds(80));
  EXPECT_THAT(clock.over(), IsEmpty());
  // Renewed in time: it counts from then on.
  ASSERT_TRUE(Ask("short", 0, 100).ok());
  const uint64_t renewed = record_.pins(0).number();
  follow();
  scheduler.RunFor(milliseconds(80));
  EXPECT_THAT(clock.over(), IsEmpty());
  scheduler.RunFor(milliseconds(100));
  EXPECT_THAT(clock.over(), ElementsAre(renewed));
  EXPECT_EQ(told, 1);
  // Gone from the record: forgotten.
  ASSERT_TRUE(DropPins(clock.over(), recovery::TimelineChain({{Timeline{2}, Version{}}}), record_));
  follow();
  EXPECT_THAT(clock.over(), IsEmpty());
  executor->Kill();
}

}  // namespace
}  // namespace unreft::smp
