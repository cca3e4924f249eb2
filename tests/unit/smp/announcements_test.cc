// Who is told of a version, when, and whose word counts.
//
// RS(1,1): node 0 has no rank; node 1 is told.

#include "smp/protect/announcements.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "smp/job/cluster_records.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::seconds;

constexpr NodeSlot kOwn{0};
constexpr NodeSlot kOther{1};

class AnnouncementsTest : public GroupFixture {
 protected:
  AnnouncementsTest() : GroupFixture(1, 1) {
    StartOther(kOther, [this](Peers& peers) {
      peers.Serve("announce", [this](NodeSlot, const std::string&, Transport::CallDone done) {
        ++told_;
        if (listens_) return done("");
        done(absl::UnavailableError("not now"));
      });
    });
    StartOwn();
    InTurn([&] {
      announcements_ =
          std::make_unique<Announcements>(*state_, *own_peers_, job_, [this] { ++looks_; });
      announcements_->Follow(kVersion);
    });
    NameMemories("memory");
  }
  ~AnnouncementsTest() override {
    InTurn([&] { announcements_.reset(); });
  }

  // As the view has it.
  void NameMemories(const std::string& of_node_1) {
    ViewRecord& view = job_.view.value;
    view.clear_members();
    for (const NodeSlot slot : {kOwn, kOther}) view.add_members()->set_slot(slot.value);
    view.mutable_members(0)->set_incarnation(AsBytes(state_->record->incarnation()));
    view.mutable_members(1)->set_incarnation(of_node_1);
  }
  AnnounceRequest SlabsOf(const std::string& incarnation) const {
    AnnounceRequest request;
    SetVersion(kVersion, request);
    request.set_block_bytes(kBlockBytes);
    request.set_incarnation(incarnation);
    request.add_slabs()->set_data_bytes(3 * kBlockBytes);
    request.set_description_bytes_max(100);
    return request;
  }
  void Take(AnnounceRequest request) {
    InTurn([&] { announcements_->Take(kOther, std::move(request)); });
  }
  void Tell() {
    InTurn([&] { announcements_->Tell(kVersion, Group()); });
    Settle(seconds(1));
  }
  GroupView Group() const { return *FindGroup(job_.view.value.groups(), kOwn); }

  std::unique_ptr<Announcements> announcements_;
  int told_ = 0;  // node 1
  bool listens_ = true;
  int looks_ = 0;
};

TEST_F(AnnouncementsTest, ANodeWithoutRanksTellsOnceItHasHeard) {
  Tell();
  EXPECT_EQ(told_, 0);
  Take(SlabsOf("memory"));
  Tell();
  EXPECT_EQ(told_, 1);
  Tell();
  EXPECT_EQ(told_, 1);
  EXPECT_EQ(looks_, 0);
}

TEST_F(AnnouncementsTest, WhoCouldNotBeToldIsToldAgain) {
  Take(SlabsOf("memory"));
  listens_ = false;
  Tell();
  EXPECT_EQ(told_, 1);
  EXPECT_EQ(looks_, 1);
  listens_ = true;
  Tell();
  Tell();
  EXPECT_EQ(told_, 2);
}

// Whoever had its slot meanwhile told the others of other slabs.
TEST_F(AnnouncementsTest, WhileItsSlotIsAnothersItTellsAgain) {
  Take(SlabsOf("memory"));
  Tell();
  InTurn([&] { announcements_->OnView(); });
  Tell();
  EXPECT_EQ(told_, 1);
  job_.view.value.mutable_members(0)->set_incarnation("another");
  InTurn([&] { announcements_->OnView(); });
  Tell();
  EXPECT_EQ(told_, 2);
}

TEST_F(AnnouncementsTest, OnlyTheNamedMemorysWordCounts) {
  EXPECT_TRUE(announcements_->Check(kOther, SlabsOf("memory")).ok());
  const absl::Status refused = announcements_->Check(kOther, SlabsOf("another"));
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  Take(SlabsOf("memory"));
  Tell();
  EXPECT_NE(announcements_->SaidBy(kVersion, kOther), nullptr);
  EXPECT_TRUE(announcements_->HaveAllSaid(kVersion, Group()));
  NameMemories("another");
  EXPECT_EQ(announcements_->SaidBy(kVersion, kOther), nullptr);
  EXPECT_FALSE(announcements_->HaveAllSaid(kVersion, Group()));
}

TEST_F(AnnouncementsTest, TheShareIsOfWhatAllSaid) {
  Take(SlabsOf("memory"));
  Tell();
  const absl::StatusOr<GuardShare> share = announcements_->ShareOf(kVersion, Group());
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->coded->layout().positions(), 3U);
  EXPECT_EQ(share->coded->slabs.members()[1].incarnation(), "memory");
  EXPECT_EQ(share->description_bytes, 100U);

  AnnounceRequest other_blocks = SlabsOf("memory");
  other_blocks.set_block_bytes(2 * kBlockBytes);
  Take(other_blocks);
  const absl::Status refused = announcements_->ShareOf(kVersion, Group()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

}  // namespace
}  // namespace unreft::smp
