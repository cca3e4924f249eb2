// What one peer may hold of a node's server, and that others are served all the same.
#include <gmock/gmock.h>

#include "tests/unit/connection_flood.h"
#include "tests/unit/grpc_transport_fixture.h"

namespace unreft {
namespace {

using testing::HasSubstr;

// They waited for ever in the places of all.
TEST_F(GrpcTransportTest, RequestsThatAreNotAnsweredShutOutNoOtherPeer) {
  constexpr size_t kParkedMax = 4;
  std::vector<Transport::CallDone> parked;
  world_.InTurn([&] {
    server_ = *NewGrpcTransport(
        world_.asio(),
        {.job = "job-1", .tls = certificates_.Make("job-1"), .calls_parked_max = kParkedMax});
    server_->Serve("hello", [](std::string, Transport::CallDone done) { done("welcome"); });
    server_->Serve(
        "park", [&](std::string, Transport::CallDone done) { parked.push_back(std::move(done)); });
  });
  std::vector<Reply> refused;
  auto greedy = New("job-1", certificates_.Make("job-1", "ours", {.common_name = "greedy"}));
  world_.InTurn([&] {
    for (size_t i = 0; i < 2 * kParkedMax; ++i) {
      greedy->Call(server_->address(), "park", "", std::chrono::seconds(60),
                   [&](Reply reply) { refused.push_back(std::move(reply)); });
    }
  });
  ASSERT_TRUE(world_.RunUntil([&] { return refused.size() == kParkedMax; }));
  EXPECT_THAT(refused.back().status().ToString(),
              HasSubstr("4 of them by this peer, calls_parked_max is 4"));
  const absl::Status served =
      CallFrom("job-1", certificates_.Make("job-1", "ours", {.common_name = "modest"}));
  EXPECT_TRUE(served.ok()) << served;
  ASSERT_TRUE(world_.RunUntil([&] { return refused.size() == kParkedMax + 1; }));
  EXPECT_EQ(refused.back().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.back().status().ToString(), HasSubstr("this peer holds the most places"));
  world_.InTurn([&] {
    for (auto& done : parked) done("too late for one");
    greedy.reset();
  });
}

// gRPC's listener ends for good when it meets the limit, and anybody can make it.
TEST_F(GrpcTransportTest, AcceptsAgainAfterConnectionsTookAllDescriptors) {
  MakeServer("job-1");
  caller_ = New("job-1");
  FloodWithConnections(server_->address());
  EXPECT_TRUE(ReachesAgain());
}

}  // namespace
}  // namespace unreft
