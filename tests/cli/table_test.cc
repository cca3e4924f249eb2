#include "tools/cli/table.h"

#include <gtest/gtest.h>

namespace unreft::cli {
namespace {

TEST(Table, AlignsNumbersRightAndWordsLeft) {
  Table table({"rank", "phase"});
  table.Add({"1", "sealed"});
  table.Add({"128", "-"});
  EXPECT_EQ(table.Text(),
            "rank  phase\n"
            "   1  sealed\n"
            " 128  -\n");
}

TEST(Table, CellsShowWhatIsNotThere) {
  const nlohmann::json record = {{"a", 1}, {"b", "x"}, {"c", nullptr}, {"d", ""}, {"e", true}};
  EXPECT_EQ(Cell(record, "a"), "1");
  EXPECT_EQ(Cell(record, "b"), "x");
  EXPECT_EQ(Cell(record, "c"), "-");
  EXPECT_EQ(Cell(record, "d"), "-");
  EXPECT_EQ(Cell(record, "e"), "yes");
  EXPECT_EQ(Cell(record, "f"), "-");
  EXPECT_EQ(BytesCell(record, "a"), "1 B");
  EXPECT_EQ(BytesCell(record, "b"), "-");
}

TEST(Table, BytesForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 30), "3.0 GiB");
}

TEST(Table, CountsForPeople) {
  EXPECT_EQ(Count(1, "segment"), "1 segment");
  EXPECT_EQ(Count(0, "segment"), "0 segments");
}

}  // namespace
}  // namespace unreft::cli
