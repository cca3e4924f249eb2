// A member whose slot a view has given to another memory, a spare's.

#include <optional>

#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class MemberReplacedTest : public MemberFixture {
 protected:
  // Node 1 leads, and node 0 is in view 1.
  MemberReplacedTest() {
    leader_ = &Join(1, true);
    StartMember();
    own_ = Present()->incarnation();
    Name(1, own_);
  }

  std::optional<PresenceRecord> Present() const {
    const auto& present = leader_->store->state().present;
    const auto found = present.find(NodeSlot{0});
    return found == present.end() ? std::nullopt : std::optional(found->second);
  }
  void Name(uint64_t number, const std::string& incarnation, bool lost = false) {
    ViewRecord view;
    view.set_number(number);
    ViewMember& member = *view.add_members();
    member.set_slot(0);
    member.set_incarnation(incarnation);
    member.set_lost(lost);
    Put("view", view);
    Settle(seconds(3));
  }
  // Of a member that is stopped.
  void LoseMemory() {
    UNREFT_CHECK(segments_.Remove(kNodeSegment).ok());
    disk_.Wipe();
  }
  // The member's, which commits step 5 of that timeline, and names it in that view.
  void CommitInJob(uint64_t timeline, uint64_t view) {
    Seed();
    TimelineRecord record = Chain(timeline, timeline);
    record.set_first_timeline(timeline);
    Put("timeline", record);
    Put("commit", Committed(At(timeline, 5)));
    Name(view, own_);
    ASSERT_EQ(record_->committed(), At(timeline, 5));
    leader_->reports.clear();
  }
  // In a store that was lost, with another memory in the member's slot.
  void BeginOtherJob() {
    Seed();
    leader_->reports.clear();
    TimelineRecord other;
    other.add_chain()->set_timeline(77);
    other.set_first_timeline(77);
    Put("timeline", other);
    Name(2, "another memory");
  }
  // The daemon of the other memory. Until it is killed.
  struct Spare {
    std::unique_ptr<SimExecutor> executor;
    std::unique_ptr<meta::Kv> kv;
    std::unique_ptr<meta::LeasedKey> presence;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Peers> peers;
    ~Spare() { executor->Kill(); }
  };
  std::unique_ptr<Spare> Replace(uint64_t place = 5) {
    auto spare = std::make_unique<Spare>();
    spare->executor = scheduler_.NewExecutor("spare");
    spare->kv = kv_store_.NewKv(*spare->executor);
    PresenceRecord presence = PresenceOf(0);
    presence.set_incarnation("another memory");
    presence.set_place(place);
    presence.set_address("other");
    spare->transport = *network_.NewTransport(*spare->executor, "other");
    InTurnOf(*spare->executor, [&] {
      spare->peers =
          std::make_unique<Peers>(*spare->executor, *spare->transport, leader_->store->state(),
                                  "job", NodeSlot{0}, RandomId{2});
      spare->peers->Answer<ExposureRequest, ExposureReply>(
          "exposure", [](NodeSlot, const ExposureRequest&, auto done) {
            done(absl::FailedPreconditionError("does not lead"));
          });
      spare->presence = std::make_unique<meta::LeasedKey>(
          *spare->kv, *spare->executor, log_, leader_->store->PresenceKey(NodeSlot{0}),
          options_.presence_ttl, [](const std::string&) { return false; }, [] {});
      spare->presence->Hold(presence.SerializeAsString());
    });
    Settle(seconds(3));
    return spare;
  }

  std::string own_;
};

// Its old memory was in the view again, and the spare's was removed.
TEST_F(MemberReplacedTest, DoesNotTakeItsSlotBackWhileTheOtherStartsAnew) {
  kv_store_.CutOff(*process_);
  Settle(seconds(4));
  ASSERT_FALSE(Present());
  std::unique_ptr<Spare> spare = Replace();
  ASSERT_EQ(Present()->incarnation(), "another memory");
  Name(2, "another memory");
  kv_store_.Mend(*process_);
  Settle(seconds(4));
  spare.reset();
  Settle(seconds(10));
  EXPECT_FALSE(Present()) << Present()->DebugString();
  spare = Replace();
  EXPECT_EQ(Present()->incarnation(), "another memory");
}

TEST_F(MemberReplacedTest, GivesUpWhatItHolds) {
  Leave(*leader_);
  Settle(seconds(4));
  ASSERT_TRUE(member_->leads());
  leader_ = &Join(1, true);
  ASSERT_EQ(Present()->incarnation(), own_);
  Name(9, "another memory");
  EXPECT_FALSE(Present());
  EXPECT_FALSE(member_->leads());
  EXPECT_EQ(leader_->store->state().leader.value.slot(), 1U);
}

TEST_F(MemberReplacedTest, ComesBackWhenTheOtherIsLost) {
  Name(2, "another memory");
  ASSERT_FALSE(Present());
  Name(3, "another memory", true);
  ASSERT_TRUE(Present());
  EXPECT_EQ(Present()->incarnation(), own_);
}

TEST_F(MemberReplacedTest, ComesBackWhenItIsNamedAgain) {
  Name(2, "another memory");
  ASSERT_FALSE(Present());
  Name(3, own_);
  EXPECT_TRUE(Present());
}

// "3 slots adopted, serving", and nothing was ever committed again.
TEST_F(MemberReplacedTest, KnowsItAlsoAfterARestart) {
  StopMember();
  Name(2, "another memory");
  Settle(seconds(4));
  ASSERT_FALSE(Present());
  StartMember();
  Settle(seconds(4));
  EXPECT_FALSE(Present());
  ASSERT_FALSE(node_.standings.empty());
  EXPECT_TRUE(node_.standings.back().is_out);
  EXPECT_NE(node_.standings.back().problem.find("out of the job"), std::string::npos);
  EXPECT_TRUE(node_.refused.empty()) << "what it holds may still be wanted";
}

// By which it may get the slot back.
TEST_F(MemberReplacedTest, TellsWhileItIsOutHowManyRanksTrainHereAndWhoAsks) {
  node_.ranks = 4;
  node_.training = 2;
  Name(2, "another memory");
  const auto& waiting = leader_->store->state().waiting;
  ASSERT_TRUE(waiting.contains(0));
  EXPECT_EQ(waiting.at(0).value.ranks(), 2U);
  EXPECT_EQ(waiting.at(0).value.asking(), 0U);
  Do([](Member& member) { member.AskDecision(Attempt{7}, 8, {{Rank{3}, {100, 7}}}); });
  EXPECT_EQ(waiting.at(0).value.ranks(), 3U);
  EXPECT_EQ(waiting.at(0).value.asking(), 1U);
  EXPECT_EQ(waiting.at(0).value.attempt(), 7U);
  EXPECT_EQ(waiting.at(0).value.world(), 8U);
  EXPECT_EQ(waiting.at(0).value.presence().incarnation(), own_);
  EXPECT_NE(waiting.at(0).value.lease(), 0);
  Name(3, own_);
  EXPECT_TRUE(Present());
  EXPECT_FALSE(leader_->store->state().waiting.contains(0));
  EXPECT_EQ(node_.standings.back().problem, "");
}

// It does not report, and may be all that knows what a store that went back has forgotten. To a
// seeded one it does not: each commit would be a write of whoever waits.
TEST_F(MemberReplacedTest, TellsWhileItWaitsWhatItHasKeptToAStoreThatIsNotSeeded) {
  Seed();
  Put("commit", Committed(At(1, 5)));
  Name(2, "another memory");
  ASSERT_GT(kept_->stamp().sequence, 0U);
  const auto& waiting = leader_->store->state().waiting;
  ASSERT_TRUE(waiting.contains(0));
  EXPECT_EQ(waiting.at(0).value.kept_sequence(), 0U);
  LoseStore();
  Name(2, "another memory");
  ASSERT_TRUE(waiting.contains(0));
  EXPECT_EQ(waiting.at(0).value.kept_epoch(), kept_->stamp().epoch);
  EXPECT_EQ(waiting.at(0).value.kept_sequence(), kept_->stamp().sequence);
}

TEST_F(MemberReplacedTest, AnEmptyMemoryWaitsUntilTheOneBeforeItIsLost) {
  StopMember();
  LoseMemory();
  Settle(seconds(4));
  StartMember();
  Settle(seconds(10));
  EXPECT_FALSE(Present());
  EXPECT_FALSE(node_.standings.back().is_out);
  EXPECT_NE(node_.standings.back().problem.find("this one is empty"), std::string::npos)
      << node_.standings.back().problem;
  Name(2, own_, /*lost=*/true);
  EXPECT_TRUE(Present());
}

// Where all memory is gone, no other is there to say so.
TEST_F(MemberReplacedTest, AnEmptyMemoryLeadsWhereNobodyIsPresent) {
  StopMember();
  LoseMemory();
  Leave(*leader_);
  Settle(seconds(4));
  StartMember();
  Settle(seconds(4));
  EXPECT_TRUE(member_->leads());
}

// It took the slot at the first chance, and the one that had served it was out without knowing.
TEST_F(MemberReplacedTest, ASecondDaemonIsRefused) {
  StopMember();
  LoseMemory();
  const std::unique_ptr<Spare> first = Replace(/*place=*/0);
  Name(2, "another memory");
  StartMember();
  Settle(seconds(4));
  ASSERT_EQ(node_.refused.size(), 1U);
  EXPECT_NE(node_.refused[0].message().find("served by the daemon at other"), std::string::npos)
      << node_.refused[0];
  EXPECT_EQ(Present()->incarnation(), "another memory");
}

// The host of a node that was lost, and whose slot a spare has taken.
TEST_F(MemberReplacedTest, AnEmptyMemoryWaitsBesideTheSpareThatHasItsSlot) {
  StopMember();
  LoseMemory();
  std::unique_ptr<Spare> spare = Replace();
  Name(2, "another memory");
  StartMember();
  Settle(seconds(10));
  EXPECT_TRUE(node_.refused.empty());
  EXPECT_EQ(Present()->incarnation(), "another memory");
  spare.reset();
  Settle(seconds(4));
  Name(3, "another memory", /*lost=*/true);
  ASSERT_TRUE(Present());
  EXPECT_NE(Present()->incarnation(), "another memory");
}

// Those of a mistyped number would else take the slot from a memory that holds what is committed.
TEST_F(MemberReplacedTest, RanksGiveAnEmptyMemoryNoClaimAndAreToldWhereTheyBelong) {
  StopMember();
  LoseMemory();
  const std::unique_ptr<Spare> spare = Replace();
  Name(2, "another memory");
  ViewRecord view = leader_->store->state().view.value;
  view.mutable_members(0)->set_place(5);
  Put("view", view);
  node_.ranks = 2;
  StartMember();
  Settle(seconds(10));
  const auto& waiting = leader_->store->state().waiting;
  ASSERT_TRUE(waiting.contains(0));
  EXPECT_EQ(waiting.at(0).value.ranks(), 0U);
  EXPECT_NE(node_.standings.back().problem.find(
                "The ranks here (2) count for nothing until then: start them beside place 5"),
            std::string::npos)
      << node_.standings.back().problem;
}

// Its presence is still there, and nobody answers.
TEST_F(MemberReplacedTest, ADaemonWhoseFirstIsDeadIsNotRefused) {
  StopMember();
  LoseMemory();
  const std::unique_ptr<Spare> first = Replace(/*place=*/0);
  Name(2, "another memory");
  network_.Isolate("other");
  StartMember();
  Settle(seconds(10));
  EXPECT_EQ(Present()->incarnation(), "another memory");
  EXPECT_TRUE(node_.refused.empty());
  network_.Rejoin("other");
  Settle(seconds(10));
  EXPECT_EQ(node_.refused.size(), 1U) << "it was only cut off";
}

// Two hosts were started with each other's number.
TEST_F(MemberReplacedTest, WhoHasTheAddressOfADeadFirstNowIsNotTakenForIt) {
  StopMember();
  LoseMemory();
  const std::unique_ptr<Spare> first = Replace(/*place=*/0);
  Name(2, "another memory");
  PresenceRecord swapped = PresenceOf(2);
  swapped.set_address("other");
  Put("node/2", swapped);
  StartMember();
  Settle(seconds(10));
  EXPECT_TRUE(node_.refused.empty()) << node_.refused[0];
  swapped.set_address("elsewhere");
  Put("node/2", swapped);
  Settle(seconds(10));
  EXPECT_EQ(node_.refused.size(), 1U);
}

// For a store that forgets, also after its daemon's death.
TEST_F(MemberReplacedTest, TellsTheNewestViewThatItWasIn) {
  Name(4, own_);
  Name(5, "another memory");
  EXPECT_EQ(leader_->reports.back().view(), 4U);
  StopMember();
  StartMember();
  EXPECT_EQ(record_->view(), 4U);
}

// It says who was there before.
TEST_F(MemberReplacedTest, AnOlderViewIsNotBelieved) {
  Name(3, own_);
  Name(2, "another memory");
  ASSERT_TRUE(Present());
  EXPECT_EQ(Present()->incarnation(), own_);
}

// Its host was in another job of that name, whose views have higher numbers. It may have been
// given the wrong meta store.
TEST_F(MemberReplacedTest, WhatIsOfAnotherJobStaysUntilTheOneThatThereIsTakesTheMemoryIn) {
  CommitInJob(1, 7);
  StopMember();
  protection_.held.emplace_back().version = At(9, 5);
  LoseStore();
  BeginOtherJob();
  StartMember();
  Settle(seconds(10));
  EXPECT_FALSE(Present()) << "it waits, as an empty memory does, until the one before it is lost";
  EXPECT_FALSE(node_.standings.back().is_out);
  EXPECT_EQ(sink_.Count("what lies here is of another job of this name"), 1U);
  Name(3, "another memory", /*lost=*/true);
  ASSERT_TRUE(Present());
  EXPECT_EQ(Present()->incarnation(), own_);
  EXPECT_EQ(record_->committed(), At(1, 5));
  EXPECT_EQ(record_->view(), 7U);
  EXPECT_EQ(VersionOf(kept_->records().commit.value), At(1, 5));
  EXPECT_TRUE(protection_.dropped.empty());
  EXPECT_TRUE(leader_->reports.empty()) << "nothing of it counts here";
  Name(4, own_);
  EXPECT_EQ(record_->committed(), Version{}) << "what is captured now would be older than it";
  EXPECT_EQ(record_->view(), 4U);
  EXPECT_EQ(kept_->records().view.value.number(), 4U);
  EXPECT_EQ(protection_.dropped, std::vector{At(9, 5)}) << "it would be of a later timeline";
  EXPECT_FALSE(leader_->reports.empty());
}

// It gave that store the other job's records, and all nodes of this one stood aside.
TEST_F(MemberReplacedTest, WhatIsOfAnotherJobIsNotSaidToAStoreThatWasLostSince) {
  CommitInJob(1, 7);
  StopMember();
  LoseStore();
  BeginOtherJob();
  StartMember();
  Settle(seconds(10));
  LoseStore();
  Name(2, "another memory");
  const auto& waiting = leader_->store->state().waiting;
  ASSERT_TRUE(waiting.contains(0));
  EXPECT_EQ(waiting.at(0).value.kept_epoch(), 0U);
  EXPECT_EQ(waiting.at(0).value.kept_sequence(), 0U);
  Seed();
  Settle(seconds(3));
  EXPECT_EQ(VersionOf(kept_->records().commit.value), At(1, 5)) << "nor followed";
  TimelineRecord own = Chain(1, 1);
  own.set_first_timeline(1);
  Put("timeline", own);
  Settle(seconds(3));
  EXPECT_EQ(node_.standings.back().problem.find("of another job"), std::string::npos)
      << "its own is back";
}

TEST_F(MemberReplacedTest, NothingIsOrderedFromWhereAnotherJobIs) {
  CommitInJob(1, 7);
  StopMember();
  LoseStore();
  BeginOtherJob();
  StartMember();
  Settle(seconds(3));
  absl::Status status;
  Do([&](Member& member) {
    member.DeclareFreshStart(true, [&](const auto& timeline) { status = timeline.status(); });
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

// It took a slot of the job that ran, or its store, with all that this had.
TEST_F(MemberReplacedTest, ADaemonThatIsInOneJobHoldsNothingInTheStoreOfAnother) {
  CommitInJob(1, 7);
  kv_store_.CutOff(*process_);
  LoseStore();
  BeginOtherJob();
  const std::string store_id = leader_->store->state().store_id;
  kv_store_.Mend(*process_);
  Settle(seconds(20));
  Name(3, "another memory", /*lost=*/true);
  EXPECT_FALSE(Present());
  EXPECT_FALSE(leader_->store->state().waiting.contains(0));
  EXPECT_EQ(leader_->store->state().store_id, store_id);
  EXPECT_EQ(VersionOf(kept_->records().commit.value), At(1, 5));
  EXPECT_EQ(record_->view(), 7U);
  ASSERT_FALSE(node_.standings.empty());
  EXPECT_NE(node_.standings.back().problem.find("has another job of this name"), std::string::npos)
      << node_.standings.back().problem;
  EXPECT_FALSE(node_.standings.back().is_starting);
  StopMember();
  StartMember();
  Settle(seconds(10));
  EXPECT_TRUE(Present()) << "who starts comes to the job that there is";
}

}  // namespace
}  // namespace unreft::smp
