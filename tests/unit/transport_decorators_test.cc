// Counting, failing and warning, over the simulated network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/world.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/sim_transport.h"
#include "transport/counting_transport.h"
#include "transport/faulty_transport.h"
#include "transport/refusal_log.h"

namespace unreft {
namespace {

using Reply = absl::StatusOr<std::string>;
using Kind = TransportFault::Kind;

class TransportDecoratorsTest : public testing::Test {
 protected:
  TransportDecoratorsTest() {
    world_.InTurn([this] {
      source_ =
          std::make_unique<CountingTransport>(*network_.NewTransport(world_.sim(0), "source:1"));
      auto faulty = std::make_unique<FaultyTransport>(
          world_.executor(1), *network_.NewTransport(world_.sim(1), "caller:1"));
      faulty_ = faulty.get();
      caller_ = std::make_unique<CountingTransport>(std::move(faulty));
      source_->Serve("echo", [this](std::string request, Transport::CallDone done) {
        ++served_;
        done(std::move(request));
      });
      source_->ServeReads([](std::string, uint64_t bytes, auto done) {
        auto memory = std::make_shared<std::vector<std::byte>>(bytes, std::byte{7});
        done(ReadSource{.header = "head", .parts = {*memory}, .hold = memory});
      });
    });
  }

  Reply Call(Duration timeout = std::chrono::seconds(1)) {
    std::vector<Reply> replies;
    world_.InTurn(world_.executor(1), [&] {
      caller_->Call("source:1", "echo", "12345", timeout,
                    [&](Reply reply) { replies.push_back(std::move(reply)); });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return !replies.empty(); }));
    return replies[0];
  }
  Reply Read(std::span<std::byte> into, bool cancel = false) {
    std::vector<Reply> replies;
    world_.InTurn(world_.executor(1), [&] {
      const TransferId id =
          caller_->Read("source:1", "which", into, std::chrono::seconds(1),
                        [&](Reply reply) { replies.push_back(std::move(reply)); });
      if (cancel) caller_->Cancel(id);
    });
    EXPECT_TRUE(world_.RunUntil([&] { return !replies.empty(); }));
    world_.Settle();
    EXPECT_EQ(replies.size(), 1U);
    return replies[0];
  }

  SimWorld world_{1};
  SimNetwork network_{world_.scheduler()};
  std::unique_ptr<CountingTransport> source_;
  FaultyTransport* faulty_ = nullptr;
  std::unique_ptr<CountingTransport> caller_;
  int served_ = 0;
};

TEST_F(TransportDecoratorsTest, CountsCallsAndReads) {
  std::vector<std::byte> into(100);
  EXPECT_TRUE(Call().ok());
  EXPECT_TRUE(Call().ok());
  EXPECT_TRUE(Read(into).ok());
  const TransferCounts& calls = caller_->counts().calls.at("echo");
  EXPECT_EQ(calls.begun, 2U);
  EXPECT_EQ(calls.done, 2U);
  EXPECT_EQ(calls.in_flight(), 0U);
  EXPECT_EQ(calls.request_bytes, 10U);
  EXPECT_EQ(calls.reply_bytes, 10U);
  EXPECT_EQ(source_->counts().calls_served.at("echo").done, 2U);
  EXPECT_EQ(caller_->counts().reads.bulk_bytes, 100U);
  EXPECT_EQ(caller_->counts().reads.request_bytes, 5U);
  EXPECT_EQ(caller_->counts().reads.reply_bytes, 4U);
  EXPECT_EQ(source_->counts().reads_served.bulk_bytes, 100U);
}

TEST_F(TransportDecoratorsTest, CountsWhatHadToBeMovedAgain) {
  faulty_->Add({.kind = Kind::kLoseAnswer, .count = 2});
  std::vector<std::byte> into(100);
  while (!Read(into).ok()) {
  }
  const TransferCounts& reads = caller_->counts().reads;
  EXPECT_EQ(reads.begun, 3U);
  EXPECT_EQ(reads.failures.at(absl::StatusCode::kUnavailable), 2U);
  EXPECT_EQ(reads.bulk_bytes, 100U);
  EXPECT_EQ(reads.bulk_bytes_lost, 200U);
  EXPECT_EQ(source_->counts().reads_served.bulk_bytes, 300U);
}

TEST_F(TransportDecoratorsTest, FailsTheCallsOfARule) {
  faulty_->Add({.method = "echo", .first = 2, .status = absl::AbortedError("by rule")});
  EXPECT_TRUE(Call().ok());
  EXPECT_EQ(Call().status().message(), "source:1 echo: by rule");
  EXPECT_TRUE(Call().ok());
  EXPECT_EQ(served_, 2);
  EXPECT_EQ(faulty_->faults_struck(), 1U);
  faulty_->Add({.method = "other"});
  faulty_->Add({.method = "echo", .address = "elsewhere:1"});
  EXPECT_TRUE(Call().ok());
  faulty_->Add({.method = "echo", .count = 100});
  EXPECT_FALSE(Call().ok());
  faulty_->Clear();
  EXPECT_TRUE(Call().ok());
}

TEST_F(TransportDecoratorsTest, CarriesOutWhatItLosesTheAnswerOf) {
  faulty_->Add({.kind = Kind::kLoseAnswer, .method = "echo"});
  EXPECT_FALSE(Call().ok());
  EXPECT_EQ(served_, 1);
  faulty_->Add({.kind = Kind::kLoseAnswer});
  std::vector<std::byte> into(1);
  EXPECT_FALSE(Read(into).ok());
  EXPECT_EQ(into[0], std::byte{7});
}

TEST_F(TransportDecoratorsTest, DelaysUpToTheDeadline) {
  faulty_->Add({.kind = Kind::kDelay, .method = "echo", .delay = std::chrono::milliseconds(10)});
  const Duration before = world_.scheduler().now();
  EXPECT_TRUE(Call().ok());
  EXPECT_GE(world_.scheduler().now() - before, std::chrono::milliseconds(10));
  faulty_->Add({.kind = Kind::kDelay, .method = "echo", .delay = std::chrono::hours(1)});
  EXPECT_EQ(Call().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(served_, 1);
}

TEST_F(TransportDecoratorsTest, CancelsAReadThatIsDelayed) {
  std::vector<std::byte> into(1);
  for (const auto delay : {Duration(1), Duration(std::chrono::milliseconds(1))}) {
    faulty_->Clear();
    faulty_->Add({.kind = Kind::kDelay, .delay = delay});
    EXPECT_EQ(Read(into, /*cancel=*/true).status().code(), absl::StatusCode::kCancelled);
  }
  faulty_->Clear();
  faulty_->Add({.kind = Kind::kRefuse});
  EXPECT_FALSE(Read(into, /*cancel=*/true).ok());
}

// A wrong certificate is told, once in a while; what passes by itself is not.
TEST_F(TransportDecoratorsTest, WarnsOfRefusals) {
  CaptureLogSink sink;
  Log log(sink);
  world_.InTurn(world_.executor(1), [&] {
    caller_ = std::make_unique<CountingTransport>(std::make_unique<RefusalLog>(
        std::move(caller_), world_.executor(1), log, std::chrono::seconds(30)));
  });
  std::vector<std::byte> into(1);
  const auto refuse = [&](absl::Status status, const std::string& method) {
    faulty_->Add({.method = method, .status = std::move(status)});
  };
  EXPECT_TRUE(Call().ok());
  refuse(absl::UnavailableError("down"), "echo");
  EXPECT_TRUE(absl::IsUnavailable(Call().status()));
  EXPECT_TRUE(sink.lines().empty());
  refuse(absl::PermissionDeniedError("for job-2"), "echo");
  EXPECT_TRUE(absl::IsPermissionDenied(Call().status()));
  EXPECT_THAT(sink.lines(), testing::ElementsAre("warn: refused: source:1 echo: for job-2"));
  refuse(absl::UnauthenticatedError("who?"), "");
  EXPECT_TRUE(absl::IsUnauthenticated(Read(into).status()));
  EXPECT_EQ(sink.lines().size(), 1U);
  world_.scheduler().RunFor(std::chrono::seconds(31));
  refuse(absl::UnauthenticatedError("who?"), "");
  EXPECT_TRUE(absl::IsUnauthenticated(Read(into).status()));
  ASSERT_EQ(sink.lines().size(), 2U);
  EXPECT_THAT(sink.lines()[1], testing::HasSubstr("refused: source:1 Read: who?"));
}

}  // namespace
}  // namespace unreft
