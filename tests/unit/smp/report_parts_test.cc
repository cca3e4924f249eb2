#include "smp/job/report_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

VersionHolding Holding(uint64_t step) {
  VersionHolding holding;
  holding.set_timeline(2);
  holding.set_step(step);
  holding.add_sealed()->set_rank(3);
  return holding;
}

NodeReport Report() {
  NodeReport report;
  report.set_session(7);
  report.set_incarnation("memory");
  report.add_asking()->set_rank(1);
  report.add_registered()->set_rank(1);
  report.set_any_world(true);
  return report;
}

TEST(ReportPartsTest, VersionsStayInTheirEncoding) {
  NodeReport report = Report();
  *report.add_versions() = Holding(5);
  *report.add_versions() = Holding(6);
  const std::string encoded = report.SerializeAsString();
  ReportParts parts;
  ASSERT_TRUE(CutReport(encoded, parts));
  EXPECT_THAT(parts.versions,
              ElementsAre(Holding(5).SerializeAsString(), Holding(6).SerializeAsString()));
  EXPECT_EQ(parts.rest.SerializeAsString(), Report().SerializeAsString());
}

// Fields come in any order, as they may.
TEST(ReportPartsTest, FieldsBetweenVersionsAreOfTheRest) {
  NodeReport first;
  first.set_session(7);
  *first.add_versions() = Holding(5);
  NodeReport then;
  then.set_incarnation("memory");
  *then.add_versions() = Holding(6);
  const std::string encoded = first.SerializeAsString() + then.SerializeAsString();
  ReportParts parts;
  ASSERT_TRUE(CutReport(encoded, parts));
  EXPECT_EQ(parts.versions.size(), 2U);
  EXPECT_EQ(parts.rest.session(), 7U);
  EXPECT_EQ(parts.rest.incarnation(), "memory");
}

TEST(ReportPartsTest, NothingOfTheReportBeforeIsLeft) {
  NodeReport report = Report();
  *report.add_versions() = Holding(5);
  const std::string before = report.SerializeAsString();
  ReportParts parts;
  ASSERT_TRUE(CutReport(before, parts));
  ASSERT_TRUE(CutReport("", parts));
  EXPECT_THAT(parts.versions, IsEmpty());
  EXPECT_EQ(parts.rest.ByteSizeLong(), 0U);
}

TEST(ReportPartsTest, WhatIsCutShortOrIsNoFieldIsRefused) {
  NodeReport report = Report();
  *report.add_versions() = Holding(5);
  const std::string encoded = report.SerializeAsString();
  ReportParts parts;
  size_t taken = 0;
  for (size_t size = 0; size < encoded.size(); ++size) {
    NodeReport read;
    const std::string part = encoded.substr(0, size);
    EXPECT_EQ(CutReport(part, parts), read.ParseFromString(part)) << size;
    taken += CutReport(part, parts);
  }
  EXPECT_LT(taken, encoded.size());
  for (const std::string& none : {std::string("\x0c"), std::string("\x3a\xff\xff\xff\xff\x0f"),
                                  std::string("\x3a\x05", 2), std::string("\0", 1)}) {
    EXPECT_FALSE(CutReport(none, parts));
  }
}

}  // namespace
}  // namespace unreft::smp
