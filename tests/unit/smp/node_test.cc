// Whom a node takes in, and what it says to those whom it does not.

#include "smp/node/node.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smp/job/cluster_records.h"
#include "smp/job/pins.h"
#include "smp/node/admin.h"
#include "tests/unit/smp/node_fixture.h"
#include "tests/unit/smp/played_channel.h"

namespace unreft::smp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NodeTest : public NodeFixture {
 protected:
  NodeTest() {
    options_.ranks_max = 8;
    hello_ = {.job = "job", .rank = Rank{1}, .world = 4, .life = table_.Start()};
    StartNode();
    Settle();
  }
  ~NodeTest() override { StopNode(); }

  // Says Hello as a process that is `pid` to the daemon.
  void SayHello(int64_t pid) {
    auto channel = std::make_unique<PlayedChannel>(sent_);
    channel_ = channel.get();
    InTurn([&] { node_->Accept(std::move(channel), PeerIdentity{.pid = pid}); });
    Say(hello_);
  }
  template <typename Message>
  void Say(const Message& message) {
    InTurn([&] { channel_->Say(ToFrame(message)); });
    Settle();
  }
  std::string Refusal() {
    UNREFT_CHECK(!sent_.empty());
    const auto refused = FromFrame<Refused>(sent_.back());
    return refused.ok() ? refused->status.message : "not refused";
  }

  Hello hello_;
  std::vector<Frame> sent_;
  PlayedChannel* channel_ = nullptr;
};

TEST_F(NodeTest, ATrainerOfAPidNamespaceOfItsOwnIsKnownAsTheDaemonSeesIt) {
  const ProcessLife life = hello_.life;
  table_.SetOwnPid(life.pid, 1);
  hello_.life.pid = 1;
  SayHello(life.pid);
  EXPECT_EQ(Refusal(), "not refused");
  EXPECT_EQ(node_->state().SessionOf(hello_.rank)->life(), life);
  InTurn([&] { table_.End(life); });
  Settle();
  EXPECT_TRUE(node_->state().SessionOf(hello_.rank)->life_ended);
}

TEST_F(NodeTest, ATrainerThatIsNotVisibleIsToldWhatToDo) {
  SayHello(0);
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("not visible"), HasSubstr("hostPID: true"), HasSubstr("--pid=host")));
}

TEST_F(NodeTest, AConnectionBelongsToTheProcessThatMadeIt) {
  const int64_t pid = hello_.life.pid;
  hello_.life.pid = 1;
  SayHello(pid);
  EXPECT_THAT(Refusal(), HasSubstr("calls itself pid 1, and pid " + std::to_string(pid) +
                                   " has made its connection"));
}

TEST_F(NodeTest, ARefusalSaysWhatHelps) {
  const int64_t pid = hello_.life.pid;
  hello_.job = "other";
  SayHello(pid);
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("serves job 'job', not 'other'"), HasSubstr("UNREFT_JOB")));
  hello_.job = "job";
  hello_.world = 9;
  SayHello(pid);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("of 9 ranks"), HasSubstr("--ranks-max 9")));
  hello_.world = 1;
  SayHello(pid);
  EXPECT_THAT(Refusal(), HasSubstr("rank 1 of 1 ranks: needed a rank below 1"));
}

TEST_F(NodeTest, AnswersWhetherAnythingWasEverCommittedToARankThatIsAlone) {
  SayHello(hello_.life.pid);
  ASSERT_EQ(sent_.size(), 1U);
  EXPECT_EQ(FromFrame<Welcome>(sent_[0])->newest_frame, static_cast<uint16_t>(kNewestFrameType));
  Say(EverCommittedRequest{.request = 7});
  ASSERT_EQ(sent_.size(), 2U);
  const auto answer = FromFrame<EverCommitted>(sent_[1]);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->request, 7U);
  EXPECT_TRUE(answer->status.ToStatus().ok());
  EXPECT_FALSE(answer->ever);
  EXPECT_EQ(node_->state().record->chain().newest(), Timeline{0}) << "it decides nothing";
}

// Its rank was never given a slot again, and nothing of the job was committed any more.
TEST_F(NodeTest, ARankThatComesBeforeAnEmptyDaemonKnowsItsTimelineIsOfItAllTheSame) {
  hello_.timeline = Timeline{4};
  SayHello(hello_.life.pid);
  EXPECT_EQ(node_->state().SessionOf(Rank{1})->timeline, Timeline{4});
  EXPECT_NE(node_->state().record->chain().newest(), Timeline{4}) << "nothing is granted yet";
}

// Which answer it has had is known here; that it has taken it is not.
TEST_F(NodeTest, ARankThatSaysAnEarlierTimelineAgainIsOfTheOneItWasTold) {
  hello_.timeline = Timeline{4};
  SayHello(hello_.life.pid);
  InTurn([&] { node_->state().SessionOf(Rank{1})->timeline = Timeline{5}; });
  SayHello(hello_.life.pid);
  EXPECT_EQ(node_->state().SessionOf(Rank{1})->timeline, Timeline{5});
}

// Its daemon had lost the slot that it asked from, and came back in this one: it was given no slot.
TEST_F(NodeTest, ARankThatFollowsTheNewestDecisionHereTrainsHere) {
  InTurn([&] {
    NodeState& state = node_->state();
    state.record->AdoptTimelines({{Timeline{4}, Version{}}}, /*unused=*/true);
    state.decided = Timeline{4};
    state.homes = {{Rank{0}, NodeSlot{5}}, {Rank{1}, NodeSlot{5}}};
    EXPECT_TRUE(state.TrainsElsewhere(Rank{1}));
  });
  hello_.timeline = Timeline{4};
  SayHello(hello_.life.pid);
  EXPECT_FALSE(node_->state().TrainsElsewhere(Rank{1}));
  EXPECT_TRUE(node_->state().TrainsElsewhere(Rank{0}));
}

// It had its daemon's slot given back in the moment in which the newer attempt had no processes.
TEST_F(NodeTest, ARankOfAnAttemptThatIsOverIsNotServed) {
  SayHello(hello_.life.pid);
  EXPECT_EQ(node_->state().RanksServed(), 1U);
  InTurn([&] { node_->state().SessionOf(Rank{1})->superseded = true; });
  EXPECT_EQ(node_->state().RanksServed(), 0U);
}

// Whoever collects metrics asks whenever it likes.
TEST_F(NodeTest, MetricsAreThereBeforeItHasAdoptedItsMemory) {
  InTurn([&] {
    node_ = nullptr;
    MakeNode();
    const std::string text = MetricsText(node_->state(), node_->member());
    EXPECT_THAT(text, HasSubstr("unreft_spare{job=\"job\",node=\"0\"} 0"));
    EXPECT_THAT(text, Not(HasSubstr("unreft_slots_sealed_total")));
  });
  Settle();
  EXPECT_THAT(MetricsText(node_->state(), node_->member()), HasSubstr("unreft_slots_sealed_total"));
}

// --- over the lives of the daemon ---

class LivesTest : public NodeFixture {
 protected:
  static constexpr Version kCommitted{Timeline{3}, Step{7}};

  // As a release before the kept records did.
  void LeaveCommit() {
    auto record = NewRecord();
    InTurn([&] {
      record->AdoptTimelines({{Timeline{3}, Version{}}}, /*unused=*/true);
      record->SetCommitted(kCommitted, 2);
    });
    Settle();
  }
  const meta::JobRecords& records() { return node_->member()->records(); }
};

// All that its own meta store has goes with the process.
TEST_F(LivesTest, ARestartGoesOnWithWhatTheNodeHasKept) {
  StartNode();
  Settle();
  const ViewRecord first = records().view.value;
  EXPECT_EQ(first.number(), 1u);
  EXPECT_TRUE(node_->member()->leads());
  StopNode();
  StartOwnMeta();
  StartNode();
  Settle();
  EXPECT_EQ(records().view.value.number(), 2u);
  EXPECT_EQ(records().view.value.members(0).incarnation(), first.members(0).incarnation());
  EXPECT_EQ(node_->state().kept->stamp().epoch, 2u);
}

TEST_F(LivesTest, TheNodeMayHaveAnyNumber) {
  options_.node = NodeSlot{5};
  StartNode();
  Settle();
  EXPECT_EQ(records().view.value.members(0).slot(), 5u);
  EXPECT_EQ(node_->state().standing.problem, "");
}

// A release before this one kept it elsewhere.
TEST_F(LivesTest, WhatAnEarlierReleaseLeftIsKnown) {
  LeaveCommit();
  StartNode();
  Settle();
  EXPECT_EQ(VersionOf(records().commit.value), kCommitted);
  EXPECT_EQ(records().commit.value.world(), 2u);
  EXPECT_EQ(ChainOf(records().timeline.value).newest(), Timeline{3});
  EXPECT_EQ(node_->state().record->committed(), kCommitted);
}

TEST_F(LivesTest, APinIsKeptWhenItIsPromised) {
  options_.pins = 1;
  LeaveCommit();
  disk_.FailWrites(100, absl::ResourceExhaustedError("full"));
  StartNode();
  Settle();
  bool is_promised = false;
  InTurn([&] {
    PinRequest request;
    request.set_owner("exporter");
    request.set_for_ms(60'000);
    node_->member()->AskPins(request, [&](const absl::StatusOr<PinReply>& reply) {
      is_promised = reply.ok();
      EXPECT_TRUE(is_promised) << reply.status();
      EXPECT_TRUE(IsPinned(node_->state().kept->records().pins.value, kCommitted));
    });
  });
  Settle();
  ASSERT_TRUE(is_promised);
  StopNode();
  StartOwnMeta();
  StartNode();
  Settle();
  EXPECT_TRUE(IsPinned(records().pins.value, kCommitted));
}

// --- connections that say nothing ---

class SilentTest : public NodeTest {
 protected:
  SilentTest() {
    StopNode();
    StartOwnMeta();
    options_.sessions_max = 4;
    StartNode();
    Settle();
  }
  void Connect() {
    InTurn([&] { node_->Accept(std::make_unique<PlayedChannel>(sent_), PeerIdentity{.pid = 1}); });
  }
};

TEST_F(SilentTest, TheyKeepNobodyOut) {
  for (int i = 0; i < 20; ++i) Connect();
  EXPECT_TRUE(sent_.empty()) << "the oldest went each time";
  SayHello(hello_.life.pid);
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_.at(0).type, static_cast<uint16_t>(FrameType::kWelcome));
  for (int i = 0; i < 20; ++i) Connect();
  EXPECT_EQ(sent_.size(), 1u) << "who has said Hello stays";
}

TEST_F(SilentTest, TheyAreClosedAtTheirDeadline) {
  Connect();
  Settle(std::chrono::seconds(4));
  EXPECT_EQ(sink_.Count("it said nothing"), 0u);
  Settle(std::chrono::seconds(2));
  EXPECT_EQ(sink_.Count("a connection of pid 1 is closed: it said nothing"), 1u);
  SayHello(hello_.life.pid);
  Settle(std::chrono::seconds(20));
  EXPECT_EQ(sink_.Count("it said nothing"), 1u) << "a trainer may be silent afterwards";
}

}  // namespace
}  // namespace unreft::smp
