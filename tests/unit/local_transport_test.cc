// The transport of a job of one node; what every Transport does between two is in conformance.

#include "transport/local_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakes/sim_executor.h"

namespace unreft {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class LocalTransportTest : public testing::Test {
 protected:
  using Reply = absl::StatusOr<std::string>;

  ~LocalTransportTest() override {
    executor_->Deliver(Duration{}, [this] { transport_.reset(); });
    Settle();
  }
  void Settle(Duration duration = milliseconds(10)) { scheduler_.RunFor(duration); }

  template <typename Ask>
  Reply Answer(Ask ask) {
    std::optional<Reply> answer;
    executor_->Deliver(Duration{}, [&] {
      ask([&](Reply reply) { answer = std::move(reply); });
      EXPECT_FALSE(answer.has_value()) << "called inline";
    });
    Settle(milliseconds(200));
    return answer.value_or(absl::UnknownError("no answer"));
  }
  Reply Call(const std::string& method, const std::string& address = "this node") {
    return Answer([&](auto done) {
      transport_->Call(address, method, "request", milliseconds(100), std::move(done));
    });
  }
  Reply Read(std::span<std::byte> into) {
    return Answer([&](auto done) {
      transport_->Read("this node", "request", into, milliseconds(100), std::move(done));
    });
  }
  void ServeBytes(std::vector<std::string> parts) {
    transport_->ServeReads([parts](std::string, uint64_t, auto done) {
      auto held = std::make_shared<std::vector<std::string>>(parts);
      ReadSource source{.header = "header"};
      for (const std::string& part : *held) source.parts.push_back(std::as_bytes(std::span(part)));
      source.hold = held;
      done(std::move(source));
    });
  }

  SimScheduler scheduler_{1};
  std::unique_ptr<SimExecutor> executor_ = scheduler_.NewExecutor("node");
  std::unique_ptr<LocalTransport> transport_ = std::make_unique<LocalTransport>(*executor_);
};

TEST_F(LocalTransportTest, CallsItself) {
  transport_->Serve("echo", [](std::string request, auto done) { done("got " + request); });
  EXPECT_EQ(Call("echo").value_or(""), "got request");
}

TEST_F(LocalTransportTest, AnErrorNamesAddressAndMethod) {
  transport_->Serve("fail", [](std::string, auto done) { done(absl::AbortedError("no")); });
  const Reply reply = Call("fail");
  EXPECT_TRUE(absl::IsAborted(reply.status()));
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("this node: fail: no"));
  EXPECT_TRUE(absl::IsUnimplemented(Call("other").status()));
  EXPECT_TRUE(absl::IsUnavailable(Call("fail", "node1:1").status()));
}

TEST_F(LocalTransportTest, ACallEndsByItsDeadlineAndALateAnswerReachesNobody) {
  Transport::CallDone parked;
  transport_->Serve("park", [&](std::string, auto done) { parked = std::move(done); });
  const Reply reply = Call("park");
  EXPECT_TRUE(absl::IsDeadlineExceeded(reply.status())) << reply.status();
  executor_->Deliver(Duration{}, [&] { parked("late"); });
  Settle();
}

TEST_F(LocalTransportTest, ReadsLandInPlace) {
  ServeBytes({"ab", "", "cde"});
  std::string into(5, '-');
  EXPECT_EQ(Read(std::as_writable_bytes(std::span(into))).value_or(""), "header");
  EXPECT_EQ(into, "abcde");
}

TEST_F(LocalTransportTest, BytesThatAreMoreOrLessAreLost) {
  ServeBytes({"abc"});
  for (const size_t bytes : {size_t{2}, size_t{4}}) {
    std::string into(bytes, '-');
    const Reply reply = Read(std::as_writable_bytes(std::span(into)));
    EXPECT_TRUE(absl::IsDataLoss(reply.status())) << reply.status();
    EXPECT_EQ(into, std::string(bytes, '-'));
  }
}

TEST_F(LocalTransportTest, ACancelledReadTouchesNoMemory) {
  absl::AnyInvocable<void(absl::StatusOr<ReadSource>)> parked;
  transport_->ServeReads([&](std::string, uint64_t, auto done) { parked = std::move(done); });
  std::string into = "--";
  const Reply reply = Answer([&](auto done) {
    const TransferId id = transport_->Read("this node", "", std::as_writable_bytes(std::span(into)),
                                           milliseconds(100), std::move(done));
    transport_->Cancel(id);
  });
  EXPECT_TRUE(absl::IsCancelled(reply.status())) << reply.status();
  executor_->Deliver(Duration{}, [&] {
    const std::string bytes = "ab";
    parked(ReadSource{.header = "", .parts = {std::as_bytes(std::span(bytes))}, .hold = nullptr});
  });
  Settle();
  EXPECT_EQ(into, "--");
}

TEST_F(LocalTransportTest, NothingIsHeardAfterItsDestruction) {
  transport_->Serve("echo", [](std::string request, auto done) { done(std::move(request)); });
  bool heard = false;
  executor_->Deliver(Duration{}, [&] {
    transport_->Call("this node", "echo", "", milliseconds(1), [&](const Reply&) { heard = true; });
    transport_.reset();
  });
  Settle();
  EXPECT_FALSE(heard);
}

}  // namespace
}  // namespace unreft
