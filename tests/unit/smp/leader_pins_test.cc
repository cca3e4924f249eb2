// Versions that are kept for somebody, as the leader grants and ends it.

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class LeaderPinsTest : public LeaderFixture {
 protected:
  // The first attempt, of a job of which nothing is stored.
  LeaderPinsTest() { LeaderFixture::Ask(1); }

  absl::StatusOr<PinReply> Ask(const std::string& owner, uint64_t step, uint64_t for_ms,
                               bool unpin = false) {
    PinRequest request;
    request.set_owner(owner);
    request.set_step(step);
    request.set_for_ms(for_ms);
    request.set_unpin(unpin);
    // One that comes later is of no use to the test.
    auto reply = std::make_shared<absl::StatusOr<PinReply>>(absl::UnknownError("no answer"));
    InTurn(
        [&] { leader_->AskPins(request, [reply](auto answer) { *reply = std::move(answer); }); });
    Settle();
    return *reply;
  }
  void CommitStep(uint64_t step) {
    Protect(At(1, step));
    ReportAll();
    UNREFT_CHECK(VersionOf(commit()) == At(1, step));
  }
  const PinRecord& pins() const { return store_->state().pins.value; }
};

TEST_F(LeaderPinsTest, WhatIsCommittedIsPinnedUntilItsTimeIsUp) {
  options_.pins = 1;
  CommitStep(5);
  const auto reply = Ask("export", 0, 5000);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(VersionOf(reply->pins(0)), At(1, 5));
  CommitStep(6);
  EXPECT_TRUE(IsPinned(pins(), At(1, 5)));
  Settle(seconds(3));
  EXPECT_TRUE(IsPinned(pins(), At(1, 5)));
  Settle(seconds(3));
  EXPECT_FALSE(IsPinned(pins(), At(1, 5)));
}

// A record that cannot be written is tried again and again.
TEST_F(LeaderPinsTest, ThatAPinIsOverIsSaidOnceThoughTheStoreDoesNotAnswer) {
  options_.pins = 1;
  CommitStep(5);
  ASSERT_TRUE(Ask("export", 0, 5000).ok());
  kv_store_.Kill();
  Settle(seconds(6));
  kv_store_.Restart();
  Settle(seconds(3));
  EXPECT_FALSE(IsPinned(pins(), At(1, 5)));
  EXPECT_EQ(sink_.Count("pins: 1 of 1 are over"), 1U);
}

TEST_F(LeaderPinsTest, APinIsSaidOnceItIsWritten) {
  options_.pins = 1;
  CommitStep(5);
  EXPECT_TRUE(Ask("export", 0, 60'000).ok());
  EXPECT_EQ(sink_.Count("version 1:5 is pinned by 'export'"), 1U);
  kv_store_.CutOff(*executor_);
  EXPECT_FALSE(Ask("nightly", 0, 60'000).ok());
  EXPECT_EQ(sink_.Count("pinned by 'nightly'"), 0U);
  Settle(seconds(2));  // that one is given up
  EXPECT_FALSE(Ask("export", 0, 0, true).ok());
  EXPECT_EQ(sink_.Count("unpinned"), 0U);
}

TEST_F(LeaderPinsTest, OneIsRefusedWithoutASlotUntilTheOtherIsUnpinned) {
  options_.pins = 1;
  CommitStep(5);
  ASSERT_TRUE(Ask("export", 0, 60'000).ok());
  CommitStep(6);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask("nightly", 0, 60'000).status()));
  ASSERT_TRUE(Ask("export", 0, 0, true).ok());
  EXPECT_TRUE(pins().pins().empty());
  EXPECT_TRUE(Ask("nightly", 0, 60'000).ok());
  EXPECT_TRUE(IsPinned(pins(), At(1, 6)));
}

TEST_F(LeaderPinsTest, ManyAtOnceAreAnsweredOneAfterTheOther) {
  options_.pins = 1;
  CommitStep(5);
  std::vector<absl::Status> answers;
  InTurn([&] {
    for (const std::string owner : {"a", "b", "c"}) {
      PinRequest request;
      request.set_owner(owner);
      request.set_for_ms(60'000);
      leader_->AskPins(request, [&](auto answer) { answers.push_back(answer.status()); });
    }
  });
  Settle();
  EXPECT_EQ(answers, std::vector<absl::Status>(3));
  EXPECT_EQ(pins().pins_size(), 3);
}

TEST_F(LeaderPinsTest, ANewLeaderKeepsThemAndCountsAnew) {
  options_.pins = 1;
  CommitStep(5);
  ASSERT_TRUE(Ask("export", 0, 5000).ok());
  Settle(seconds(3));
  StartLeader();
  ReportAll();
  Settle(seconds(3));
  EXPECT_TRUE(IsPinned(pins(), At(1, 5)));
  Settle(seconds(3));
  EXPECT_FALSE(IsPinned(pins(), At(1, 5)));
}

TEST_F(LeaderPinsTest, WhoWaitsWhenTheLeaderGoesIsTold) {
  options_.pins = 1;
  CommitStep(5);
  // The first is being written when the leader goes.
  std::vector<absl::Status> answers(2, absl::UnknownError("no answer"));
  InTurn([&] {
    for (size_t i = 0; i < answers.size(); ++i) {
      PinRequest request;
      request.set_owner(fmt::format("owner {}", i));
      request.set_for_ms(60'000);
      leader_->AskPins(request, [&, i](auto answer) { answers[i] = answer.status(); });
    }
    leader_.reset();
  });
  Settle();
  EXPECT_TRUE(answers[0].ok()) << answers[0];
  EXPECT_TRUE(absl::IsUnavailable(answers[1])) << answers[1];
  StartLeader();
  ReportAll();
  ASSERT_EQ(pins().pins_size(), 1);
  EXPECT_EQ(pins().pins(0).owner(), "owner 0");
}

TEST_F(LeaderPinsTest, AFreshStartEndsThem) {
  options_.pins = 1;
  CommitStep(5);
  ASSERT_TRUE(Ask("export", 0, 60'000).ok());
  absl::Status status = absl::UnknownError("no answer");
  InTurn([&] {
    leader_->DeclareFreshStart(NodeSlot{1}, false, [&](auto opens) { status = opens.status(); });
  });
  Settle();
  ASSERT_TRUE(status.ok()) << status;
  ReportAll();
  EXPECT_TRUE(pins().pins().empty());
}

}  // namespace
}  // namespace unreft::smp
