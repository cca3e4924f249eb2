// What a member tells the leader, and what it does when the job's records say something.

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "smp/node/cluster_status.h"
#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MemberTest : public MemberFixture {
 protected:
  // Node 1 leads, and a fresh start was decided.
  MemberTest() {
    leader_ = &Join(1, true);
    StartMember();
    Put("timeline", Decided(1, 1, Version{}));
    UNREFT_CHECK(node_.decisions.size() == 1);
  }
  // What comes of the leader's question whether 1:5 verifies.
  std::shared_ptr<absl::Status> AskToVerify(uint64_t round, uint64_t session) {
    VerifyRequest request;
    request.set_round(round);
    request.set_session(session);
    request.set_incarnation(leader_->reports.back().incarnation());
    SetVersion(At(1, 5), request);
    auto answer = std::make_shared<absl::Status>(absl::UnknownError("no answer"));
    InTurnOf(*leader_->executor, [&] {
      leader_->peers->Ask<VerifyReply>(NodeSlot{0}, "verify", request, seconds(1),
                                       [answer](auto reply) { *answer = reply.status(); });
    });
    return answer;
  }
};

// --- what it says last ---

TEST_F(MemberTest, WhoLeavesIsAbsentAtOnceAndAnotherLeads) {
  Leave(*leader_);
  Settle(seconds(4));
  ASSERT_TRUE(member_->leads());
  leader_ = &Join(1, true);
  bool left = false;
  InTurnOf(*process_, [&] { member_->Leave([&] { left = true; }); });
  Settle(milliseconds(100));
  EXPECT_TRUE(left);
  const meta::JobState& state = leader_->store->state();
  EXPECT_FALSE(state.present.contains(NodeSlot{0}));
  EXPECT_TRUE(state.leaving.contains(NodeSlot{0}));
  EXPECT_FALSE(state.leader.exists() && state.leader.value.slot() == 0);
  // However long its end takes: it does not come back, and does not report.
  const size_t reports = leader_->reports.size();
  Settle(seconds(5));
  EXPECT_EQ(state.leader.value.slot(), 1U);
  EXPECT_FALSE(state.present.contains(NodeSlot{0}));
  EXPECT_EQ(leader_->reports.size(), reports);
}

TEST_F(MemberTest, WhoLeavesWhileTheStoreIsAwayIsNotToldThatItKnows) {
  kv_store_.CutOff(*process_);
  bool left = false;
  InTurnOf(*process_, [&] { member_->Leave([&] { left = true; }); });
  Settle(seconds(4));  // its calls have failed by then
  EXPECT_FALSE(left);
}

// --- what it tells ---

TEST_F(MemberTest, TellsTheLeaderOnEveryChangeAndNowAndThen) {
  const size_t before = leader_->reports.size();
  Do([](Member& member) { member.ReportClaimed(At(1, 5), Rank{0}); });
  ASSERT_GT(leader_->reports.size(), before);
  EXPECT_EQ(leader_->reports.back().newest_step(), 5U);
  EXPECT_EQ(leader_->reports.back().session(), record_->session().value);
  EXPECT_TRUE(Said(At(1, 5)));
  const size_t quiet = leader_->reports.size();
  Settle(seconds(1));
  EXPECT_GE(leader_->reports.size(), quiet + 4);
}

// A node of new memory said that none had, though the one before it had captured: the timeline was
// given again.
TEST_F(MemberTest, ACaptureMayHaveBegunInATimelineThatWasOpenedWithoutIt) {
  EXPECT_TRUE(leader_->reports.back().capture_began());
  TimelineRecord closing = Chain(1, 2);
  closing.set_closing(true);
  Put("timeline", closing);
  Do([&](Member&) { node_.closing.back()(); });
  Put("timeline", Decided(2, 2, At(1, 10)));
  EXPECT_FALSE(leader_->reports.back().capture_began());
  Put("timeline", Decided(3, 3, At(2, 20)));
  EXPECT_TRUE(leader_->reports.back().capture_began());
}

TEST_F(MemberTest, NamesTheRankWhoseCaptureFailedAndTheFirstReasonOnly) {
  Do([](Member& member) {
    member.ReportFailed(At(1, 5), Rank{3}, "skipped");
    member.ReportFailed(At(1, 5), Rank{4}, "skipped, too");
  });
  EXPECT_EQ(Said(At(1, 5))->failure(), "rank 3: skipped");
}

TEST_F(MemberTest, WhoAsksIsToldUntilADecisionIsForThem) {
  Do([](Member& member) {
    member.AskDecision(Attempt{2}, 2, {{Rank{0}, {100, 7}}, {Rank{1}, {101, 7}}});
  });
  EXPECT_EQ(leader_->reports.back().attempt(), 2U);
  ASSERT_EQ(leader_->reports.back().asking_size(), 2);
  EXPECT_EQ(leader_->reports.back().asking(1).pid(), 101);
  // One for other lives of theirs is not theirs.
  TimelineRecord other = Decided(2, 2, At(1, 10));
  other.mutable_decision()->add_asked()->set_pid(99);
  Put("timeline", other);
  EXPECT_EQ(leader_->reports.back().asking_size(), 2);
  TimelineRecord theirs = Decided(2, 3, At(1, 10));
  for (const int rank : {0, 1}) {
    AskingRank& asked = *theirs.mutable_decision()->add_asked();
    asked.set_rank(rank);
    asked.set_pid(100 + rank);
    asked.set_start_time(7);
  }
  Put("timeline", theirs);
  Settle(seconds(1));
  EXPECT_EQ(leader_->reports.back().asking_size(), 0);
  EXPECT_EQ(leader_->reports.back().round_applied(), 3U);
}

TEST_F(MemberTest, AReportThatTheLastLeaderDidNotAnswerKeepsNothingFromTheNext) {
  leader_->answers = false;
  Do([](Member& member) { member.ReportClaimed(At(1, 5), Rank{0}); });
  Other& next = Join(2, false);
  ASSERT_TRUE(next.reports.empty());
  // Long before the call to the last one is given up.
  ASSERT_GE(options_.call_timeout, seconds(5));
  Put("leader", PresenceOf(2));
  Settle(milliseconds(200));
  leader_ = &next;
  ASSERT_FALSE(next.reports.empty());
  EXPECT_TRUE(Said(At(1, 5)));
}

// --- the timeline ---

TEST_F(MemberTest, ClosesOnceForARoundAndSaysWhenItHas) {
  TimelineRecord record = Chain(1, 2);
  record.set_closing(true);
  Put("timeline", record);
  record.set_attempt(9);  // the same round, written again
  Put("timeline", record);
  ASSERT_EQ(node_.closing.size(), 1U);
  EXPECT_EQ(leader_->reports.back().round_closed(), 0U);
  Do([this](Member&) { node_.closing[0](); });
  EXPECT_EQ(leader_->reports.back().round_closed(), 2U);
}

TEST_F(MemberTest, CarriesADecisionOutOnce) {
  const TimelineRecord record = Decided(2, 2, At(1, 10));
  Put("commit", Committed(At(1, 10)));
  Put("timeline", record);
  Put("timeline", record);
  ASSERT_EQ(node_.decisions.size(), 2U);
  EXPECT_EQ(node_.decisions[1].version, At(1, 10));
  EXPECT_EQ(record_->committed(), At(1, 10));
  EXPECT_EQ(record_->chain().newest(), Timeline{2});
}

TEST_F(MemberTest, AFailedDecisionIsToldAndLeavesTheTimeline) {
  TimelineRecord record = Chain(1, 2);
  record.mutable_decision()->set_round(2);
  record.mutable_decision()->set_kind(static_cast<uint32_t>(DecisionKind::kFailed));
  record.mutable_decision()->set_status_code(static_cast<uint32_t>(absl::StatusCode::kDataLoss));
  record.mutable_decision()->set_status_message("unrecoverable");
  Put("timeline", record);
  ASSERT_EQ(node_.decisions.size(), 2U);
  EXPECT_TRUE(absl::IsDataLoss(node_.decisions[1].status));
  EXPECT_EQ(record_->chain().newest(), Timeline{1});
}

TEST_F(MemberTest, WhatADaemonThatStartedAnewReadsMayBeLongOver) {
  Put("timeline", Decided(2, 2, At(1, 10)));
  Put("commit", Committed(At(2, 11)));
  StopMember();
  node_.decisions.clear();
  StartMember();
  EXPECT_THAT(node_.decisions, IsEmpty());
  EXPECT_EQ(record_->committed(), At(2, 11));
}

// The daemon kept the timeline closed through all commits that followed.
TEST_F(MemberTest, ADecisionThatIsOverWhenItIsReadOpensTheTimelineAllTheSame) {
  TimelineRecord closing = Chain(1, 2);
  closing.set_closing(true);
  Put("timeline", closing);
  ASSERT_EQ(node_.closing.size(), 1U);
  const size_t told = node_.decisions.size();
  Put("commit", Committed(At(2, 11)));
  Put("timeline", Decided(2, 2, At(1, 10)));
  EXPECT_EQ(node_.decisions.size(), told);
  EXPECT_EQ(node_.reopened, 1);
  EXPECT_EQ(record_->committed(), At(2, 11));
}

// Of a leader of a thousand nodes the reports would else be all it does.
TEST_F(MemberTest, WhatNothingWaitsForIsToldALittleLater) {
  Settle(milliseconds(50));
  node_.ranks = 2;
  const size_t before = leader_->reports.size();
  const auto manifest = std::make_shared<const layout::SlotManifest>();
  node_.held.push_back({{.version = At(1, 11), .rank = Rank{0}, .world = 2}, manifest});
  InTurnOf(*process_, [this] {
    for (const uint64_t rank : {0, 1}) member_->ReportClaimed(At(1, 11), Rank{rank});
    member_->ReportSealed(At(1, 11), Rank{0});
  });
  Settle(options_.report_interval / 20);
  EXPECT_FALSE(Said(At(1, 11)));
  Settle(options_.report_interval / 10);
  EXPECT_EQ(leader_->reports.size(), before + 1);
  node_.held.push_back({{.version = At(1, 11), .rank = Rank{1}, .world = 2}, manifest});
  InTurnOf(*process_, [this] { member_->ReportSealed(At(1, 11), Rank{1}); });
  Settle(milliseconds(5));
  ASSERT_TRUE(Said(At(1, 11)));
  EXPECT_EQ(Said(At(1, 11))->sealed_size(), 2) << "a version waits for the last rank";
}

TEST_F(MemberTest, ADecisionThatNothingWasCommittedSinceIsToldAgain) {
  Put("timeline", Decided(2, 2, At(1, 10)));
  StopMember();
  node_.decisions.clear();
  StartMember();
  ASSERT_EQ(node_.decisions.size(), 1U);
  EXPECT_EQ(node_.decisions[0].version, At(1, 10));
}

// --- commits ---

TEST_F(MemberTest, ACommitGivesUpWhatIsOlderAndNotYetWhole) {
  Do([](Member& member) {
    for (const uint64_t step : {4, 5, 6}) member.ReportClaimed(At(1, step), Rank{0});
  });
  Put("commit", Committed(At(1, 5)));
  Put("commit", Committed(At(1, 5)));
  EXPECT_THAT(node_.committed, ElementsAre(At(1, 5)));
  ASSERT_EQ(node_.abandoned.size(), 1U);
  EXPECT_EQ(node_.abandoned[0].version, At(1, 4));
  EXPECT_THAT(node_.abandoned[0].reason, HasSubstr("1:5 was committed"));
  EXPECT_EQ(record_->committed(), At(1, 5));
  EXPECT_TRUE(Said(At(1, 6)));
  EXPECT_FALSE(Said(At(1, 4)));
}

TEST_F(MemberTest, ACommitOfATimelineThatItHasNotHeardOfWaits) {
  Put("commit", Committed(At(2, 11)));
  EXPECT_THAT(node_.committed, IsEmpty());
  Put("timeline", Decided(2, 2, At(1, 10)));
  EXPECT_THAT(node_.committed, ElementsAre(At(2, 11)));
}

TEST_F(MemberTest, AFreshStartIsACommitOfNothing) {
  Put("commit", Committed(At(1, 5)));
  TimelineRecord timeline = Chain(1, 1);
  timeline.add_chain()->set_timeline(2);
  *timeline.mutable_decision() = Decided(1, 1, Version{}).decision();
  Put("timeline", timeline);
  Put("commit", Committed(At(2, 0), 0));
  EXPECT_EQ(record_->committed_world(), 0U);
  EXPECT_EQ(record_->chain().newest(), Timeline{2});
}

// --- pins ---

TEST_F(MemberTest, SaysWhatIsKeptBeforeACommitThatMayRetire) {
  ASSERT_EQ(node_.pins.size(), 1U) << "also when nothing is";
  PinRecord pins;
  SetVersion(At(1, 5), *pins.add_pins());
  Put("pins", pins);
  ASSERT_EQ(node_.pins.size(), 2U);
  EXPECT_TRUE(IsPinned(node_.pins[1], At(1, 5)));
  Put("commit", Committed(At(1, 6)));
  EXPECT_EQ(node_.pins.size(), 2U);
}

// Its slots were freed as those of a version that a newer one has overruled.
TEST_F(MemberTest, AVersionThatIsPinnedIsKeptThoughItsCommitWasMissed) {
  Do([](Member& member) { member.ReportSealed(At(1, 5), Rank{0}); });
  PinRecord pins;
  SetVersion(At(1, 5), *pins.add_pins());
  Put("pins", pins);
  Put("commit", Committed(At(1, 6)));
  EXPECT_TRUE(node_.abandoned.empty());
}

// --- questions ---

TEST_F(MemberTest, VerifiesOnlyForTheRoundThatItHasClosedAndOnlyAsItself) {
  TimelineRecord record = Chain(1, 2);
  record.set_closing(true);
  Put("timeline", record);
  Do([this](Member&) { node_.closing.at(0)(); });
  const auto asked = [this](uint64_t round, uint64_t session) {
    const auto answer = AskToVerify(round, session);
    Settle();
    return *answer;
  };
  const uint64_t session = leader_->reports.back().session();
  EXPECT_TRUE(absl::IsFailedPrecondition(asked(1, session)));
  EXPECT_TRUE(absl::IsFailedPrecondition(asked(2, session + 1)));
  EXPECT_TRUE(asked(2, session).ok());
  EXPECT_TRUE(asked(2, 0).ok()) << "of an older leader";
  EXPECT_THAT(node_.verified, ElementsAre(At(1, 5), At(1, 5)));
}

// What took longer than a question waits was begun again with each, and never answered.
TEST_F(MemberTest, AQuestionThatIsAskedAgainWaitsForTheSameReading) {
  TimelineRecord record = Chain(1, 2);
  record.set_closing(true);
  Put("timeline", record);
  Do([this](Member&) { node_.closing.at(0)(); });
  node_.verifies = false;
  const auto first = AskToVerify(2, 0);
  Settle(milliseconds(1500));
  EXPECT_TRUE(absl::IsDeadlineExceeded(*first)) << *first;
  const auto again = AskToVerify(2, 0);
  Settle();
  ASSERT_EQ(node_.verifying.size(), 1U);
  Do([this](Member&) { node_.verifying[0](absl::OkStatus()); });
  Settle();
  EXPECT_EQ(*again, absl::OkStatus());
  EXPECT_THAT(node_.verified, ElementsAre(At(1, 5)));
}

TEST_F(MemberTest, WithoutALeaderItSaysSo) {
  absl::Status fresh;
  absl::Status pin;
  absl::Status exposure;
  kv_store_.Kill();
  StopMember();
  StartMember();
  Do([&](Member& member) {
    member.DeclareFreshStart(false, [&](auto opens) { fresh = opens.status(); });
    member.AskPins({}, [&](auto reply) { pin = reply.status(); });
    member.AskExposure([&](auto reply) { exposure = reply.status(); });
    EXPECT_TRUE(fresh.ok() && pin.ok() && exposure.ok()) << "nobody is answered inline";
  });
  for (const absl::Status& status : {fresh, pin, exposure}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
}

TEST_F(MemberTest, BeforeAnyViewItSaysWhoIsMissingAndThatASpareIsNoNode) {
  EXPECT_THAT(node_.standings.back().problem, EndsWith("not present: node 2"));
  SpareRecord spare;
  spare.mutable_presence()->set_place(7);
  spare.mutable_presence()->set_address("node7:1234");
  Put("spare/7", spare);
  Settle(seconds(1));
  EXPECT_THAT(node_.standings.back().problem,
              AllOf(HasSubstr("not present: node 2. Waiting as spares: node7:1234"),
                    EndsWith("start one of them with --node instead")));
}

// Whoever asks it has read of an earlier leader.
TEST_F(MemberTest, WhoDoesNotLeadSaysSo) {
  ASSERT_FALSE(member_->leads());
  EXPECT_FALSE(member_->OwnExposure().has_value());
  absl::Status report;
  absl::Status fresh;
  absl::Status pin;
  absl::Status exposure;
  InTurnOf(*leader_->executor, [&] {
    Peers& peers = *leader_->peers;
    peers.Call(NodeSlot{0}, "report", NodeReport().SerializeAsString(), seconds(1),
               [&](auto reply) { report = reply.status(); });
    peers.Ask<FreshStartReply>(NodeSlot{0}, "fresh-start", FreshStartRequest(), seconds(1),
                               [&](auto reply) { fresh = reply.status(); });
    peers.Ask<PinReply>(NodeSlot{0}, "pins", PinRequest(), seconds(1),
                        [&](auto reply) { pin = reply.status(); });
    peers.Ask<ExposureReply>(NodeSlot{0}, "exposure", ExposureRequest(), seconds(1),
                             [&](auto reply) { exposure = reply.status(); });
  });
  Settle();
  for (const absl::Status& status : {report, fresh, exposure}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("node 0 does not lead"));
  }
  EXPECT_TRUE(absl::IsUnavailable(pin)) << pin;
  EXPECT_THAT(pin.message(), HasSubstr("node 0 does not lead; try again"));
}

// While a spare's core starts anew nobody is present in its slot.
TEST_F(MemberTest, SaysWhereANodeIsAlsoWhileItIsAway) {
  ViewRecord view;
  view.set_number(3);
  ViewMember& away = *view.add_members();
  away.set_slot(2);
  away.set_place(7);
  Put("view", view);
  NodeState state{NodeSeams{*process_, pool_, random_, segments_, *records_, processes_, log_}};
  state.options = options_;
  std::optional<AdminReply> reply;
  InTurnOf(*process_, [&] {
    AnswerCluster(state, *member_, [&](AdminReply answer) { reply = std::move(answer); });
  });
  Settle();
  ASSERT_TRUE(reply);
  const auto answer = nlohmann::json::parse(reply->result);
  ASSERT_EQ(answer["members"].size(), 3U);
  EXPECT_EQ(answer["members"][1]["place"], 1);
  EXPECT_EQ(answer["members"][2]["place"], 7);
  EXPECT_FALSE(answer["members"][2]["present"].get<bool>());
}

// --- leading ---

TEST_F(MemberTest, LeadsWhenNobodyElseDoesAndStopsWhenAnotherHasTheKey) {
  EXPECT_FALSE(member_->leads());
  Leave(*leader_);
  Settle(seconds(4));
  EXPECT_TRUE(member_->leads());
  kv_store_.CutOff(*process_);
  Settle(seconds(4));
  EXPECT_FALSE(member_->leads());
  Other& next = Join(2, true);
  kv_store_.Mend(*process_);
  Settle(seconds(4));
  EXPECT_FALSE(member_->leads());
  EXPECT_FALSE(next.reports.empty());
}

TEST_F(MemberTest, ADaemonThatStartsAgainIsPresentWithoutHavingBeenAway) {
  const auto key = [&] { return leader_->store->state().present.at(NodeSlot{0}).session(); };
  const uint64_t session = key();
  StopMember();
  StartMember();
  EXPECT_EQ(key(), session + 1);
}

}  // namespace
}  // namespace unreft::smp
