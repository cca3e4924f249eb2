// A memory that was replaced while its daemon was away, and has its slot again.

#include "tests/unit/smp/leader_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

class LeaderReturnsTest : public LeaderFixture {
 protected:
  static constexpr NodeSlot kSlot{2};

  // Node 2 was away for too long, and another memory took its slot, with so many ranks.
  void Replace(uint64_t ranks, bool asks = false) {
    Leave(kSlot);
    ReportingNode& other = Join(kSlot, "b");
    Settle();
    ASSERT_EQ(view().members(2).incarnation(), "b2");
    other.report.set_ranks(ranks);
    if (asks) other.report.add_asking()->set_rank(2);
    other.report.set_number(other.report.number() + 1);
    const std::string report = other.report.SerializeAsString();
    InTurn([&] { ASSERT_TRUE(leader_->OnReport(kSlot, report).ok()); });
  }
  std::string MemoryInView() const { return view().members(2).incarnation(); }
};

TEST_F(LeaderReturnsTest, ItsRanksLiveAndTheOtherHasNone) {
  Replace(0);
  const uint64_t before = view().number();
  ComeBack(kSlot, 1);
  EXPECT_EQ(MemoryInView(), "a2");
  EXPECT_EQ(PlaceOf(view().members(2)), 2U);
  EXPECT_EQ(view().number(), before + 1);
  EXPECT_EQ(store_->state().present.at(kSlot).incarnation(), "a2");
  EXPECT_TRUE(store_->state().waiting.empty());
  Settle(seconds(5));
  EXPECT_EQ(view().number(), before + 1) << "it stays so: " << view().DebugString();
}

TEST_F(LeaderReturnsTest, NotWhereRanksAreWithTheOther) {
  Replace(1);
  ComeBack(kSlot, 1);
  Settle(seconds(5));
  EXPECT_EQ(MemoryInView(), "b2");
}

TEST_F(LeaderReturnsTest, NorWhereOneAsksThere) {
  Replace(0, /*asks=*/true);
  ComeBack(kSlot, 1);
  Settle(seconds(5));
  EXPECT_EQ(MemoryInView(), "b2");
}

TEST_F(LeaderReturnsTest, NorWithoutRanks) {
  Replace(0);
  ComeBack(kSlot, 0);
  Settle(seconds(5));
  EXPECT_EQ(MemoryInView(), "b2");
}

// What the other serves is not known before it has told.
TEST_F(LeaderReturnsTest, ANewLeaderWaitsForTheOthersReport) {
  Replace(0);
  ReportingNode& other = nodes_.at(kSlot);
  StartLeader();
  ComeBack(kSlot, 1);
  EXPECT_EQ(MemoryInView(), "b2");
  other.report.set_number(other.report.number() + 1);
  InTurn([&] { ASSERT_TRUE(leader_->OnReport(kSlot, other.report.SerializeAsString()).ok()); });
  Settle();
  EXPECT_EQ(MemoryInView(), "a2");
}

// The Txn is of the other's presence as it was seen: a daemon of it that has just started anew may
// have ranks by now.
TEST_F(LeaderReturnsTest, TheOtherThatStartsAgainIsAskedFirst) {
  Replace(0);
  StartAgain(kSlot);
  ComeBack(kSlot, 1);
  EXPECT_EQ(MemoryInView(), "b2") << "its report is of an earlier process";
}

}  // namespace
}  // namespace unreft::smp
