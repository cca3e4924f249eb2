// Which life of the meta store a record is of, whenever it is read.

#include "tests/sim/cluster/store_lives.h"

#include <gtest/gtest.h>

namespace unreft::sim {
namespace {

meta::Stored<TimelineRecord> Round(uint64_t round, uint64_t revision) {
  meta::Stored<TimelineRecord> record;
  record.value.set_round(round);
  record.modified = meta::Revision{revision};
  return record;
}

class StoreLivesTest : public testing::Test {
 protected:
  void Has(const meta::Stored<TimelineRecord>& record) {
    lives_.OnRecord("timeline", record.modified, record.value.SerializeAsString());
  }
  uint64_t Of(const meta::Stored<TimelineRecord>& record) const {
    return lives_.Of("timeline", record);
  }

  StoreLives lives_;
};

TEST_F(StoreLivesTest, WhatWasOnItsWayWhenTheStoreWentBackIsOfBefore) {
  Has(Round(3, 22));
  lives_.Next();
  EXPECT_EQ(Of(Round(3, 22)), 0u);
  Has(Round(1, 10));
  EXPECT_EQ(Of(Round(3, 22)), 0u);
  EXPECT_EQ(Of(Round(1, 10)), 1u);
}

TEST_F(StoreLivesTest, WhatAStoreThatWentBackStillHasIsOfNow) {
  Has(Round(1, 10));
  lives_.Next();
  lives_.Next();
  Has(Round(1, 10));
  EXPECT_EQ(Of(Round(1, 10)), 2u);
}

TEST_F(StoreLivesTest, TheSameRevisionMayBeOfAnotherLife) {
  Has(Round(3, 22));
  lives_.Next();
  Has(Round(2, 22));
  EXPECT_EQ(Of(Round(3, 22)), 0u);
  EXPECT_EQ(Of(Round(2, 22)), 1u);
}

TEST_F(StoreLivesTest, TheSameBytesMayBeOfAnotherLife) {
  Has(Round(3, 22));
  lives_.Next();
  Has(Round(3, 19));
  EXPECT_EQ(Of(Round(3, 22)), 0u);
  EXPECT_EQ(Of(Round(3, 19)), 1u);
}

TEST_F(StoreLivesTest, WhatNoStoreIsKnownToHaveHadIsOfNow) {
  lives_.Next();
  EXPECT_EQ(Of(Round(1, 10)), 1u);
}

}  // namespace
}  // namespace unreft::sim
