// What a node says of the memory that the next attempt needs.

#include "smp/node/memory_desk.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "smp/desk/node_memory.h"
#include "smp/node/own_meta.h"
#include "tests/unit/smp/node_state_fixture.h"
#include "tests/unit/smp/recording_node.h"
#include "tests/unit/smp/recording_protection.h"

namespace unreft::smp {
namespace {

class MemoryDeskTest : public NodeStateFixture {
 protected:
  MemoryDeskTest() {
    options_.has_own_store = true;
    InTurn([&] {
      MakeSlots();
      own_meta_.Start([this] {
        member_.emplace(
            Member::Seams{*executor_, own_meta_.kv(), own_meta_.transport(), random_, log_},
            *state_.record, *kept_, node_, state_.options);
        member_->Start(protection_);
        desk_.emplace(state_, *member_);
      });
    });
    Settle();
  }
  ~MemoryDeskTest() override {
    InTurn([&] {
      desk_.reset();
      member_.reset();
    });
  }

  nlohmann::json Ask() {
    std::optional<AdminReply> reply;
    InTurn([&] { desk_->Answer([&](AdminReply answer) { reply = std::move(answer); }); });
    Settle();
    EXPECT_TRUE(reply && reply->status.ToStatus().ok());
    return reply ? nlohmann::json::parse(reply->result) : nlohmann::json();
  }

  OwnMeta own_meta_{*executor_, random_};
  std::unique_ptr<KeptRecords> kept_ = OpenKept();
  RecordingNode node_;
  RecordingProtection protection_;
  std::optional<Member> member_;
  std::optional<MemoryDesk> desk_;
};

TEST_F(MemoryDeskTest, ANodeThatHoldsWhatItMustIsNotShort) {
  InTurn([&] { ASSERT_TRUE(state_.slots->Provide(Rank{0}, {1 << 16, 4096, 4096}).ok()); });
  Settle();
  host_.set_bytes_max(host_.bytes_used());
  const nlohmann::json memory = Ask();
  EXPECT_EQ(memory["short"], false);
  EXPECT_EQ(memory["known"], true);
  EXPECT_EQ(memory["needed"], state_.memory->use().bytes);
  EXPECT_EQ(memory["held"], memory["needed"]);
}

TEST_F(MemoryDeskTest, GuardsThatAreLackingAreNeeded) {
  InTurn([&] {
    ASSERT_TRUE(state_.slots->Provide(Rank{0}, {1 << 16, 4096, 4096}).ok());
    state_.slots->set_guards([](std::span<const SlotNeeds>) {
      return GuardMemory{.guards = 3, .bytes = 0, .lacking_bytes = 2000};
    });
  });
  Settle();
  const uint64_t held = state_.memory->use().bytes;
  state_.options.memory_bytes_max = held + 1999;
  const nlohmann::json memory = Ask();
  EXPECT_EQ(memory["short"], true);
  EXPECT_EQ(memory["needed"], held + 2000);
  EXPECT_EQ(memory["held"], held);
  EXPECT_EQ(memory["allowed"], held + 1999);
  EXPECT_EQ(memory["limit"], "memory_bytes_max");
  state_.options.memory_bytes_max = held + 2000;
  EXPECT_EQ(Ask()["short"], false);
}

}  // namespace
}  // namespace unreft::smp
