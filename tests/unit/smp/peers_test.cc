// Whom a node connects to without waiting.
#include "smp/job/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/fakes/sim_executor.h"
#include "transport/counting_transport.h"
#include "transport/faulty_transport.h"

namespace unreft::smp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class HintedTransport final : public Transport {
 public:
  explicit HintedTransport(std::vector<std::string>& hints) : hints_(hints) {}
  const std::string& address() const override { return address_; }
  void Call(const std::string&, const std::string&, std::string, Duration, CallDone) override {}
  TransferId Read(const std::string&, std::string, std::span<std::byte>, Duration,
                  ReadDone) override {
    return TransferId::kNone;
  }
  void Cancel(TransferId) override {}
  void ReconnectNow(const std::string& address) override { hints_.push_back(address); }
  void Serve(const std::string&, CallHandler) override {}
  void ServeReads(ReadHandler) override {}

 private:
  std::vector<std::string>& hints_;
  const std::string address_ = "node0";
};

class PeersTest : public testing::Test {
 protected:
  PresenceRecord& Present(uint64_t slot) {
    PresenceRecord& presence = job_.present[NodeSlot{slot}];
    presence.set_slot(slot);
    presence.set_address("node" + std::to_string(slot));
    job_.present_modified[NodeSlot{slot}] = meta::Revision{++revision_};
    return presence;
  }
  std::vector<std::string> Follow() {
    hints_.clear();
    peers_.Follow();
    return hints_;
  }

  SimScheduler scheduler_{1};
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("node0");
  std::vector<std::string> hints_;
  CountingTransport transport_{
      std::make_unique<FaultyTransport>(*executor_, std::make_unique<HintedTransport>(hints_))};
  uint64_t revision_ = 0;
  meta::JobState job_;
  Peers peers_{*executor_, transport_, job_, "job", NodeSlot{0}, RandomId{}};
};

TEST_F(PeersTest, WhoComesOrComesBackIsConnectedToAtOnce) {
  Present(0);  // this node
  Present(1).set_session(1);
  EXPECT_THAT(Follow(), ElementsAre("node1"));
  Present(2).set_session(1);
  EXPECT_THAT(Follow(), ElementsAre("node2"));
  EXPECT_THAT(Follow(), IsEmpty());
  Present(1).set_session(2);  // the daemon was upgraded
  EXPECT_THAT(Follow(), ElementsAre("node1"));
  job_.present.erase(NodeSlot{2});
  job_.present_modified.erase(NodeSlot{2});
  EXPECT_THAT(Follow(), IsEmpty());
  Present(2).set_session(1);  // it was cut off from the store
  EXPECT_THAT(Follow(), ElementsAre("node2"));
}

}  // namespace
}  // namespace unreft::smp
