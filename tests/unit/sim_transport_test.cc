// What the simulated network does to a cluster, beyond what every transport does.
#include "tests/fakes/sim_transport.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/check.h"

namespace unreft {
namespace {

using Reply = absl::StatusOr<std::string>;

class SimTransportTest : public testing::Test {
 protected:
  // Two nodes, a and b; b answers "call" and counts.
  struct Cluster {
    explicit Cluster(uint64_t seed, SimTransportOptions options = {})
        : scheduler(seed), network(scheduler, options) {
      Start(0);
      Start(1);
    }
    ~Cluster() {
      for (auto& node : nodes) node.reset();
    }

    void Start(int i) {
      nodes[i].reset();
      processes[i] = scheduler.NewExecutor(std::string(1, static_cast<char>('a' + i)));
      auto made = network.NewTransport(*processes[i], Address(i));
      UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
      nodes[i] = *std::move(made);
      if (i == 1) Serve();
    }
    void Serve() {
      nodes[1]->Serve("call", [this](std::string request, Transport::CallDone done) {
        arrivals.push_back(request);
        done(request);
      });
      nodes[1]->ServeReads([this](std::string, uint64_t bytes, auto done) {
        auto memory = std::make_shared<std::vector<std::byte>>(bytes, std::byte{7});
        held = memory;
        done(ReadSource{.header = "h", .parts = {*memory}, .hold = memory});
      });
    }
    static std::string Address(int i) { return i == 0 ? "a:1" : "b:1"; }

    void Call(const std::string& request, Duration timeout = std::chrono::seconds(1)) {
      processes[0]->Deliver(Duration::zero(), [this, request, timeout] {
        nodes[0]->Call(Address(1), "call", request, timeout,
                       [this](Reply reply) { replies.push_back(std::move(reply)); });
      });
    }
    void Read(std::span<std::byte> into) {
      processes[0]->Deliver(Duration::zero(), [this, into] {
        nodes[0]->Read(Address(1), "", into, std::chrono::seconds(1),
                       [this](Reply reply) { replies.push_back(std::move(reply)); });
      });
    }
    void Settle() { scheduler.RunFor(std::chrono::seconds(5)); }

    SimScheduler scheduler;
    SimNetwork network;
    std::unique_ptr<SimExecutor> processes[2];
    std::unique_ptr<Transport> nodes[2];
    std::vector<std::string> arrivals;
    std::vector<Reply> replies;
    std::weak_ptr<const void> held;
  };
};

TEST_F(SimTransportTest, LosesMessages) {
  Cluster cluster(1, {.lose_one_in = 3});
  for (int i = 0; i < 200; ++i) cluster.Call(std::to_string(i));
  cluster.Settle();
  ASSERT_EQ(cluster.replies.size(), 200U);
  std::map<absl::StatusCode, int> codes;
  for (const Reply& reply : cluster.replies) ++codes[reply.status().code()];
  EXPECT_GT(codes[absl::StatusCode::kOk], 50);
  EXPECT_GT(codes[absl::StatusCode::kUnavailable], 20);
  EXPECT_GT(codes[absl::StatusCode::kDeadlineExceeded], 20);
  // Some were carried out though the caller does not know.
  EXPECT_GT(cluster.arrivals.size(), static_cast<size_t>(codes[absl::StatusCode::kOk]));
  EXPECT_EQ(codes.size(), 3U);
}

TEST_F(SimTransportTest, DeliversCallsTwice) {
  Cluster cluster(1, {.duplicate_one_in = 2});
  for (int i = 0; i < 100; ++i) cluster.Call(std::to_string(i));
  cluster.Settle();
  EXPECT_EQ(cluster.replies.size(), 100U);
  EXPECT_GT(cluster.network.counts().duplicated, 20U);
  EXPECT_EQ(cluster.arrivals.size(), 100 + cluster.network.counts().duplicated);
}

TEST_F(SimTransportTest, Reorders) {
  Cluster cluster(1, {.slow_one_in = 4});
  for (int i = 0; i < 50; ++i) cluster.Call(std::string(1, static_cast<char>('0' + i)));
  cluster.Settle();
  EXPECT_EQ(cluster.arrivals.size(), 50U);
  EXPECT_FALSE(std::ranges::is_sorted(cluster.arrivals));
}

TEST_F(SimTransportTest, PartitionsOneWay) {
  Cluster cluster(1);
  cluster.network.Block("b:1", "a:1");
  cluster.Call("x");
  cluster.Settle();
  ASSERT_EQ(cluster.replies.size(), 1U);
  EXPECT_EQ(cluster.replies[0].status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.arrivals.size(), 1U);  // it got there
  cluster.network.Unblock("b:1", "a:1");
  cluster.network.Block("a:1", "b:1");
  cluster.Call("y");
  cluster.Settle();
  EXPECT_EQ(cluster.arrivals.size(), 1U);
  cluster.network.Unblock("a:1", "b:1");
  cluster.network.Isolate("b:1");
  cluster.Call("y");
  cluster.Settle();
  EXPECT_EQ(cluster.arrivals.size(), 1U);
  cluster.network.Rejoin("b:1");
  cluster.Call("z");
  cluster.Settle();
  ASSERT_EQ(cluster.replies.size(), 4U);
  EXPECT_TRUE(cluster.replies[3].ok());
}

TEST_F(SimTransportTest, KilledNodesVanishAndComeBack) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster cluster(seed);
    for (int i = 0; i < 20; ++i) cluster.Call("x");
    cluster.scheduler.RunFor(std::chrono::microseconds(200));
    cluster.processes[1]->Kill();
    cluster.Settle();
    ASSERT_EQ(cluster.replies.size(), 20U);
    cluster.Call("nobody");
    cluster.Settle();
    EXPECT_EQ(cluster.replies[20].status().code(), absl::StatusCode::kUnavailable);
    cluster.Start(1);
    cluster.Call("again");
    cluster.Settle();
    ASSERT_EQ(cluster.replies.size(), 22U);
    EXPECT_TRUE(cluster.replies[21].ok()) << cluster.replies[21].status();
  }
}

TEST_F(SimTransportTest, CutsReadsHalfWay) {
  int untouched = 0;
  int partial = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Cluster cluster(seed, {.cut_one_in = 1});
    std::vector<std::byte> into(100);
    cluster.Read(into);
    cluster.Settle();
    ASSERT_EQ(cluster.replies.size(), 1U);
    EXPECT_EQ(cluster.replies[0].status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(cluster.held.expired());
    const auto landed = std::ranges::count(into, std::byte{7});
    ++(landed == 0 ? untouched : partial);
  }
  EXPECT_GT(partial, 25) << untouched;
}

TEST_F(SimTransportTest, TheSameSeedIsTheSameRun) {
  const auto run = [](uint64_t seed) {
    Cluster cluster(seed, {.slow_one_in = 5, .lose_one_in = 7, .duplicate_one_in = 3});
    for (int i = 0; i < 100; ++i) cluster.Call(std::to_string(i));
    cluster.Settle();
    return std::pair(cluster.scheduler.digest(), cluster.arrivals);
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST_F(SimTransportTest, AnAddressHasOneNode) {
  Cluster cluster(1);
  EXPECT_EQ(cluster.network.NewTransport(*cluster.processes[0], "b:1").status().code(),
            absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace unreft
