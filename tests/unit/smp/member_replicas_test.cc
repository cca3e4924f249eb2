// A member that is told that replicas differ: its ranks capture all they hold from then on.

#include <gmock/gmock.h>

#include <string>

#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

class MemberReplicasTest : public MemberFixture {
 protected:
  // Node 1 leads, and a fresh start was decided.
  MemberReplicasTest() {
    leader_ = &Join(1, true);
    StartMember();
    PutTimelines(1);
  }

  void PutTimelines(uint64_t newest) {
    TimelineRecord record;
    for (uint64_t timeline = 1; timeline <= newest; ++timeline) {
      record.add_chain()->set_timeline(timeline);
    }
    record.set_round(newest);
    record.mutable_decision()->set_round(newest);
    record.mutable_decision()->set_timeline(newest);
    record.mutable_decision()->set_kind(static_cast<uint32_t>(DecisionKind::kFresh));
    Put("timeline", record);
  }

  void PutDisagreement(const std::string& what, uint64_t through_step = 0) {
    AbandonRecord record;
    record.set_full_capture_from_timeline(1);
    record.set_disagreement(what);
    record.set_timeline(1);
    record.set_through_step(through_step);
    Put("abandoned", record);
  }

};

TEST_F(MemberReplicasTest, TellsTheNodeOnce) {
  PutDisagreement("replicas of w differ");
  PutDisagreement("replicas of w differ", 4);
  EXPECT_THAT(node_.disagreements, ElementsAre("replicas of w differ"));
}

TEST_F(MemberReplicasTest, WhoStartsInALaterTimelineIsTold) {
  StopMember();
  PutTimelines(2);
  PutDisagreement("replicas of w differ");
  StartMember();
  EXPECT_THAT(node_.disagreements, ElementsAre("replicas of w differ"));
}

}  // namespace
}  // namespace unreft::smp
