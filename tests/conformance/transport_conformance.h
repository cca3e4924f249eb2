// What every Transport does.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/world.h"
#include "transport/transport.h"

namespace unreft {

// Process 0 has the memory and the handlers, process 1 calls; both with the limits below.
class TransportWorld {
 public:
  static constexpr size_t kMessageBytesMax = size_t{16} << 20;
  static constexpr size_t kReadsInFlightMax = 64;

  virtual ~TransportWorld() = default;
  virtual World& world() = 0;
  // In a turn of that process; at an address of its own.
  virtual std::unique_ptr<Transport> NewTransport(int process) = 0;
  // Where nobody is.
  virtual std::string dead_address() = 0;
};

class TransportConformance : public testing::TestWithParam<WorldMaker<TransportWorld>> {
 protected:
  using Reply = absl::StatusOr<std::string>;
  static constexpr Duration kLong = std::chrono::seconds(60);

  // Memory that says when it was let go of, and is then no longer there.
  struct Memory {
    explicit Memory(size_t bytes) : data(bytes) {
      for (size_t i = 0; i < bytes; ++i) data[i] = ByteAt(i);
    }
    static std::byte ByteAt(size_t i) { return static_cast<std::byte>((i * 31 + i / 251) & 0xff); }
    std::vector<std::byte> data;
  };

  ~TransportConformance() override {
    AsCaller([this] { caller_.reset(); });
    AsSource([this] { source_.reset(); });
  }

  void SetUp() override {
    AsSource([this] { source_ = world_->NewTransport(0); });
    AsCaller([this] { caller_ = world_->NewTransport(1); });
    address_ = source_->address();
  }

  void AsSource(absl::FunctionRef<void()> body) { world().InTurn(world().executor(0), body); }
  void AsCaller(absl::FunctionRef<void()> body) { world().InTurn(world().executor(1), body); }
  World& world() { return world_->world(); }
  bool RunUntil(absl::FunctionRef<bool()> condition) { return world().RunUntil(condition); }

  void Serve(const std::string& method, Transport::CallHandler handler) {
    AsSource([&] { source_->Serve(method, std::move(handler)); });
  }

  // Appends the outcome to `replies`.
  Transport::CallDone Into(std::vector<Reply>& replies) {
    return [this, &replies](Reply reply) {
      EXPECT_FALSE(calling_);  // never inline
      EXPECT_TRUE(world().executor(1).InTurn());
      replies.push_back(std::move(reply));
    };
  }
  void Call(const std::string& address, const std::string& method, std::string request,
            std::vector<Reply>& replies, Duration timeout = kLong) {
    AsCaller([&] {
      calling_ = true;
      caller_->Call(address, method, std::move(request), timeout, Into(replies));
      calling_ = false;
    });
  }
  Reply CallOnce(const std::string& method, std::string request, Duration timeout = kLong) {
    std::vector<Reply> replies;
    Call(address_, method, std::move(request), replies, timeout);
    EXPECT_TRUE(RunUntil([&] { return !replies.empty(); }));
    return replies.empty() ? absl::UnknownError("no reply") : replies[0];
  }

  TransferId Read(std::string request, std::span<std::byte> into, std::vector<Reply>& replies,
                  Duration timeout = kLong) {
    TransferId id{};
    AsCaller([&] {
      calling_ = true;
      id = caller_->Read(address_, std::move(request), into, timeout, Into(replies));
      calling_ = false;
    });
    return id;
  }
  Reply ReadOnce(std::span<std::byte> into, Duration timeout = kLong) {
    std::vector<Reply> replies;
    Read("", into, replies, timeout);
    EXPECT_TRUE(RunUntil([&] { return !replies.empty(); }));
    return replies.empty() ? absl::UnknownError("no reply") : replies[0];
  }

  // Answers reads from new memory of so many bytes, cut into parts of at most `part_bytes`.
  void ServeMemory(size_t bytes, size_t part_bytes, std::string header = "header") {
    AsSource([&] {
      source_->ServeReads([this, bytes, part_bytes, header](std::string, uint64_t, auto done) {
        done(NewSource(bytes, part_bytes, header));
      });
    });
  }
  ReadSource NewSource(size_t bytes, size_t part_bytes, std::string header = "header") {
    auto memory = std::make_shared<Memory>(bytes);
    ReadSource source{.header = std::move(header)};
    std::span<const std::byte> rest = memory->data;
    while (!rest.empty()) {
      source.parts.push_back(rest.first(std::min(part_bytes, rest.size())));
      rest = rest.subspan(source.parts.back().size());
    }
    held_ = memory;
    source.hold = std::move(memory);
    return source;
  }
  // Keeps every read for later.
  void ParkReads() {
    AsSource([&] {
      source_->ServeReads([this](std::string request, uint64_t, auto done) {
        parked_.push_back({std::move(request), std::move(done)});
      });
    });
  }
  bool HoldIsReleased() {
    return RunUntil([this] {
      if (held_.expired()) return true;
      world().executor(0).Post([] {});  // gRPC's threads let go without a turn
      return false;
    });
  }

  static bool IsPattern(std::span<const std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != Memory::ByteAt(i)) return false;
    }
    return true;
  }

  struct Parked {
    std::string request;
    absl::AnyInvocable<void(absl::StatusOr<ReadSource>)> done;
  };

  std::unique_ptr<TransportWorld> world_ = GetParam().make();
  std::vector<Parked> parked_;
  std::unique_ptr<Transport> source_;
  std::unique_ptr<Transport> caller_;
  std::string address_;
  bool calling_ = false;
  std::weak_ptr<const void> held_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

MATCHER_P(HasCode, code, "") {
  *result_listener << arg.status().ToString();
  return arg.status().code() == code;
}
MATCHER_P(Says, text, "") {
  *result_listener << arg.status().ToString();
  return arg.status().ToString().find(text) != std::string::npos;
}

TEST_P(TransportConformance, CarriesCallsAndReplies) {
  Serve("echo", [this](std::string request, Transport::CallDone done) {
    EXPECT_TRUE(world().executor(0).InTurn());
    done("reply to " + request);
  });
  const std::string binary("\0\xff\n", 3);
  const Reply reply = CallOnce("echo", binary);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, "reply to " + binary);
  EXPECT_EQ(*CallOnce("echo", ""), "reply to ");
}

TEST_P(TransportConformance, CarriesEmptyReplies) {
  Serve("empty", [](std::string, Transport::CallDone done) { done(""); });
  const Reply reply = CallOnce("empty", "x");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, "");
}

TEST_P(TransportConformance, CarriesBigMessages) {
  Serve("echo", [](std::string request, Transport::CallDone done) { done(std::move(request)); });
  std::string request(TransportWorld::kMessageBytesMax, 'x');
  for (size_t i = 0; i < request.size(); i += 4096) request[i] = static_cast<char>(i >> 12);
  const Reply reply = CallOnce("echo", request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(*reply == request);
}

TEST_P(TransportConformance, CallsItself) {
  std::vector<Reply> replies;
  AsCaller([&] {
    caller_->Serve("echo", [](std::string request, Transport::CallDone done) { done(request); });
    caller_->Call(caller_->address(), "echo", "me", kLong, Into(replies));
  });
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  ASSERT_TRUE(replies[0].ok()) << replies[0].status();
  EXPECT_EQ(*replies[0], "me");
}

TEST_P(TransportConformance, TellsTheHandlersError) {
  for (const auto code :
       {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted,
        absl::StatusCode::kCancelled, absl::StatusCode::kDataLoss, absl::StatusCode::kInternal,
        absl::StatusCode::kUnavailable, absl::StatusCode::kUnknown}) {
    Serve("fail", [code](std::string, Transport::CallDone done) {
      done(absl::Status(code, "view 7 is older than 9: \xc3\xa4"));
    });
    const Reply reply = CallOnce("fail", "");
    EXPECT_THAT(reply, HasCode(code));
    EXPECT_THAT(reply, Says("view 7 is older than 9: \xc3\xa4"));
    EXPECT_THAT(reply, Says(address_));
    EXPECT_THAT(reply, Says("fail"));
  }
}

TEST_P(TransportConformance, CutsAnErrorThatIsTooLong) {
  Serve("fail", [](std::string, Transport::CallDone done) {
    done(absl::AbortedError("long: " + std::string(100'000, '%')));
  });
  const Reply reply = CallOnce("fail", "");
  EXPECT_THAT(reply, HasCode(absl::StatusCode::kAborted));
  EXPECT_THAT(reply, Says("long: %%%"));
}

TEST_P(TransportConformance, IsUnimplementedWithoutAHandler) {
  const Reply unknown = CallOnce("unknown", "");
  EXPECT_THAT(unknown, HasCode(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(unknown, Says("unknown"));
  std::byte byte{};
  EXPECT_THAT(ReadOnce({&byte, 1}), HasCode(absl::StatusCode::kUnimplemented));
  Serve("gone", [](std::string, Transport::CallDone done) { done("here"); });
  EXPECT_TRUE(CallOnce("gone", "").ok());
  Serve("gone", nullptr);
  EXPECT_THAT(CallOnce("gone", ""), HasCode(absl::StatusCode::kUnimplemented));
}

TEST_P(TransportConformance, MayReplaceAHandlerFromWithin) {
  Serve("once", [this, text = std::make_unique<std::string>("captured")](std::string,
                                                                         Transport::CallDone done) {
    source_->Serve("once", nullptr);
    EXPECT_EQ(*text, "captured");
    done("first");
  });
  EXPECT_EQ(*CallOnce("once", ""), "first");
  EXPECT_THAT(CallOnce("once", ""), HasCode(absl::StatusCode::kUnimplemented));
}

TEST_P(TransportConformance, IsUnavailableWhereNobodyIs) {
  std::vector<Reply> replies;
  Call(world_->dead_address(), "echo", "", replies);
  AsCaller([&] {
    static std::byte byte{};
    caller_->Read(world_->dead_address(), "", {&byte, 1}, kLong, Into(replies));
  });
  ASSERT_TRUE(RunUntil([&] { return replies.size() == 2; }));
  for (const Reply& reply : replies) {
    EXPECT_THAT(reply, HasCode(absl::StatusCode::kUnavailable));
    EXPECT_THAT(reply, Says(world_->dead_address()));
  }
}

TEST_P(TransportConformance, EndsByTheDeadlineWhileTheHandlerParks) {
  std::vector<Transport::CallDone> parked;
  Serve("park", [&](std::string, Transport::CallDone done) { parked.push_back(std::move(done)); });
  const Reply reply = CallOnce("park", "", std::chrono::milliseconds(50));
  EXPECT_THAT(reply, HasCode(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(reply, Says("park"));
  EXPECT_THAT(reply, Says("50 ms"));
  // An answer that comes too late, or after the transport, reaches nobody.
  AsSource([&] {
    if (!parked.empty()) parked[0]("late");
    source_.reset();
    parked.clear();
  });
}

TEST_P(TransportConformance, AnswersMuchLater) {
  std::vector<Transport::CallDone> parked;
  Serve("park", [&](std::string, Transport::CallDone done) { parked.push_back(std::move(done)); });
  std::vector<Reply> replies;
  Call(address_, "park", "", replies);
  ASSERT_TRUE(RunUntil([&] { return !parked.empty(); }));
  world().Settle();
  EXPECT_TRUE(replies.empty());
  AsSource([&] { parked[0]("at last"); });
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_EQ(*replies[0], "at last");
}

TEST_P(TransportConformance, AnswersInAnyOrder) {
  std::map<std::string, Transport::CallDone> parked;
  Serve("park",
        [&](std::string request, Transport::CallDone done) { parked[request] = std::move(done); });
  std::vector<Reply> first;
  std::vector<Reply> second;
  Call(address_, "park", "1", first);
  Call(address_, "park", "2", second);
  ASSERT_TRUE(RunUntil([&] { return parked.size() == 2; }));
  AsSource([&] { parked["2"]("two"); });
  ASSERT_TRUE(RunUntil([&] { return !second.empty(); }));
  EXPECT_TRUE(first.empty());
  AsSource([&] { parked["1"]("one"); });
  ASSERT_TRUE(RunUntil([&] { return !first.empty(); }));
  EXPECT_EQ(*first[0], "one");
  EXPECT_EQ(*second[0], "two");
}

TEST_P(TransportConformance, RefusesMessagesOverTheLimit) {
  constexpr size_t kOver = TransportWorld::kMessageBytesMax + 1;
  const auto names_both = [](const Reply& reply) {
    EXPECT_THAT(reply, HasCode(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(reply, Says(std::to_string(kOver)));
    EXPECT_THAT(reply, Says(std::to_string(kOver - 1)));
  };
  Serve("big", [](std::string, Transport::CallDone done) { done(std::string(kOver, 'x')); });
  names_both(CallOnce("big", ""));
  names_both(CallOnce("big", std::string(kOver, 'x')));
  std::vector<std::byte> into(kOver);
  names_both(ReadOnce(into));
}

}  // namespace unreft
