#include "transport/peer_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace unreft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PeerPlacesTest : public testing::Test {
 protected:
  // The number of the place, 0 when there is none.
  uint64_t Take(const std::string& peer, const std::string& name) {
    const auto place = places_.Take(peer, [this, name](const absl::Status& why) {
      ended_.push_back(name);
      why_ = why.ToString();
    });
    if (place.ok()) return *place;
    why_ = place.status().ToString();
    return 0;
  }

  PeerPlaces places_{"calls_max", 4};
  std::vector<std::string> ended_;
  std::string why_;
};

TEST_F(PeerPlacesTest, OnePeerMayHaveThemAllAsLongAsNobodyElseNeedsOne) {
  for (const char* name : {"a1", "a2", "a3", "a4"}) EXPECT_NE(Take("a", name), 0U);
  EXPECT_EQ(Take("a", "a5"), 0U);
  EXPECT_THAT(why_, HasSubstr("4 places are taken, 4 of them by this peer, calls_max is 4"));
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(PeerPlacesTest, WhoHasFewerGetsTheNewestOfWhoHasTheMost) {
  for (const char* name : {"a1", "a2", "a3"}) Take("a", name);
  Take("b", "b1");
  EXPECT_NE(Take("c", "c1"), 0U);
  EXPECT_THAT(ended_, ElementsAre("a3"));
  EXPECT_THAT(why_, HasSubstr("holds the most places, and others need one, calls_max is 4"));
  EXPECT_EQ(Take("b", "b2"), 0U) << "with it b would have more than a";
  EXPECT_EQ(Take("a", "a4"), 0U);
  EXPECT_THAT(ended_, ElementsAre("a3"));
}

TEST_F(PeerPlacesTest, WhatIsGivenBackIsFreeOnce) {
  const uint64_t first = Take("a", "a1");
  for (const char* name : {"a2", "a3", "a4"}) Take("a", name);
  places_.Give("a", first);
  places_.Give("a", first);
  places_.Give("b", first);
  places_.Give("a", 0);
  EXPECT_NE(Take("a", "a5"), 0U);
  EXPECT_EQ(Take("a", "a6"), 0U);
}

TEST_F(PeerPlacesTest, OneThatWasEndedIsNotFreedAgain) {
  uint64_t last = 0;
  for (const char* name : {"a1", "a2", "a3", "a4"}) last = Take("a", name);
  EXPECT_NE(Take("b", "b1"), 0U);
  ASSERT_THAT(ended_, ElementsAre("a4"));
  places_.Give("a", last);
  EXPECT_EQ(Take("a", "a5"), 0U);
}

// As a call that is finished does.
TEST_F(PeerPlacesTest, WhoIsEndedMayGiveBackWhatItHas) {
  const uint64_t first = Take("a", "a1");
  Take("a", "a2");
  Take("a", "a3");
  const auto last = places_.Take("a", [&](const absl::Status&) { places_.Give("a", first); });
  ASSERT_TRUE(last.ok());
  EXPECT_NE(Take("b", "b1"), 0U);
  EXPECT_NE(Take("b", "b2"), 0U);
  EXPECT_THAT(ended_, IsEmpty());
}

}  // namespace
}  // namespace unreft
