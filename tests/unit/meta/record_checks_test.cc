#include "meta/record_checks.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace unreft::meta {
namespace {

using ::testing::HasSubstr;

template <typename Message>
absl::Status Check(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return CheckRecord(message);
}

template <typename Message>
void ExpectWrong(const std::string& text, const std::string& what) {
  const absl::Status status = Check<Message>(text);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what)) << text;
}

constexpr char kMembers[] = "members { slot: 0 } members { slot: 1 } members { slot: 4 } ";

std::string ViewOf(const std::string& groups) { return kMembers + groups; }

TEST(RecordChecksTest, EmptyRecordsAreThoseOfAJobThatBegins) {
  EXPECT_TRUE(CheckRecord(ViewRecord()).ok());
  EXPECT_TRUE(CheckRecord(TimelineRecord()).ok());
  EXPECT_TRUE(CheckRecord(CommitRecord()).ok());
  EXPECT_TRUE(CheckRecord(AbandonRecord()).ok());
  EXPECT_TRUE(CheckRecord(PinRecord()).ok());
  EXPECT_TRUE(CheckRecord(PresenceRecord()).ok());
  EXPECT_TRUE(CheckRecord(SpareRecord()).ok());
}

TEST(RecordChecksTest, AViewHasMembersOnceAndGroupsOfThem) {
  EXPECT_TRUE(Check<ViewRecord>(ViewOf("")).ok());
  EXPECT_TRUE(Check<ViewRecord>(ViewOf("groups { slots: [0, 1, 4] k: 2 }")).ok());
  EXPECT_TRUE(Check<ViewRecord>(ViewOf("groups { slots: [0, 1] k: 2 }")).ok());
  ExpectWrong<ViewRecord>("members { slot: 1 } members { slot: 1 }", "slot 1 is there twice");
  EXPECT_TRUE(Check<ViewRecord>("members { slot: 1 } members { slot: 0 }").ok())
      << "one that came back stands last";
  ExpectWrong<ViewRecord>(ViewOf("groups { slots: [0, 1] k: 0 }"), "0 data chunks");
  ExpectWrong<ViewRecord>(ViewOf("groups { slots: [0, 1] k: 3 }"), "2 nodes with 3 data chunks");
  ExpectWrong<ViewRecord>(ViewOf("groups { k: 1 }"), "a group of 0 nodes");
  ExpectWrong<ViewRecord>(ViewOf("groups { }"), "a group of 0 nodes");
  ExpectWrong<ViewRecord>(ViewOf("groups { slots: [1, 0] k: 1 }"), "not ascending: 1, 0");
  ExpectWrong<ViewRecord>(ViewOf("groups { slots: [1, 1] k: 1 }"), "not ascending");
  ExpectWrong<ViewRecord>(ViewOf("groups { slots: [0, 2] k: 1 }"), "slot 2 is in a group");
  ExpectWrong<ViewRecord>(ViewOf("groups { slots: [0, 1] k: 1 } groups { slots: [1, 4] k: 1 }"),
                          "slot 1 is in two groups");
  std::string many;
  std::string slots = "0";
  for (int slot = 0; slot < 200; ++slot) many += "members { slot: " + std::to_string(slot) + " }";
  for (int slot = 1; slot < 200; ++slot) slots += ", " + std::to_string(slot);
  ExpectWrong<ViewRecord>(many + "groups { slots: [" + slots + "] k: 2 }", "RS(2,198)");
  ExpectWrong<ViewRecord>(many + "groups { slots: [" + slots + "] k: 200 }", "RS(200,0)");
}

TEST(RecordChecksTest, TimelinesAscend) {
  EXPECT_TRUE(Check<TimelineRecord>(R"(chain { timeline: 1 } chain { timeline: 3
      parent_timeline: 1 parent_step: 7 } decision { kind: 2 holders { slot: 0 ranks: [0, 1] }
      asked { rank: 0 } asked { rank: 1 } } world: 2)")
                  .ok());
  ExpectWrong<TimelineRecord>("chain { timeline: 0 }", "timeline 0 of parent 0");
  ExpectWrong<TimelineRecord>("chain { timeline: 2 } chain { timeline: 2 }", "after timeline 2");
  ExpectWrong<TimelineRecord>("chain { timeline: 2 parent_timeline: 2 }", "of parent 2");
  ExpectWrong<TimelineRecord>("world: 8589934592", "a world of 8589934592 ranks");
  ExpectWrong<TimelineRecord>("decision { kind: 9 }", "of kind 9");
  ExpectWrong<TimelineRecord>("decision { }", "of kind 0");
  ExpectWrong<TimelineRecord>("in_force { kind: 9 }", "of kind 9");
  ExpectWrong<TimelineRecord>("rewind { timeline: 1 step: 18446744073709551615 }",
                              "the largest is");
  EXPECT_TRUE(Check<TimelineRecord>("resize { nodes: 3 without: [1, 5] ordered_s: 7 }").ok());
  ExpectWrong<TimelineRecord>("resize { nodes: 16385 }", "needed 1 to 16384");
  ExpectWrong<TimelineRecord>("resize { nodes: 0 }", "0 nodes to run on");
  ExpectWrong<TimelineRecord>("resize { without: [2, 2] }", "not ascending: 2, 2");
  ExpectWrong<TimelineRecord>(
      "decision { kind: 2 holders { ranks: 1 } holders { slot: 1 ranks: 1 } }", "is on two nodes");
  ExpectWrong<TimelineRecord>("asked { rank: 3 } asked { rank: 3 }", "rank 3 asks");
  ExpectWrong<TimelineRecord>("asked { rank: 8589934592 }", "below 1048576");
}

TEST(RecordChecksTest, ACommitHasEachRankOnce) {
  EXPECT_TRUE(Check<CommitRecord>(R"(timeline: 1 step: 5 world: 3 groups { slots: [0, 1] k: 1 }
      holders { slot: 0 ranks: [0, 2] } holders { slot: 1 ranks: 1 })")
                  .ok());
  ExpectWrong<CommitRecord>("world: 2 holders { ranks: 0 }",
                            "1 ranks, up to rank 0, in a world of 2");
  ExpectWrong<CommitRecord>("world: 2 holders { ranks: [0, 2] }", "up to rank 2");
  ExpectWrong<CommitRecord>("world: 2 holders { ranks: [0, 0] }", "rank 0 is on two nodes");
  ExpectWrong<CommitRecord>("world: 8589934592", "a world of 8589934592");
  ExpectWrong<CommitRecord>("groups { slots: [0, 1] k: 5 }", "5 data chunks");
}

TEST(RecordChecksTest, TextsHaveALimit) {
  ExpectWrong<PresenceRecord>("address: '" + std::string(1025, 'x') + "'", "bytes of an address");
  ExpectWrong<SpareRecord>("presence { failure_domain: '" + std::string(1025, 'x') + "' }",
                           "bytes of a failure domain");
  ExpectWrong<PinRecord>("pins { owner: '" + std::string(1025, 'x') + "' }", "pin's owner");
}

TEST(RecordChecksTest, NoVersionIsBeyondTheBounds) {
  const std::string huge = "18446744073709551614";
  EXPECT_TRUE(Check<AbandonRecord>("timeline: 1 after_step: 5 through_step: 6").ok());
  ExpectWrong<AbandonRecord>("timeline: 1 after_step: 6 through_step: 5", "after 6 and up to 5");
  ExpectWrong<AbandonRecord>("timeline: 1 through_step: " + huge, huge);
  ExpectWrong<CommitRecord>("timeline: 1 step: " + huge, huge);
  ExpectWrong<TimelineRecord>("chain { timeline: " + huge + " }", huge);
  ExpectWrong<TimelineRecord>("chain { timeline: 1 parent_step: " + huge + " }", huge);
  ExpectWrong<TimelineRecord>("round: " + huge, huge);
  ExpectWrong<TimelineRecord>("decision { kind: 1 timeline: " + huge + " }", huge);
  ExpectWrong<TimelineRecord>("decision { kind: 2 version_step: " + huge + " }", huge);
  ExpectWrong<PinRecord>("pins { timeline: 1 step: " + huge + " }", huge);
  ExpectWrong<SeedRecord>("epoch: " + huge, huge);
  ExpectWrong<WaitingRecord>("kept_epoch: " + huge, huge);
  ExpectWrong<WaitingRecord>("asking: " + huge, huge);
}

}  // namespace
}  // namespace unreft::meta
