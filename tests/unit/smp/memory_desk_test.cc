// What a node says of the memory that the next attempt needs.

#include "smp/node/memory_desk.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "smp/desk/node_memory.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

class MemoryDeskTest : public NodeStateFixture {
 protected:
  MemoryDeskTest() {
    InTurn([&] {
      MakeSlots();
      desk_.emplace(state_, nullptr);
    });
  }
  ~MemoryDeskTest() override {
    InTurn([&] { desk_.reset(); });
  }

  nlohmann::json Ask() {
    std::optional<AdminReply> reply;
    InTurn([&] { desk_->Answer([&](AdminReply answer) { reply = std::move(answer); }); });
    Settle();
    EXPECT_TRUE(reply && reply->status.ToStatus().ok());
    return reply ? nlohmann::json::parse(reply->result) : nlohmann::json();
  }

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
