#include "smp/job/reporter.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "smp/core/pace.h"
#include "tests/unit/smp/two_peers_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Duration kInterval = milliseconds(200);

class ReporterTest : public TwoPeersFixture {
 protected:
  // Node 1 leads.
  ReporterTest() {
    options_.nodes = 2;
    options_.report_interval = kInterval;
    InTurn([this] {
      reporter_ = std::make_unique<Reporter>(Reporter::Seams{*executor_, peers_, log_}, reports_,
                                             node_, options_, [this] {
                                               ++searches_;
                                               return listener_;
                                             });
    });
    other_peers_.Serve("report",
                       [this](NodeSlot, const std::string& body, Transport::CallDone done) {
                         UNREFT_CHECK(told_.emplace_back().ParseFromString(body));
                         if (answers_) return done(reply_.SerializeAsString());
                         unanswered_.push_back(std::move(done));
                       });
  }
  ~ReporterTest() override { executor_->Kill(); }

  static meta::HeldKey Key(uint64_t revision) { return {meta::Revision{revision}, "node1"}; }
  void Report() {
    InTurn([this] { reporter_->Report(); });
  }
  void ReportSoon() {
    InTurn([this] { reporter_->ReportSoon(); });
  }
  void AnswerOldest() {
    other_executor_->Deliver(Duration{}, [this] {
      unanswered_.front()(reply_.SerializeAsString());
      unanswered_.erase(unanswered_.begin());
    });
  }

  std::unique_ptr<KeptRecords> kept_ = OpenKept();
  OwnVersions versions_{*record_, job_, node_, protection_};
  Follower follower_{*kept_, *record_, versions_, node_, protection_, [] {}};
  ReportMaker reports_{{*record_, *kept_, follower_, versions_, node_, protection_}};
  std::optional<Reporter::Listener> listener_ = Reporter::Listener{NodeSlot{1}, Key(1)};
  int searches_ = 0;
  std::unique_ptr<Reporter> reporter_;
  std::vector<NodeReport> told_;
  ReportReply reply_;
  bool answers_ = true;
  std::vector<Transport::CallDone> unanswered_;
};

TEST_F(ReporterTest, NothingIsToldUnasked) {
  Settle(seconds(2));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(ReporterTest, WhatIsToldOnceIsToldNowAndThen) {
  Report();
  Settle(milliseconds(50));
  EXPECT_THAT(told_, SizeIs(1));
  Settle(5 * kInterval);
  EXPECT_GE(told_.size(), 4U);
  EXPECT_LE(told_.size(), 6U);
}

TEST_F(ReporterTest, ChangesWithinThePaceAreInOneReport) {
  for (int i = 0; i < 10; ++i) Report();
  Settle(milliseconds(2));
  EXPECT_THAT(told_, SizeIs(1)) << "the first of them at once";
  for (int i = 0; i < 10; ++i) Report();
  Settle(milliseconds(1));
  EXPECT_THAT(told_, SizeIs(1));
  Settle(2 * PaceOf(options_.nodes));
  EXPECT_THAT(told_, SizeIs(2));
}

TEST_F(ReporterTest, WhatNothingWaitsForIsToldWithinATenthOfTheInterval) {
  for (int i = 0; i < 10; ++i) ReportSoon();
  Settle(kInterval / 20);
  EXPECT_THAT(told_, IsEmpty());
  Settle(kInterval / 10);
  EXPECT_THAT(told_, SizeIs(1));
}

TEST_F(ReporterTest, WhatNothingWaitsForIsToldWithWhatComesNext) {
  ReportSoon();
  Report();
  Settle(kInterval / 2);
  EXPECT_THAT(told_, SizeIs(1));
  answers_ = false;
  Report();
  Settle(milliseconds(20));
  ReportSoon();
  answers_ = true;
  AnswerOldest();
  Settle(kInterval / 10 + milliseconds(20));
  EXPECT_THAT(told_, SizeIs(3)) << "also after an answer that was waited for";
}

TEST_F(ReporterTest, WhatChangesBeforeTheAnswerIsToldWithIt) {
  answers_ = false;
  Report();
  Settle(milliseconds(20));
  Report();
  Settle(milliseconds(100));
  EXPECT_THAT(told_, SizeIs(1));
  AnswerOldest();
  Settle(milliseconds(20));
  EXPECT_THAT(told_, SizeIs(2));
}

// The call to the last one would be waited for until it is given up.
TEST_F(ReporterTest, AnotherLeaderIsToldThoughTheLastOneDidNotAnswer) {
  answers_ = false;
  Report();
  Settle(milliseconds(20));
  listener_->key = Key(2);
  InTurn([this] {
    reporter_->FollowLeader(Key(1));
    reporter_->Report();
  });
  Settle(milliseconds(50));
  EXPECT_THAT(told_, SizeIs(1)) << "it still leads";
  InTurn([this] {
    reporter_->FollowLeader(Key(2));
    reporter_->Report();
  });
  Settle(milliseconds(50));
  EXPECT_THAT(told_, SizeIs(2));
  // What the last one says is over.
  reply_.set_obstacle("waits for rank 7");
  AnswerOldest();
  Settle(milliseconds(20));
  EXPECT_EQ(node_.obstacle, "");
  AnswerOldest();
  Settle(milliseconds(20));
  EXPECT_EQ(node_.obstacle, "waits for rank 7");
}

TEST_F(ReporterTest, WhileNobodyLeadsItIsLookedForAndNothingIsInTheWay) {
  node_.obstacle = "waits for rank 7";
  listener_.reset();
  Report();
  Settle(5 * kInterval);
  EXPECT_EQ(node_.obstacle, "");
  EXPECT_GE(searches_, 4);
  EXPECT_THAT(told_, IsEmpty());
  listener_ = Reporter::Listener{NodeSlot{1}, Key(1)};
  Settle(2 * kInterval);
  EXPECT_FALSE(told_.empty());
}

TEST_F(ReporterTest, ACallThatFailsIsMadeAgain) {
  network_.Block("node0", "node1");
  options_.call_timeout = milliseconds(100);
  Report();
  Settle(kInterval);
  network_.Unblock("node0", "node1");
  Settle(2 * kInterval);
  EXPECT_FALSE(told_.empty());
  EXPECT_THAT(node_.checks, SizeIs(told_.size()));
}

TEST_F(ReporterTest, WhileRegistrationsAreNotFoundToFitItAsksSoon) {
  reply_.set_registrations(static_cast<uint32_t>(RegistrationState::kLooking));
  Report();
  Settle(kInterval);
  EXPECT_GE(told_.size(), 5U);
  EXPECT_THAT(node_.checks, IsEmpty());
  reply_.set_registrations(static_cast<uint32_t>(RegistrationState::kMisfit));
  reply_.set_misfit("ranks 0 and 1 differ");
  Settle(kInterval);
  ASSERT_FALSE(node_.checks.empty());
  EXPECT_EQ(node_.checks.back().status, absl::FailedPreconditionError("ranks 0 and 1 differ"));
  reply_.set_registrations(static_cast<uint32_t>(RegistrationState::kFit));
  Settle(kInterval);
  EXPECT_TRUE(node_.checks.back().status.ok());
  told_.clear();
  Settle(kInterval);
  EXPECT_LE(told_.size(), 2U);
}

TEST_F(ReporterTest, AnAnswerThatDoesNotParseIsSaidAndTheNextIsAwaited) {
  answers_ = false;
  Report();
  Settle(milliseconds(20));
  other_executor_->Deliver(Duration{}, [this] { unanswered_.at(0)("\xff"); });
  answers_ = true;
  Settle(2 * kInterval);
  EXPECT_EQ(sink_.Count("the leader's answer to a report, of 1 bytes, is of no use"), 1U);
  EXPECT_GE(told_.size(), 2U);
}

}  // namespace
}  // namespace unreft::smp
