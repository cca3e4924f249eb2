// Whatever bytes come, decoding ends with a status or with something valid. Exhaustive truncation
// and seeded bit flips on every run; tests/fuzz does the same without end.
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <set>
#include <type_traits>

#include <string>

#include "tests/unit/format_testing.h"

namespace unreft {
namespace {

std::string FlipBits(Random& random, std::string bytes) {
  for (uint64_t flips = 1 + random.Below(4); flips > 0 && !bytes.empty(); --flips) {
    char& byte = bytes[random.Below(bytes.size())];
    byte = static_cast<char>(byte ^ (1 << random.Below(8)));
  }
  return bytes;
}

template <typename Message>
void ExpectRefusedOrValid(const std::string& payload) {
  const auto message = FromFrame<Message>({static_cast<uint16_t>(Message::kType), payload});
  if (!message.ok()) {
    EXPECT_EQ(message.status().code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  // Valid: what was decoded is a message like any other.
  EXPECT_TRUE(FromFrame<Message>(ToFrame(*message)).ok());
}

// How long the message was each time before fields were appended to it.
template <typename Message>
std::set<size_t> EarlierBytes(Message message) {
  const size_t whole = ToFrame(message).payload.size();
  if constexpr (std::is_same_v<Message, Welcome>) {
    message.sealed.clear();
    const size_t last = sizeof(message.newest_frame);
    return {ToFrame(message).payload.size() - last - sizeof(uint32_t), whole - last};
  }
  if constexpr (std::is_same_v<Message, Decision>) {
    message.durable_copy.clear();
    const size_t before_copy = ToFrame(message).payload.size() - sizeof(uint32_t);
    const size_t before_world = before_copy - sizeof(message.source_world);
    const size_t remote = sizeof(uint32_t) + message.extras.remote.size() +
                          sizeof(message.extras.remote_crc) + sizeof(bool);
    return {before_world - remote, before_world, before_copy};
  }
  if constexpr (std::is_same_v<Message, RestoreRequest>) {
    const size_t last = sizeof(bool) + sizeof(message.at_or_before);
    return {whole - last - sizeof(bool), whole - last};
  }
  if constexpr (std::is_same_v<Message, PlanRequest>) {
    message.allow_shape_mismatch.clear();
    const size_t before_shapes = ToFrame(message).payload.size() - sizeof(uint32_t);
    return {before_shapes - sizeof(bool), before_shapes};
  }
  if constexpr (std::is_same_v<Message, Plan>) {
    message.sources.clear();
    const size_t pages = 2 * sizeof(uint32_t) + sizeof(uint64_t);
    const size_t before_pages = ToFrame(message).payload.size() - pages;
    message.staging_segment.clear();
    const size_t staging = sizeof(uint32_t) + 2 * sizeof(uint64_t);
    return {ToFrame(message).payload.size() - pages - staging, before_pages};
  }
  if constexpr (std::is_same_v<Message, Staged>) {
    return {whole - sizeof(uint32_t) - sizeof(uint64_t)};
  }
  if constexpr (std::is_same_v<Message, Captured>) {
    message.block_crcs.clear();
    return {ToFrame(message).payload.size() - sizeof(uint32_t)};
  }
  return {};
}

TEST(FrameRobustnessTest, NoTruncatedPayloadIsAMessage) {
  ForEachExampleMessage([]<typename Message>(const Message& message) {
    const Frame whole = ToFrame(message);
    const std::set<size_t> earlier = EarlierBytes(message);
    for (size_t bytes = 0; bytes < whole.payload.size(); ++bytes) {
      if (earlier.contains(bytes)) continue;
      const auto cut = FromFrame<Message>({whole.type, whole.payload.substr(0, bytes)});
      EXPECT_EQ(cut.status().code(), absl::StatusCode::kInvalidArgument)
          << FrameTypeName(Message::kType) << " at " << bytes;
    }
  });
}

TEST(FrameRobustnessTest, FlippedBitsNeverCrash) {
  Random random(1);
  ForEachExampleMessage([&]<typename Message>(const Message& message) {
    const std::string payload = ToFrame(message).payload;
    for (int round = 0; round < 2000; ++round) {
      ExpectRefusedOrValid<Message>(FlipBits(random, payload));
    }
  });
}

TEST(FrameRobustnessTest, AnotherTypeIsRefusedByBothNames) {
  const auto message = FromFrame<Hello>(ToFrame(RestoreRequest{1}));
  EXPECT_EQ(message.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message.status().message()),
              ::testing::HasSubstr("needed a frame Hello"));
}

TEST(FrameRobustnessTest, ACountWithoutItsElementsAllocatesNothing) {
  // A PlanRequest that announces 2^32 - 1 tensors and brings none.
  const auto message = FromFrame<PlanRequest>(
      {static_cast<uint16_t>(FrameType::kPlanRequest), std::string(8, '\0') + "\xff\xff\xff\xff"});
  EXPECT_EQ(message.status().code(), absl::StatusCode::kInvalidArgument);
}

// What one rank says of steps is added to, and told to the others.
TEST(FrameRobustnessTest, AStepOrTimelineThatNoJobHasIsNotTaken) {
  const auto refusal = [](Version version) {
    const Skipped skipped{.version = version, .reason = "because"};
    const absl::Status status = FromFrame<Skipped>(ToFrame(skipped)).status();
    return status.ok() ? "taken" : std::string(status.message());
  };
  EXPECT_EQ(refusal({Timeline{kTimelineMax}, Step{kStepMax}}), "taken");
  EXPECT_THAT(refusal({Timeline{1}, Step{UINT64_MAX - 1}}),
              ::testing::AllOf(::testing::HasSubstr("Skipped"),
                               ::testing::HasSubstr("step 18446744073709551614"),
                               ::testing::HasSubstr("largest is 4611686018427387903")));
  EXPECT_THAT(refusal({Timeline{kTimelineMax + 1}, Step{1}}),
              ::testing::HasSubstr("timeline 4611686018427387904"));
  const auto claimed = FromFrame<Claimed>(ToFrame(Claimed{
      .slot = SlotId{1}, .generation = Generation{1}, .version = {Timeline{1}, Step{~0ULL}}}));
  EXPECT_TRUE(absl::IsInvalidArgument(claimed.status())) << claimed.status();
}

SlotView View(PageBuffer& slot) { return *SlotView::Check(slot.span()); }

// Every bit of [offset, offset + bytes) of the example's header, flipped alone.
template <typename F>
void ForEachFlippedBit(size_t offset, size_t bytes, F f) {
  PageBuffer slot = ExampleSlot();
  for (size_t bit = offset * 8; bit < (offset + bytes) * 8; ++bit) {
    std::byte& byte = slot.span()[bit / 8];
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    byte ^= mask;
    f(slot, bit / 8);
    byte ^= mask;
  }
}

TEST(SlotHeaderRobustnessTest, EveryFlippedBitOfTheGeometryIsSeen) {
  ForEachFlippedBit(0, sizeof(SlotGeometry), [](PageBuffer& slot, size_t byte) {
    EXPECT_EQ(SlotView::Check(slot.span()).status().code(), absl::StatusCode::kDataLoss) << byte;
  });
}

TEST(SlotHeaderRobustnessTest, EveryFlippedBitOfTheClaimIsSeen) {
  ForEachFlippedBit(offsetof(SlotHeader, grant), sizeof(SlotGrant), [](PageBuffer& slot, size_t b) {
    EXPECT_EQ(View(slot).CheckedGrant().status().code(), absl::StatusCode::kDataLoss) << b;
    EXPECT_TRUE(View(slot).CheckedSeal().ok()) << b;
  });
}

TEST(SlotHeaderRobustnessTest, EveryFlippedBitOfTheSealIsSeen) {
  ForEachFlippedBit(offsetof(SlotHeader, seal), sizeof(SlotSeal), [](PageBuffer& slot, size_t b) {
    EXPECT_EQ(View(slot).CheckedSeal().status().code(), absl::StatusCode::kDataLoss) << b;
    EXPECT_TRUE(View(slot).CheckedGrant().ok()) << b;
  });
}

TEST(SlotHeaderRobustnessTest, BodiesOfAnotherGenerationAreNotTaken) {
  PageBuffer slot = ExampleSlot();
  View(slot).set_state(Generation{8}, SlotState::kSealed);
  EXPECT_EQ(View(slot).CheckedGrant().status().code(), absl::StatusCode::kDataLoss);
  const absl::Status status = View(slot).CheckedSeal().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("slot 3"), ::testing::HasSubstr("generation 7"),
                               ::testing::HasSubstr("needed 8")));
}

TEST(SlotHeaderRobustnessTest, ASealOverTheCapacitiesIsNotTaken) {
  for (uint64_t SlotSeal::* field :
       {&SlotSeal::data_bytes, &SlotSeal::extras_bytes, &SlotSeal::manifest_bytes}) {
    PageBuffer slot = ExampleSlot();
    View(slot).header().seal.*field = UINT64_MAX;
    SetBodyCrc(View(slot).header().seal);
    EXPECT_EQ(View(slot).CheckedSeal().status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(SlotHeaderRobustnessTest, AClaimWithNumbersThatNoJobHasIsNotTaken) {
  const auto check = [](auto change) {
    PageBuffer slot = ExampleSlot();
    SlotGrant& grant = View(slot).header().grant;
    change(grant);
    SetBodyCrc(grant);
    return View(slot).CheckedGrant().status().code();
  };
  const auto loss = absl::StatusCode::kDataLoss;
  EXPECT_EQ(check([](SlotGrant&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(check([](SlotGrant& c) { c.world = uint64_t{1} << 33; }), loss);
  EXPECT_EQ(check([](SlotGrant& c) { c.rank = c.world; }), loss);
  EXPECT_EQ(check([](SlotGrant& c) { c.timeline = UINT64_MAX; }), loss);
}

TEST(GuardHeaderRobustnessTest, NumbersWhoseProductsOverflowAreNotTaken) {
  PageBuffer guard = ExampleGuard();
  const auto check = [&](auto change) {
    GuardGeometry geometry = ExampleGuardGeometry();
    change(geometry);
    geometry = MakeGuardGeometry(5, geometry.block_bytes, 2000, geometry.chunks,
                                 geometry.sources_max, geometry.positions_max);
    SetBodyCrc(geometry);
    reinterpret_cast<GuardHeader*>(guard.span().data())->geometry = geometry;
    // Nothing behind the header is read: a segment may be as large as that, and have few pages.
    return GuardView::Check(std::span(guard.span().data(), size_t{1} << 46)).status().code();
  };
  EXPECT_EQ(check([](GuardGeometry&) {}), absl::StatusCode::kOk);
  // 2^31 * 2^33 bytes of parities are none.
  EXPECT_EQ(check([](GuardGeometry& g) {
              g.block_bytes = uint32_t{1} << 31;
              g.positions_max = uint64_t{1} << 33;
              g.chunks = 1;
              g.sources_max = 1;
            }),
            absl::StatusCode::kDataLoss);
}

TEST(GuardHeaderRobustnessTest, AClaimOfAVersionThatNoJobHasIsNotTaken) {
  for (uint64_t GuardGrant::* field : {&GuardGrant::step, &GuardGrant::timeline}) {
    PageBuffer guard = ExampleGuard();
    GuardView view = *GuardView::Check(guard.span());
    view.header().grant.*field = UINT64_MAX - 1;
    SetBodyCrc(view.header().grant);
    EXPECT_EQ(view.CheckedGrant().status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(SlotHeaderRobustnessTest, AGeometryThatLiesIsNotTaken) {
  // With a right CRC: a bug or an attack, and no region may lead outside or into the header.
  const auto check = [](auto change) {
    PageBuffer slot = ExampleSlot();
    auto& geometry = reinterpret_cast<SlotHeader*>(slot.span().data())->geometry;
    change(geometry);
    SetBodyCrc(geometry);
    return SlotView::Check(slot.span()).status().code();
  };
  const auto loss = absl::StatusCode::kDataLoss;
  EXPECT_EQ(check([](SlotGeometry&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(check([](SlotGeometry& g) { g.block_bytes = 0; }), loss);
  EXPECT_EQ(check([](SlotGeometry& g) { g.block_bytes = 192; }), loss);
  EXPECT_EQ(check([](SlotGeometry& g) { g.data_capacity += 1; }), loss);
  EXPECT_EQ(check([](SlotGeometry& g) { g.data_capacity += 256; }), loss);
  EXPECT_EQ(check([](SlotGeometry& g) { g.data_capacity = uint64_t{0} - 256; }), loss);
  EXPECT_EQ(check([](SlotGeometry& g) { g.crc_capacity = 3; }), loss);
  for (uint64_t SlotGeometry::* offset :
       {&SlotGeometry::manifest_offset, &SlotGeometry::crc_offset, &SlotGeometry::extras_offset,
        &SlotGeometry::data_offset}) {
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{4097}, uint64_t{1} << 40, uint64_t{0} - 4096}) {
      EXPECT_EQ(check([&](SlotGeometry& g) { g.*offset = value; }), loss) << value;
    }
  }
}

TEST(SlotHeaderRobustnessTest, AShorterSegmentIsRefusedAtEveryLength) {
  PageBuffer slot = ExampleSlot();
  for (size_t bytes = 0; bytes < slot.span().size(); bytes += bytes < 600 ? 1 : 64) {
    EXPECT_EQ(SlotView::Check(slot.span().first(bytes)).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

// The states that a daemon killed while it writes can leave, byte by byte: the newest body that is
// whole holds, and never a mixture.
TEST(NodeHeaderRobustnessTest, AWriteCutAnywhereLeavesThisBodyOrTheOneBefore) {
  PageBuffer before(kNodeSegmentBytes);
  NodeBody body = ExampleNodeBody();
  for (uint64_t step = 1; step <= 3; ++step) {
    PageBuffer after(kNodeSegmentBytes, before.Head(kNodeSegmentBytes));
    body.committed_step = step;
    WriteNodeBody(after.span(), body);
    for (size_t cut = 0; cut <= sizeof(NodeHeader); ++cut) {
      PageBuffer torn(kNodeSegmentBytes, before.Head(kNodeSegmentBytes));
      std::memcpy(torn.span().data(), after.span().data(), cut);
      const auto read = ReadNodeBody(torn.span());
      if (!read.ok()) {
        EXPECT_EQ(step, 1u) << "nothing was there before the first";
        EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
        continue;
      }
      EXPECT_TRUE(read->committed_step == step || read->committed_step == step - 1) << cut;
    }
    before = after;
  }
}

TEST(NodeHeaderRobustnessTest, WhatIsWrittenAfterTheLargestNumberIsRead) {
  PageBuffer node = ExampleNode();
  auto& header = *reinterpret_cast<NodeHeader*>(node.span().data());
  header.body[0].sequence = UINT64_MAX;
  header.body[1].sequence = UINT64_MAX - 1;
  for (NodeBody& body : header.body) SetBodyCrc(body);
  for (uint64_t step = 50; step < 54; ++step) {
    NodeBody body = ExampleNodeBody();
    body.committed_step = step;
    WriteNodeBody(node.span(), body);
    const auto read = ReadNodeBody(node.span());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->committed_step, step);
  }
}

TEST(NodeHeaderRobustnessTest, OneFlippedBitNeverChangesWhatIsRead) {
  PageBuffer node = ExampleNode();
  for (size_t bit = 0; bit < sizeof(NodeHeader) * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    node.span()[bit / 8] ^= mask;
    const auto body = ReadNodeBody(node.span());
    ASSERT_TRUE(body.ok()) << bit << ": " << body.status();
    EXPECT_TRUE(body->committed_step == 40 || body->committed_step == 41) << bit;
    EXPECT_EQ(body->session, 9u);
    node.span()[bit / 8] ^= mask;
  }
}

TEST(ControlPageRobustnessTest, RefusesAnotherMagicRankOrLength) {
  PageBuffer control = ExampleControl();
  EXPECT_EQ(CheckControlPage(control.span(), Rank{1}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckControlPage(control.span().first(255), Rank{2}).status().code(),
            absl::StatusCode::kDataLoss);
  control.span()[0] ^= std::byte{1};
  EXPECT_EQ(CheckControlPage(control.span(), Rank{2}).status().code(), absl::StatusCode::kDataLoss);
}

// A manifest is behind a CRC of its own; this is about what gets past it.
void ExpectManifestRefusedOrValid(const std::string& bytes) {
  const auto manifest = layout::DecodeManifest(bytes);
  if (manifest.ok()) {
    EXPECT_TRUE(layout::DecodeManifest(layout::EncodeManifest(*manifest)).ok());
    return;
  }
  const bool is_expected =
      absl::IsDataLoss(manifest.status()) || absl::IsFailedPrecondition(manifest.status());
  EXPECT_TRUE(is_expected) << manifest.status();
}

TEST(ManifestRobustnessTest, TruncatedAnywhereNeverCrashes) {
  const std::string bytes = layout::EncodeManifest(ExampleManifest());
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    ExpectManifestRefusedOrValid(bytes.substr(0, cut));
}

TEST(ManifestRobustnessTest, FlippedBitsNeverCrash) {
  Random random(2);
  const std::string bytes = layout::EncodeManifest(ExampleManifest());
  for (int round = 0; round < 20000; ++round) ExpectManifestRefusedOrValid(FlipBits(random, bytes));
}

}  // namespace
}  // namespace unreft
