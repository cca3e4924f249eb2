// What every Transport does with reads, and when one of its ends goes: the second half of the suite
// (transport_conformance.h has the world and the calls).
#pragma once

#include "tests/conformance/transport_conformance.h"

namespace unreft {

TEST_P(TransportConformance, RefusesReadsOverTheLimit) {
  ParkReads();
  std::vector<std::byte> into(TransportWorld::kReadsInFlightMax + 1);
  std::vector<Reply> replies;
  for (std::byte& byte : into) Read("", {&byte, 1}, replies);
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(replies[0], Says("reads_in_flight_max is 64"));
  ASSERT_TRUE(RunUntil([&] { return parked_.size() == TransportWorld::kReadsInFlightMax; }));
  AsSource([&] {
    for (Parked& read : parked_) read.done(NewSource(1, 1));
  });
  EXPECT_TRUE(RunUntil([&] { return replies.size() == into.size(); }));
}

TEST_P(TransportConformance, LandsReadsInPlace) {
  constexpr size_t kBytes = 100'003;
  for (const size_t part_bytes : {kBytes, size_t{4096}, size_t{333}}) {
    ServeMemory(kBytes, part_bytes, std::string("he\0der", 6));
    std::vector<std::byte> into(kBytes + 2, std::byte{0xee});
    const Reply header = ReadOnce(std::span(into).subspan(1, kBytes));
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(*header, std::string("he\0der", 6));
    EXPECT_TRUE(IsPattern(std::span(into).subspan(1, kBytes)));
    EXPECT_EQ(into.front(), std::byte{0xee});
    EXPECT_EQ(into.back(), std::byte{0xee});
    EXPECT_TRUE(HoldIsReleased());
  }
}

TEST_P(TransportConformance, HandsTheRequestAndItsBytesToTheSource) {
  std::string seen;
  AsSource([&] {
    source_->ServeReads([&](std::string request, uint64_t bytes, auto done) {
      EXPECT_TRUE(world().executor(0).InTurn());
      seen = request + " " + std::to_string(bytes);
      done(NewSource(bytes, bytes));
    });
  });
  std::vector<std::byte> into(17);
  std::vector<Reply> replies;
  Read("block 41", into, replies);
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_EQ(seen, "block 41 17");
}

TEST_P(TransportConformance, LandsReadsOfManyMebibytes) {
  constexpr size_t kBytes = TransportWorld::kMessageBytesMax;  // gRPC's own limit is 4 MiB
  ServeMemory(kBytes, size_t{1} << 20);
  std::vector<std::byte> into(kBytes);
  const Reply header = ReadOnce(into);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_TRUE(IsPattern(into));
}

TEST_P(TransportConformance, LandsNothingAtAll) {
  ServeMemory(0, 1, "only a header");
  const Reply header = ReadOnce({});
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(*header, "only a header");
  ServeMemory(5, 5, "");
  std::vector<std::byte> into(5);
  const Reply empty = ReadOnce(into);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(*empty, "");
}

TEST_P(TransportConformance, LosesDataThatIsMoreOrLess) {
  for (const size_t bytes : {999, 1001, 0}) {
    ServeMemory(bytes, 100);
    std::vector<std::byte> into(1002, std::byte{0xee});
    const Reply header = ReadOnce(std::span(into).subspan(1, 1000));
    EXPECT_THAT(header, HasCode(absl::StatusCode::kDataLoss));
    EXPECT_THAT(header, Says(std::to_string(bytes) + " bytes"));
    EXPECT_THAT(header, Says("1000"));
    EXPECT_THAT(header, Says(address_));
    EXPECT_EQ(into.front(), std::byte{0xee});
    EXPECT_EQ(into.back(), std::byte{0xee});
    EXPECT_TRUE(HoldIsReleased());
  }
}

TEST_P(TransportConformance, TellsTheSourcesError) {
  AsSource([&] {
    source_->ServeReads([](std::string, uint64_t, auto done) {
      done(absl::NotFoundError("no block 41 of version 1200"));
    });
  });
  std::byte byte{};
  const Reply header = ReadOnce({&byte, 1});
  EXPECT_THAT(header, HasCode(absl::StatusCode::kNotFound));
  EXPECT_THAT(header, Says("no block 41 of version 1200"));
}

TEST_P(TransportConformance, LandsManyReadsAtOnce) {
  constexpr size_t kReads = TransportWorld::kReadsInFlightMax;
  constexpr size_t kBytes = 200'000;
  ServeMemory(kBytes, 65536);
  std::vector<std::vector<std::byte>> into(kReads, std::vector<std::byte>(kBytes));
  std::vector<Reply> replies;
  for (auto& memory : into) Read("", memory, replies);
  ASSERT_TRUE(RunUntil([&] { return replies.size() == kReads; }));
  for (size_t i = 0; i < kReads; ++i) {
    EXPECT_TRUE(replies[i].ok()) << replies[i].status();
    EXPECT_TRUE(IsPattern(into[i]));
  }
}

TEST_P(TransportConformance, CancelsAReadOnce) {
  ParkReads();
  std::vector<std::byte> into(100);
  std::vector<Reply> replies;
  const TransferId id = Read("", into, replies);
  ASSERT_TRUE(RunUntil([&] { return !parked_.empty(); }));
  AsCaller([&] {
    caller_->Cancel(id);
    caller_->Cancel(id);
    EXPECT_TRUE(replies.empty());  // never inline
  });
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kCancelled));
  std::ranges::fill(into, std::byte{0xee});  // is the caller's again
  AsSource([&] { parked_[0].done(NewSource(100, 100)); });
  AsCaller([&] { caller_->Cancel(id); });
  EXPECT_TRUE(HoldIsReleased());
  world().Settle();
  EXPECT_EQ(replies.size(), 1U);
  EXPECT_TRUE(std::ranges::all_of(into, [](std::byte b) { return b == std::byte{0xee}; }));
}

TEST_P(TransportConformance, CancelsAtAnyMoment) {
  constexpr size_t kBytes = 1 << 20;
  ServeMemory(kBytes, 65536);
  for (int turns = 0; turns < 12; ++turns) {
    std::vector<std::byte> into(kBytes);
    std::vector<Reply> replies;
    const TransferId id = Read("", into, replies);
    for (int i = 0; i < turns && replies.empty(); ++i) world().RunOne();
    AsCaller([&] { caller_->Cancel(id); });
    ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
    if (replies[0].ok()) {
      EXPECT_TRUE(IsPattern(into));
    } else {
      EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kCancelled));
    }
    std::ranges::fill(into, std::byte{0xee});
    EXPECT_TRUE(HoldIsReleased());
    EXPECT_EQ(replies.size(), 1U);
    EXPECT_TRUE(std::ranges::all_of(into, [](std::byte b) { return b == std::byte{0xee}; }));
  }
}

TEST_P(TransportConformance, IgnoresCancelsOfNothing) {
  AsCaller([&] {
    caller_->Cancel(TransferId::kNone);
    caller_->Cancel(TransferId{12345});
  });
  ServeMemory(10, 10);
  std::vector<std::byte> into(10);
  EXPECT_TRUE(ReadOnce(into).ok());
}

TEST_P(TransportConformance, EndsAReadByItsDeadline) {
  ParkReads();
  std::vector<std::byte> into(100);
  std::vector<Reply> replies;
  Read("", into, replies, std::chrono::milliseconds(50));
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kDeadlineExceeded));
  std::ranges::fill(into, std::byte{0xee});
  AsSource([&] {
    for (Parked& read : parked_) read.done(NewSource(100, 100));
  });
  EXPECT_TRUE(HoldIsReleased());
  world().Settle();
  EXPECT_TRUE(std::ranges::all_of(into, [](std::byte b) { return b == std::byte{0xee}; }));
}

TEST_P(TransportConformance, IsUnavailableWhenThePeerGoes) {
  ParkReads();
  std::vector<Transport::CallDone> calls;
  Serve("park", [&](std::string, Transport::CallDone done) { calls.push_back(std::move(done)); });
  std::vector<std::byte> into(100);
  std::vector<Reply> replies;
  Read("", into, replies);
  Call(address_, "park", "", replies);
  ASSERT_TRUE(RunUntil([&] { return !parked_.empty() && !calls.empty(); }));
  AsSource([&] { source_.reset(); });
  ASSERT_TRUE(RunUntil([&] { return replies.size() == 2; }));
  EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kUnavailable));
  EXPECT_THAT(replies[1], HasCode(absl::StatusCode::kUnavailable));
  // Answers reach nobody, and what they held is let go.
  AsSource([&] {
    parked_[0].done(NewSource(100, 100));
    calls[0]("too late");
    parked_.clear();
    calls.clear();
  });
  EXPECT_TRUE(HoldIsReleased());
}

TEST_P(TransportConformance, IsUnavailableWhenThePeerGoesWhileBytesAreOnTheirWay) {
  constexpr size_t kBytes = TransportWorld::kMessageBytesMax;
  bool asked = false;
  AsSource([&] {
    source_->ServeReads([&](std::string, uint64_t, auto done) {
      done(NewSource(kBytes, 65536));
      asked = true;
    });
  });
  std::vector<std::byte> into(kBytes);
  std::vector<Reply> replies;
  Read("", into, replies);
  ASSERT_TRUE(RunUntil([&] { return asked; }));
  AsSource([&] { source_.reset(); });
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  if (replies[0].ok()) {
    EXPECT_TRUE(IsPattern(into));
  } else {
    EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kUnavailable));
  }
  EXPECT_TRUE(HoldIsReleased());
}

TEST_P(TransportConformance, HearsNothingAfterItsDestruction) {
  constexpr size_t kBytes = size_t{4} << 20;
  ServeMemory(kBytes, 65536);
  Serve("echo", [](std::string request, Transport::CallDone done) { done(std::move(request)); });
  for (int turns = 0; turns < 8; ++turns) {
    std::vector<std::byte> into(kBytes);
    std::vector<Reply> replies;
    for (size_t i = 0; i < 4; ++i) {
      Read("", std::span(into).subspan(i * kBytes / 4, kBytes / 4), replies);
    }
    Call(address_, "echo", "", replies);
    for (int i = 0; i < turns && replies.empty(); ++i) world().RunOne();
    size_t heard = 0;
    AsCaller([&] {
      caller_.reset();
      heard = replies.size();
      std::ranges::fill(into, std::byte{0xee});
    });
    world().Settle();
    EXPECT_TRUE(HoldIsReleased());
    EXPECT_EQ(replies.size(), heard);
    EXPECT_TRUE(std::ranges::all_of(into, [](std::byte b) { return b == std::byte{0xee}; }));
    AsCaller([&] { caller_ = world_->NewTransport(1); });
  }
}

TEST_P(TransportConformance, MayBeDestroyedByItsOwnCallback) {
  Serve("echo", [](std::string request, Transport::CallDone done) { done(std::move(request)); });
  int ends = 0;
  AsCaller([&] {
    for (int i = 0; i < 5; ++i) {
      auto text = std::make_unique<std::string>("captured");
      caller_->Call(address_, "echo", "", kLong, [&, text = std::move(text)](const Reply&) {
        ++ends;
        caller_.reset();
        EXPECT_EQ(*text, "captured");
      });
    }
  });
  ASSERT_TRUE(RunUntil([&] { return ends > 0; }));
  world().Settle();
  EXPECT_EQ(ends, 1);
}

TEST_P(TransportConformance, MayBeDestroyedByItsOwnHandler) {
  Serve("last", [&](std::string, Transport::CallDone done) {
    source_.reset();
    done("nobody hears it");
  });
  std::vector<Reply> replies;
  Call(address_, "last", "", replies);
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_THAT(replies[0], HasCode(absl::StatusCode::kUnavailable));
}

TEST_P(TransportConformance, KeepsTransportsApart) {
  std::unique_ptr<Transport> third;
  Serve("who", [](std::string, Transport::CallDone done) { done("source"); });
  AsSource([&] {
    third = world_->NewTransport(0);
    third->Serve("who", [](std::string, Transport::CallDone done) { done("third"); });
  });
  std::vector<Reply> replies;
  Call(third->address(), "who", "", replies);
  ASSERT_TRUE(RunUntil([&] { return !replies.empty(); }));
  EXPECT_EQ(*replies[0], "third");
  EXPECT_EQ(*CallOnce("who", ""), "source");
  AsSource([&] { third.reset(); });
  EXPECT_EQ(*CallOnce("who", ""), "source");
}

}  // namespace unreft
