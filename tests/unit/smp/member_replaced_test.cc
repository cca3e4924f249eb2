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
    unreft::Member& member = *view.add_members();
    member.set_slot(0);
    member.set_incarnation(incarnation);
    member.set_lost(lost);
    Put("view", view);
    Settle(seconds(3));
  }
  // The daemon of the other memory. Until it is killed.
  struct Spare {
    std::unique_ptr<SimExecutor> executor;
    std::unique_ptr<meta::Kv> kv;
    std::unique_ptr<meta::LeasedKey> presence;
    ~Spare() { executor->Kill(); }
  };
  std::unique_ptr<Spare> Replace() {
    auto spare = std::make_unique<Spare>();
    spare->executor = scheduler_.NewExecutor("spare");
    spare->kv = kv_store_.NewKv(*spare->executor);
    PresenceRecord presence = PresenceOf(0);
    presence.set_incarnation("another memory");
    InTurnOf(*spare->executor, [&] {
      spare->presence = std::make_unique<meta::LeasedKey>(
          *spare->kv, *spare->executor, log_, leader_->store->PresenceKey(NodeSlot{0}),
          options_.presence_ttl, [](const std::string&) { return false; }, [] {});
      spare->presence->Hold(presence.SerializeAsString());
    });
    Settle(seconds(3));
    return spare;
  }

  Other* leader_ = nullptr;
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

// Otherwise a node of new memory would wait for one that is no more.
TEST_F(MemberReplacedTest, AMemoryThatWasInNoViewTakesTheSlot) {
  StopMember();
  Name(2, "another memory");
  Settle(seconds(4));
  ASSERT_FALSE(Present());
  StartMember();
  Settle(seconds(4));
  EXPECT_TRUE(Present());
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

}  // namespace
}  // namespace unreft::smp
