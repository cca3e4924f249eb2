// When `unreft run` ends an attempt for one on other nodes, and what it says.
#include "tools/cli/wish_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Nodes = std::set<uint64_t>;  // as a daemon says them, unsigned

// Ranks run on all of four nodes, and step 4 is committed.
class WishWatchTest : public ::testing::Test {
 protected:
  WishWatchTest() { watch_.BeginAttempt({0, 1, 2, 3}); }

  void Wish(const char* order) { answer_["order"] = nlohmann::json::parse(order); }
  void Commit(uint64_t step) { answer_["committed"] = {{"timeline", 1}, {"step", step}}; }

  nlohmann::json answer_ = {{"order", nullptr},
                            {"committed", {{"timeline", 1}, {"step", 4}}},
                            {"there", Nodes{0, 1, 2, 3}},
                            {"lost", Nodes{}}};
  absl::Status silent_;
  Nodes there_{0, 1, 2, 3};
  std::vector<std::string> said_;
  WishWatch watch_{
      {.shape = {.nodes = 4, .range = {2, 4}},
       .ask = [this]() -> absl::StatusOr<nlohmann::json> {
         if (!silent_.ok()) return silent_;
         return answer_;
       },
       .there = [this] { return there_; },
       .tell = [this](const nlohmann::json&, const std::string& text) { said_.push_back(text); },
       .interval = Milliseconds(0),
       .commit_interval = Milliseconds(0),
       .silence_interval = Milliseconds(0)}};
};

TEST_F(WishWatchTest, AnAttemptEndsAfterTheNextCommit) {
  EXPECT_FALSE(watch_.WhyToEnd());
  Wish(R"({"nodes":3,"without":[]})");
  EXPECT_FALSE(watch_.WhyToEnd());
  EXPECT_FALSE(watch_.WhyToEnd()) << "step 4 was committed before";
  EXPECT_THAT(said_, ElementsAre("unreft resize: 3 nodes: the next attempt is on nodes 0, 1, 2, "
                                 "and begins after the next commit"));
  Commit(5);
  EXPECT_EQ(watch_.WhyToEnd().value_or(""),
            "unreft resize: 3 nodes: the next attempt is on nodes 0, 1, 2");
  watch_.BeginAttempt({0, 1, 2});
  Commit(6);
  EXPECT_FALSE(watch_.WhyToEnd()) << "it is met";
}

TEST_F(WishWatchTest, AnotherWishWaitsForACommitOfItsOwn) {
  Wish(R"({"nodes":3})");
  EXPECT_FALSE(watch_.WhyToEnd());
  Commit(5);
  Wish(R"({"nodes":3,"without":[0]})");
  EXPECT_FALSE(watch_.WhyToEnd());
  Commit(6);
  EXPECT_TRUE(watch_.WhyToEnd());
}

TEST_F(WishWatchTest, WhatIsTakenBackIsNotDone) {
  Wish(R"({"nodes":3})");
  EXPECT_FALSE(watch_.WhyToEnd());
  Wish("null");
  Commit(5);
  EXPECT_FALSE(watch_.WhyToEnd());
}

TEST_F(WishWatchTest, WhereNothingCanBeCommittedNoCommitIsWaitedFor) {
  answer_["lost"] = Nodes{1};
  Wish(R"({"nodes":3,"without":[3]})");
  EXPECT_FALSE(watch_.WhyToEnd()) << "it would be as before: node 1 is lost";
  Wish(R"({"without":[1]})");
  EXPECT_THAT(watch_.WhyToEnd().value_or(""), HasSubstr("on nodes 0, 2, 3"));
}

TEST_F(WishWatchTest, WhatCannotBeMetIsSaidOnceAndDoneWhenItCan) {
  watch_.BeginAttempt({0, 1, 2});
  there_ = {0, 1, 2};
  Wish(R"({"nodes":4})");
  for (uint64_t step = 5; step < 8; ++step) {
    Commit(step);
    EXPECT_FALSE(watch_.WhyToEnd());
  }
  EXPECT_THAT(said_, ElementsAre("unreft resize: 4 nodes: needed 4 nodes that have a daemon, found "
                                 "3: 0, 1, 2; training goes on without it"));
  there_ = {0, 1, 2, 3};
  answer_["there"] = Nodes{0, 1, 2};
  Commit(8);
  EXPECT_FALSE(watch_.WhyToEnd()) << "node 3 is yet to enter the job";
  answer_["there"] = Nodes{0, 1, 2, 3};
  EXPECT_FALSE(watch_.WhyToEnd());
  Commit(9);
  EXPECT_TRUE(watch_.WhyToEnd());
}

TEST_F(WishWatchTest, WhileNobodyAnswersNothingEndsAndTheLastWishIsKept) {
  Wish(R"({"nodes":3})");
  EXPECT_TRUE(watch_.Newest());
  silent_ = absl::UnavailableError("no daemon");
  Commit(5);
  EXPECT_FALSE(watch_.WhyToEnd());
  ASSERT_TRUE(watch_.Newest());
  EXPECT_EQ(watch_.Newest()->nodes, 3U);
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace unreft::cli
