// What a node of several answers to the question whether anything was ever committed.

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "smp/job/cluster_records.h"
#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using Answer = std::shared_ptr<std::optional<absl::StatusOr<bool>>>;

class MemberEverCommittedTest : public MemberFixture {
 protected:
  Answer Ask() {
    auto answer = std::make_shared<std::optional<absl::StatusOr<bool>>>();
    InTurnOf(*process_, [&] {
      member_->AskEverCommitted([answer](auto ever) { *answer = std::move(ever); });
    });
    Settle();
    return answer;
  }
  void PutCommit(uint64_t world) {
    CommitRecord record;
    SetVersion({Timeline{1}, Step{5}}, record);
    record.set_world(world);
    Put("commit", record);
  }
};

TEST_F(MemberEverCommittedTest, ItSaysWhatTheRecordsSay) {
  StartMember();
  EXPECT_EQ(**Ask(), absl::StatusOr<bool>(false)) << "also before anybody leads";
  PutCommit(2);
  EXPECT_EQ(**Ask(), absl::StatusOr<bool>(true));
  PutCommit(0);
  EXPECT_EQ(**Ask(), absl::StatusOr<bool>(false)) << "a fresh start was declared";
}

TEST_F(MemberEverCommittedTest, ItWaitsUntilTheRecordsAreReadAndNotForEver) {
  PutCommit(2);
  kv_store_.Kill();
  StartMember();
  const Answer late = Ask();
  EXPECT_FALSE(late->has_value()) << "its own memory may be behind";
  Settle(options_.call_timeout);
  ASSERT_TRUE(late->has_value());
  EXPECT_TRUE(absl::IsUnavailable((*late)->status())) << (*late)->status();
}

}  // namespace
}  // namespace unreft::smp
