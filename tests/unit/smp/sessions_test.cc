// Who is connected and who trains here: how sessions begin and end.

#include "smp/desk/sessions.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/smp/node_state_fixture.h"
#include "tests/unit/smp/played_channel.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Keeps what it is told.
struct RecordingHost final : Sessions::Host {
  void OnSessionBegun() override { events.push_back("begun"); }
  void OnConnected(RankSession&, Timeline) override { events.push_back("connected"); }
  absl::Status OnTrainerFrame(RankSession&, const Frame&) override {
    events.push_back("frame");
    return of_frames;
  }
  void OnAdminRequest(const AdminRequest&, Sessions::AdminAnswer to) override {
    answer = std::move(to);
  }
  void OnSessionEnding(RankSession&) override { events.push_back("ending"); }
  void OnSessionEnded() override { events.push_back("ended"); }

  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::vector<std::string> events;
  absl::Status of_frames;
  Sessions::AdminAnswer answer;
};

class SessionsTest : public NodeStateFixture {
 protected:
  SessionsTest() {
    state_.options = options_;
    state_.options.sessions_max = 3;
    sessions_ = std::make_unique<Sessions>(state_, host_);
    sessions_->Open();
  }
  ~SessionsTest() override {
    InTurn([&] { sessions_.reset(); });
  }

  // Of another process each.
  Hello NewHello(Attempt attempt = Attempt{1}) {
    return {.job = "job", .rank = Rank{0}, .world = 1, .attempt = attempt, .life = table_.Start()};
  }
  PlayedChannel* Connect(int64_t pid) {
    auto channel = std::make_unique<PlayedChannel>(sent_);
    PlayedChannel* played = channel.get();
    InTurn([&] { sessions_->Accept(std::move(channel), PeerIdentity{.pid = pid}); });
    return played;
  }
  template <typename Message>
  void Say(PlayedChannel* channel, const Message& message) {
    InTurn([&] { channel->Say(ToFrame(message)); });
  }
  PlayedChannel* SayHello(const Hello& hello) {
    PlayedChannel* channel = Connect(hello.life.pid);
    Say(channel, hello);
    return channel;
  }
  // What it was told last.
  std::string Refusal() {
    if (sent_.empty()) return "not refused";
    const auto refused = FromFrame<Refused>(sent_.back());
    return refused.ok() ? refused->status.message : "not refused";
  }
  ProcessLife LifeHere() { return state_.SessionOf(Rank{0})->life(); }

  RecordingHost host_;
  std::unique_ptr<Sessions> sessions_;
  std::vector<Frame> sent_;
};

TEST_F(SessionsTest, ASessionOutlivesItsConnection) {
  const Hello hello = NewHello();
  PlayedChannel* channel = SayHello(hello);
  EXPECT_THAT(host_.Take(), ElementsAre("begun", "connected"));
  InTurn([&] { channel->HangUp(); });
  EXPECT_FALSE(state_.SessionOf(Rank{0})->connected());
  EXPECT_THAT(host_.Take(), IsEmpty());
  SayHello(hello);
  EXPECT_THAT(host_.Take(), ElementsAre("connected"));
  EXPECT_TRUE(state_.SessionOf(Rank{0})->connected());
}

TEST_F(SessionsTest, ASessionEndsWithItsLife) {
  const Hello hello = NewHello();
  PlayedChannel* channel = SayHello(hello);
  InTurn([&] { channel->HangUp(); });
  host_.Take();
  InTurn([&] { table_.End(hello.life); });
  Settle();
  EXPECT_THAT(host_.Take(), ElementsAre("ending", "ended"));
  EXPECT_EQ(state_.SessionOf(Rank{0}), nullptr);
}

TEST_F(SessionsTest, WhatADeadTrainerSaidLastIsHeard) {
  const Hello hello = NewHello();
  PlayedChannel* channel = SayHello(hello);
  host_.Take();
  InTurn([&] { table_.End(hello.life); });
  Settle();
  Say(channel, Skipped{});
  EXPECT_THAT(host_.Take(), ElementsAre("frame"));
  Settle(std::chrono::seconds(2));
  EXPECT_THAT(host_.Take(), ElementsAre("ending", "ended")) << "a fork may hold its socket";
}

TEST_F(SessionsTest, WhoIsTakenOverIsHeardNoMore) {
  PlayedChannel* old = SayHello(NewHello());
  host_.Take();
  const Hello newer = NewHello(Attempt{2});
  SayHello(newer);
  EXPECT_THAT(host_.Take(), ElementsAre("ending", "ended", "begun", "connected"));
  EXPECT_THAT(Refusal(), HasSubstr("another process is this rank by now"));
  EXPECT_EQ(LifeHere(), newer.life);
  Say(old, Skipped{});
  InTurn([&] { old->HangUp(); });
  EXPECT_THAT(host_.Take(), IsEmpty());
  EXPECT_TRUE(state_.SessionOf(Rank{0})->connected());
}

TEST_F(SessionsTest, AnotherAttemptEndsTheSessionsOfAllRanks) {
  SayHello(NewHello());
  host_.Take();
  Hello newer = NewHello(Attempt{2});
  newer.rank = Rank{1};
  newer.world = 2;
  SayHello(newer);
  EXPECT_THAT(host_.Take(), ElementsAre("ending", "ended", "begun", "connected"));
  EXPECT_EQ(state_.SessionOf(Rank{0}), nullptr);
  EXPECT_EQ(sink_.Count("is gone: another attempt of the job has begun"), 1U);
}

TEST_F(SessionsTest, WhoComesBackToALaterProcessIsNotWaitedForAnyMore) {
  const Hello hello = NewHello();
  state_.lives_before = {hello.life, table_.Start()};
  SayHello(hello);
  EXPECT_EQ(state_.lives_before.size(), 1U);
}

TEST_F(SessionsTest, AFrameThatTheNodeRefusesEndsTheConnectionAlone) {
  PlayedChannel* channel = SayHello(NewHello());
  host_.of_frames = absl::InvalidArgumentError("7 bytes, needed 8");
  Say(channel, Skipped{});
  EXPECT_EQ(Refusal(), "7 bytes, needed 8");
  EXPECT_EQ(state_.counters.sessions_refused, 1U);
  ASSERT_NE(state_.SessionOf(Rank{0}), nullptr);
  EXPECT_FALSE(state_.SessionOf(Rank{0})->connected());
}

TEST_F(SessionsTest, WhoeverSpeaksSaysFirstWhoItIs) {
  Say(Connect(1), Skipped{});
  EXPECT_THAT(Refusal(), HasSubstr("needed Hello first, found"));
}

TEST_F(SessionsTest, WhoCannotBeTakenInIsToldWhy) {
  const auto ask = [&] { Say(Connect(1), AdminRequest{.verb = "status"}); };
  for (int i = 0; i < 3; ++i) ask();
  EXPECT_THAT(sent_, IsEmpty());
  Connect(1);
  EXPECT_THAT(Refusal(), HasSubstr("3 connections are open already"));
  InTurn([&] { sessions_ = std::make_unique<Sessions>(state_, host_); });
  Connect(1);
  EXPECT_THAT(Refusal(), HasSubstr("still starting"));
}

// Its client tries again every few hundred milliseconds.
TEST_F(SessionsTest, WhoIsRefusedAgainAndAgainIsLoggedOnce) {
  Hello hello = NewHello();
  hello.job = "another";
  for (int i = 0; i < 5; ++i) {
    SayHello(hello);
    EXPECT_THAT(Refusal(), HasSubstr("another"));
  }
  EXPECT_EQ(sink_.Count("is refused"), 1U);
  Hello other = NewHello();
  other.job = "another";
  SayHello(other);
  EXPECT_EQ(sink_.Count("is refused"), 2U) << "that is another process";
}

TEST_F(SessionsTest, AnAnswerReachesTheCommandThatAskedIfItIsStillThere) {
  PlayedChannel* channel = Connect(1);
  Say(channel, AdminRequest{.verb = "status"});
  InTurn([&] { host_.answer(AdminReply{.result = "all is well"}); });
  ASSERT_EQ(sent_.size(), 1U);
  EXPECT_EQ(FromFrame<AdminReply>(sent_[0])->result, "all is well");
  Say(channel, AdminRequest{.verb = "status"});
  InTurn([&] { channel->HangUp(); });
  InTurn([&] { host_.answer(AdminReply{}); });
  EXPECT_EQ(sent_.size(), 1U);
}

}  // namespace
}  // namespace unreft::smp
