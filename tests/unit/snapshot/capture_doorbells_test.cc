// What the daemon hears of a snapshot again after it was away: all that it may have missed, and
// nothing of memory that is not its own any more.

#include <gmock/gmock.h>

#include "tests/unit/snapshot/capture_fixture.h"

namespace unreft::snapshot {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class CaptureDoorbellsTest : public CaptureFixture {};

TEST_F(CaptureDoorbellsTest, AReconnectInMidCaptureRepeatsTheDoorbells) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Claimed>() == 1 && copier_.waiting() == 1; }));
  daemon_.Die();
  copier_.Let(1);
  RunFor(milliseconds(50));
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Claimed>() == 2; }));
  EXPECT_EQ(daemon_.Count<unreft::Register>(), 2u);
  copier_.Release();
  AwaitCaptured();
  const std::vector<std::byte> expected = ExpectedSlab();
  EXPECT_EQ(Slab(0, expected.size()), expected);
}

TEST_F(CaptureDoorbellsTest, WhatWasCapturedWhileTheDaemonWasAwayIsToldLater) {
  Ready();
  daemon_.Die();
  ASSERT_TRUE(RunUntil([&] { return !status().connected; }));
  ExpectStarted(1);
  Fence();
  ExpectSkipped(2, "the daemon is away");
  RunFor(seconds(3));
  EXPECT_EQ(daemon_.Count<Claimed>(), 0u);
  daemon_.Listen();
  AwaitCaptured();
  EXPECT_EQ(daemon_.Count<Claimed>(), 1u);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Skipped>() == 1; }));
}

TEST_F(CaptureDoorbellsTest, DoorbellsOfACommittedVersionAreNotRepeated) {
  Ready();
  ExpectStarted(1);
  AwaitCaptured();
  daemon_.Send(VersionState{{Timeline{7}, Step{1}}, VersionPhase::kCommitted});
  RunFor(milliseconds(10));
  daemon_.Die();
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<unreft::Register>() == 2; }));
  RunFor(seconds(1));
  EXPECT_EQ(daemon_.Count<Claimed>(), 1u);
}

// It may be too small for the next snapshot. Nobody else knows what was captured there, nor that it
// is not written any more.
TEST_F(CaptureDoorbellsTest, DoorbellsOfASlotThatIsOfferedNoMoreAreRepeated) {
  Ready();
  ExpectStarted(1);
  AwaitCaptured();
  daemon_.not_offered = {0};
  daemon_.SendRegistered();
  RunFor(milliseconds(10));
  daemon_.Die();
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<unreft::Register>() == 2; }));
  RunFor(seconds(1));
  EXPECT_EQ(daemon_.Count<Claimed>(), 2u);
  EXPECT_EQ(daemon_.Count<Captured>(), 2u);
}

// A daemon that lost its memory uses the same names and numbers: bytes in the old memory must not
// be sealed in the new one.
TEST_F(CaptureDoorbellsTest, MemoryThatWasMadeAnewEndsTheCaptureAndHearsNoDoorbell) {
  Ready();
  copier_.Hold();
  ExpectStarted(1);
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Claimed>() == 1 && copier_.waiting() == 1; }));
  daemon_.Die();
  daemon_.MakeSlots(2, 16 * 1024, RandomId{2});
  daemon_.Grant(0, 1);
  daemon_.Listen();
  ASSERT_TRUE(RunUntil([&] { return daemon_.Count<unreft::Register>() == 2; }));
  RunFor(milliseconds(100));
  copier_.Release();
  RunFor(seconds(1));
  EXPECT_EQ(daemon_.Count<Claimed>(), 1u);
  EXPECT_EQ(daemon_.Count<Captured>(), 0u);
  EXPECT_THAT(status().last_problem, HasSubstr("made anew"));
  EXPECT_EQ(daemon_.slot(0).view->data()[0], std::byte{0xee});
  ExpectStarted(2);
  AwaitCaptured();
}

// Rot in the header of an idle slot is the scrubber's to find: snapshots go on in the other slots.
TEST_F(CaptureDoorbellsTest, AHeaderThatRotsAfterTheMappingDoesNotSilenceTheDoorbells) {
  Ready();
  ExpectStarted(1);
  AwaitCaptured();
  host_.FlipBit(daemon_.slot(0).name, offsetof(SlotHeader, geometry.incarnation), 3);
  daemon_.Grant(1, 2);
  ExpectStarted(2);
  AwaitCaptured(2);
  EXPECT_EQ(daemon_.Count<Claimed>(), 2u);
}

}  // namespace
}  // namespace unreft::snapshot
