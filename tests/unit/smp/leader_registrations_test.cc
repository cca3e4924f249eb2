// What the leader says of the ranks' registrations, before anything of them is captured.

#include <gmock/gmock.h>

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr NodeSlot kSlot0{0};
constexpr NodeSlot kSlot1{1};
constexpr NodeSlot kSlot2{2};

// Rank i on node i, of attempt 1, which is in force.
class LeaderRegistrationsTest : public LeaderFixture {
 protected:
  LeaderRegistrationsTest() { Ask(1); }
  void RegisterReplica(uint64_t rank, uint32_t index, uint64_t attempt = 1) {
    Register(NodeSlot{rank}, Rank{rank}, {Whole("w", {2048}, index, kNodes)}, attempt);
  }
  void RegisterAll(uint64_t attempt = 1) {
    for (uint32_t rank = 0; rank < kNodes; ++rank) RegisterReplica(rank, rank, attempt);
  }
  RegistrationState Told(NodeSlot slot) const {
    return static_cast<RegistrationState>(nodes_.at(slot).reply.registrations());
  }
  std::string Misfit(NodeSlot slot) const { return nodes_.at(slot).reply.misfit(); }
  uint64_t ManifestsAsked() const {
    uint64_t asked = 0;
    for (const auto& [slot, node] : nodes_) asked += node.manifests_asked;
    return asked;
  }
};

TEST_F(LeaderRegistrationsTest, WhatFitsIsKnownOnceAllAreRegistered) {
  for (uint32_t rank = 0; rank + 1 < kNodes; ++rank) RegisterReplica(rank, rank);
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kIncomplete);
  EXPECT_EQ(ManifestsAsked(), 0U);
  RegisterReplica(3, 3);
  Report(NodeSlot{3});
  EXPECT_EQ(Told(NodeSlot{3}), RegistrationState::kLooking);
  Settle();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kFit);
  EXPECT_EQ(Told(NodeSlot{3}), RegistrationState::kFit);
  const uint64_t asked = ManifestsAsked();
  EXPECT_EQ(asked, kNodes);
  Ask(2);
  RegisterAll(2);  // the next attempt, with the same
  ReportAll();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kFit);
  EXPECT_EQ(ManifestsAsked(), asked) << "it knows these";
}

// A daemon captured it, and only the commit gave it up.
TEST_F(LeaderRegistrationsTest, ALaterOneThatDiffersInItsReplicaIndexAloneIsRefused) {
  RegisterAll();
  ReportAll();
  ReportAll();
  ASSERT_EQ(Told(kSlot2), RegistrationState::kFit);
  RegisterReplica(2, 1);
  Report(kSlot2);
  EXPECT_EQ(Told(kSlot2), RegistrationState::kLooking) << "until then nothing is captured";
  Settle();
  ReportAll();
  EXPECT_EQ(Told(kSlot2), RegistrationState::kMisfit);
  EXPECT_EQ(Told(kSlot0), RegistrationState::kMisfit);
  EXPECT_THAT(Misfit(kSlot2),
              AllOf(HasSubstr("'w'"), HasSubstr("ranks 1 and 2 both say that they are replica 1")));
  RegisterReplica(2, 2);
  ReportAll();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kFit);
}

TEST_F(LeaderRegistrationsTest, RanksOfOtherAttemptsThanTheOneInForceDoNotCount) {
  RegisterAll();
  ReportAll();
  ReportAll();
  ASSERT_EQ(Told(kSlot0), RegistrationState::kFit);
  Ask(2);
  RegisterReplica(0, 1, 2);
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kIncomplete);
  RegisterReplica(1, 0, 2);
  RegisterReplica(2, 2, 2);
  RegisterReplica(3, 3, 2);
  ReportAll();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kFit);
}

TEST_F(LeaderRegistrationsTest, ALostNodesRanksDoNotCount) {
  RegisterAll();
  ReportAll();
  ReportAll();
  ASSERT_EQ(Told(kSlot0), RegistrationState::kFit);
  Leave(kSlot1);
  ASSERT_TRUE(view().members(1).lost());
  Report(kSlot0);
  EXPECT_EQ(Told(kSlot0), RegistrationState::kIncomplete);
}

TEST_F(LeaderRegistrationsTest, ANewLeaderAsksForItself) {
  RegisterAll();
  ReportAll();
  ReportAll();
  StartLeader();
  ReportAll();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kFit);
  EXPECT_EQ(ManifestsAsked(), 2 * kNodes);
}

TEST_F(LeaderRegistrationsTest, ANodeThatDoesNotSayWhatItsRanksHoldIsAskedAgain) {
  RegisterAll();
  nodes_.at(kSlot1).registered.clear();  // it answers without
  ReportAll();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kLooking);
  RegisterReplica(1, 1);
  ReportAll();
  ReportAll();
  EXPECT_EQ(Told(kSlot0), RegistrationState::kFit);
}

}  // namespace
}  // namespace unreft::smp
