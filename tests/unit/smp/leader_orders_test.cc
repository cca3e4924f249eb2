// Orders of operators: in the order in which they come, each once nothing else is being written.

#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LeaderOrdersTest : public LeaderFixture {
 protected:
  LeaderOrdersTest() {
    Ask(1);
    Protect(At(1, 5));
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == At(1, 5));
  }

  static ResizeRequest Nodes(uint64_t nodes) {
    ResizeRequest request;
    request.mutable_order()->set_nodes(nodes);
    return request;
  }
  static ResizeRequest Cancel() {
    ResizeRequest request;
    request.set_cancel(true);
    return request;
  }
  // All in one turn, so that the first is being written while the others wait.
  void Order(const std::vector<ResizeRequest>& requests) {
    answers_.assign(requests.size(), std::nullopt);
    InTurn([&] {
      for (size_t i = 0; i < requests.size(); ++i) {
        leader_->Resize(NodeSlot{2}, requests[i], [this, i](absl::StatusOr<ResizeReply> reply) {
          answers_[i] = reply.status();
          answered_.push_back(i);
        });
      }
    });
  }
  bool IsOk(size_t i) const { return answers_[i] && answers_[i]->ok(); }
  std::string FailureOf(size_t i) const {
    return answers_[i] ? std::string(answers_[i]->message()) : "no answer";
  }
  const TimelineRecord& timeline() { return store_->state().timeline.value; }

  std::vector<std::optional<absl::Status>> answers_;
  std::vector<size_t> answered_;
};

TEST_F(LeaderOrdersTest, TheyAreCarriedOutInTheOrderInWhichTheyCome) {
  Order({Nodes(3), Cancel(), Nodes(2), Nodes(3)});
  Settle();
  EXPECT_THAT(answered_, ElementsAre(0, 1, 2, 3));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(IsOk(i)) << i << ": " << FailureOf(i);
  EXPECT_EQ(timeline().resize().nodes(), 3u);
  Order({Cancel(), Cancel()});
  Settle();
  EXPECT_TRUE(IsOk(0));
  EXPECT_THAT(FailureOf(1), HasSubstr("nothing is ordered"));
  EXPECT_FALSE(timeline().has_resize());
}

TEST_F(LeaderOrdersTest, WhoeverHasGivenUpWaitingHasOrderedNothing) {
  options_.call_timeout = std::chrono::microseconds(1);
  Order({Nodes(3), Nodes(2)});
  Settle();
  EXPECT_TRUE(IsOk(0)) << FailureOf(0);
  EXPECT_TRUE(absl::IsUnavailable(*answers_[1])) << *answers_[1];
  EXPECT_THAT(FailureOf(1), HasSubstr("the leader had other records to write"));
  EXPECT_EQ(timeline().resize().nodes(), 3u);
}

TEST_F(LeaderOrdersTest, WhoeverWaitsForALeaderThatGoesIsToldSo) {
  Order({Nodes(3), Nodes(2)});
  StartLeader();
  Settle();
  EXPECT_THAT(FailureOf(0), HasSubstr("the leader has changed")) << "whether it was written or not";
  EXPECT_THAT(FailureOf(1), HasSubstr("the leader has changed"));
  EXPECT_NE(timeline().resize().nodes(), 2u);
}

TEST_F(LeaderOrdersTest, NoMoreThanSomeWait) {
  Order(std::vector<ResizeRequest>(70, Nodes(3)));
  EXPECT_THAT(FailureOf(65), HasSubstr("64 orders wait, the limit is 64"));
  EXPECT_EQ(FailureOf(64), "no answer");
  Settle();
  for (size_t i = 0; i <= 64; ++i) EXPECT_TRUE(IsOk(i)) << i << ": " << FailureOf(i);
}

TEST_F(LeaderOrdersTest, AFreshStartWaitsForItsTurnToo) {
  absl::StatusOr<uint64_t> opens = absl::UnknownError("no answer");
  Order({Nodes(3)});
  InTurn([&] {
    leader_->DeclareFreshStart(NodeSlot{2}, true, [&](auto answer) { opens = answer; });
  });
  Settle();
  EXPECT_TRUE(IsOk(0)) << FailureOf(0);
  ASSERT_TRUE(opens.ok()) << opens.status();
  EXPECT_EQ(commit().world(), 0u);
}

}  // namespace
}  // namespace unreft::smp
