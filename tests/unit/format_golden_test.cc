// The formats do not change by accident: what is written today has the bytes of tests/golden, and
// the bytes of tests/golden are read. UNREFT_UPDATE_GOLDEN=1 writes the files anew.
//
// A *_format2 file is what a later release may write that readers of format 1 must still take
// (format 2, minimum reader 1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "base/crc32c.h"
#include "meta/record_copy.h"
#include "tests/unit/format_testing.h"

namespace unreft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string GoldenPath(const std::string& name) {
  const char* source = std::getenv("UNREFT_SOURCE_DIR");
  return std::string(source == nullptr ? "." : source) + "/tests/golden/" + name + ".bin";
}

std::string Golden(const std::string& name) {
  std::ifstream file(GoldenPath(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << GoldenPath(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Compares what is written now; in update mode makes it the golden file.
void ExpectGolden(const std::string& name, const std::string& bytes) {
  if (std::getenv("UNREFT_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(GoldenPath(name), std::ios::binary) << bytes;
  }
  const std::string golden = Golden(name);
  ASSERT_EQ(bytes.size(), golden.size()) << name;
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], golden[i]) << name << ", byte " << i;
  }
}

PageBuffer GoldenSlot(const std::string& name) {
  return {SlotSegmentBytes(ExampleGeometry()), Golden(name)};
}

absl::Status SlotOfFormat(uint16_t format, uint16_t min_reader) {
  PageBuffer slot = ExampleSlot();
  auto& geometry = reinterpret_cast<SlotHeader*>(slot.span().data())->geometry;
  geometry.format = format;
  geometry.min_reader = min_reader;
  SetBodyCrc(geometry);
  if (min_reader == 1) ExpectGolden("slot_header_format2", slot.Head(sizeof(SlotHeader)));
  return SlotView::Check(slot.span()).status();
}

TEST(GoldenTest, SlotHeader) {
  ExpectGolden("slot_header", ExampleSlot().Head(sizeof(SlotHeader)));
  PageBuffer slot = GoldenSlot("slot_header");
  const auto view = SlotView::Check(slot.span());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->geometry().slot_id, 3u);
  EXPECT_EQ(view->geometry().incarnation, ExampleId(0x20));
  EXPECT_EQ(view->state().generation, Generation{7});
  EXPECT_EQ(view->state().state, SlotState::kSealed);
  EXPECT_EQ(view->CheckedGrant()->pid, 4711);
  EXPECT_EQ(view->CheckedSeal()->step, 41u);
}

TEST(GoldenTest, SlotHeaderOfALaterFormat) {
  EXPECT_TRUE(SlotOfFormat(2, 1).ok());
  PageBuffer slot = GoldenSlot("slot_header_format2");
  const auto view = SlotView::Check(slot.span());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->CheckedSeal()->step, 41u);

  const absl::Status refused = SlotOfFormat(3, 2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("format 3"), HasSubstr("readers of 2"), HasSubstr("knows 1")));
}

PageBuffer GuardOfFormat(uint16_t format, uint16_t min_reader) {
  PageBuffer guard = ExampleGuard();
  auto& geometry = reinterpret_cast<GuardHeader*>(guard.span().data())->geometry;
  geometry.format = format;
  geometry.min_reader = min_reader;
  SetBodyCrc(geometry);
  return guard;
}

TEST(GoldenTest, GuardHeader) {
  ExpectGolden("guard_header", ExampleGuard().Head(sizeof(GuardHeader)));
  PageBuffer guard(GuardSegmentBytes(ExampleGuardGeometry()), Golden("guard_header"));
  const auto view = GuardView::Check(guard.span());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->geometry().guard_id, 5u);
  EXPECT_EQ(view->geometry().incarnation, ExampleId(0x20));
  EXPECT_EQ(view->generation(), Generation{7});
  EXPECT_EQ(view->state(), GuardState::kComplete);
  EXPECT_EQ(view->CheckedGrant()->step, 41u);
  EXPECT_EQ(view->CheckedSeal()->record_bytes, 1234u);
}

TEST(GoldenTest, GuardHeaderOfALaterFormat) {
  ExpectGolden("guard_header_format2", GuardOfFormat(2, 1).Head(sizeof(GuardHeader)));
  PageBuffer guard(GuardSegmentBytes(ExampleGuardGeometry()), Golden("guard_header_format2"));
  const auto view = GuardView::Check(guard.span());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->CheckedGrant()->step, 41u);

  const absl::Status refused = GuardView::Check(GuardOfFormat(3, 2).span()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("format 3"), HasSubstr("readers of 2"), HasSubstr("knows 1")));
}

PageBuffer NodeOfFormat(uint16_t format, uint16_t min_reader) {
  PageBuffer node(kNodeSegmentBytes);
  NodeBody body = ExampleNodeBody();
  WriteNodeBody(node.span(), body);
  body.format = format;
  body.min_reader = min_reader;
  WriteNodeBody(node.span(), body);
  return node;
}

TEST(GoldenTest, NodeHeader) {
  ExpectGolden("node_header", ExampleNode().Head(sizeof(NodeHeader)));
  PageBuffer node(kNodeSegmentBytes, Golden("node_header"));
  const auto body = ReadNodeBody(node.span());
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(body->sequence, 2u);
  EXPECT_EQ(body->committed_step, 41u);
  EXPECT_EQ(body->capture_began, 1u);
  EXPECT_EQ(body->captures_all, 0u);
  EXPECT_EQ(body->view, 0u);
  EXPECT_EQ(body->decision[1].parent_step, 40u);
}

TEST(GoldenTest, NodeHeaderOfALaterFormat) {
  ExpectGolden("node_header_format2", NodeOfFormat(2, 1).Head(sizeof(NodeHeader)));
  PageBuffer node(kNodeSegmentBytes, Golden("node_header_format2"));
  const auto body = ReadNodeBody(node.span());
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(body->format, 2u);
  EXPECT_EQ(body->committed_step, 41u);

  const auto refused = ReadNodeBody(NodeOfFormat(3, 2).span());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("format 3"), HasSubstr("readers of 2"), HasSubstr("knows 1")));
}

meta::JobState ExampleRecords() {
  meta::JobState job;
  job.store_id = "0123456789abcdef";
  SeedRecord& seed = job.seed.value;
  seed.set_store_id(job.store_id);
  seed.set_epoch(3);
  job.seed.modified = meta::Revision{7};
  ViewRecord& view = job.view.value;
  view.set_number(2);
  view.add_members()->set_slot(0);
  job.view.modified = meta::Revision{7};
  job.view.bytes = view.SerializeAsString();
  CommitRecord& commit = job.commit.value;
  commit.set_timeline(2);
  commit.set_step(41);
  commit.set_world(4);
  job.commit.modified = meta::Revision{9};
  job.commit.bytes = commit.SerializeAsString();
  return job;
}

TEST(GoldenTest, RecordCopy) {
  ExpectGolden("record_copy", meta::EncodeCopy(ExampleRecords()));
  const std::string bytes = Golden("record_copy");
  const auto copy = meta::DecodeCopy(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->stamp, (meta::Stamp{3, 9}));
  EXPECT_EQ(copy->store_id, "0123456789abcdef");
  EXPECT_EQ(copy->records.view.value.number(), 2u);
  EXPECT_EQ(copy->records.commit.value.step(), 41u);
  EXPECT_FALSE(copy->records.timeline.exists());
}

TEST(GoldenTest, RecordCopyOfALaterFormat) {
  std::string bytes = meta::EncodeCopy(ExampleRecords());
  const auto set_format = [&bytes](uint16_t format, uint16_t min_reader) {
    std::memcpy(bytes.data() + offsetof(meta::CopyHeader, format), &format, sizeof(format));
    std::memcpy(bytes.data() + offsetof(meta::CopyHeader, min_reader), &min_reader,
                sizeof(min_reader));
    meta::SealCopy(bytes);
  };
  set_format(2, 1);
  ExpectGolden("record_copy_format2", bytes);
  EXPECT_TRUE(meta::DecodeCopy(std::as_bytes(std::span(bytes))).ok());
  set_format(3, 2);
  const auto refused = meta::DecodeCopy(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("format 3"), HasSubstr("readers of 2"), HasSubstr("knows 1")));
  bytes[offsetof(meta::CopyHeader, min_reader)] ^= 1;
  EXPECT_EQ(meta::DecodeCopy(std::as_bytes(std::span(bytes))).status().code(),
            absl::StatusCode::kDataLoss)
      << "a bit that has turned";
}

TEST(GoldenTest, ControlPage) {
  ExpectGolden("control_page", ExampleControl().Head(sizeof(ControlPage)));
  PageBuffer control(kControlSegmentBytes, Golden("control_page"));
  const auto page = CheckControlPage(control.span(), Rank{2});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(GrantWord::Decode((*page)->grant.load()),
            (GrantWord{GrantState::kClaimed, SlotId{3}, Generation{7}}));
  EXPECT_EQ((*page)->capture_from.load(), 42u);
  EXPECT_EQ(ProgressWord::Decode((*page)->progress.load()).blocks, 11u);
  EXPECT_EQ(ProgressWord::Decode((*page)->progress.load()).generation_low, 7u);
}

TEST(GoldenTest, ControlPageOfALaterFormat) {
  PageBuffer control = ExampleControl();
  auto* page = reinterpret_cast<ControlPage*>(control.span().data());
  page->format = 2;
  ExpectGolden("control_page_format2", control.Head(sizeof(ControlPage)));
  PageBuffer golden(kControlSegmentBytes, Golden("control_page_format2"));
  EXPECT_TRUE(CheckControlPage(golden.span(), Rank{2}).ok());

  page->format = 3;
  page->min_reader = 2;
  const auto refused = CheckControlPage(control.span(), Rank{2});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("rank 2"), HasSubstr("format 3"), HasSubstr("knows 1")));
}

// The golden frame of a message's type, taken from the stream and decoded.
template <typename Message>
absl::StatusOr<Message> ReadGoldenFrame(const std::string& suffix = "") {
  const std::string stream = Golden("frame_" + std::string(FrameTypeName(Message::kType)) + suffix);
  FrameDecoder decoder(1 << 20);
  auto bytes = std::as_bytes(std::span(stream));
  auto frame = decoder.Next(bytes);
  if (!frame.ok()) return frame.status();
  if (!frame->has_value()) return absl::InvalidArgumentError("not a whole frame");
  return FromFrame<Message>(**frame);
}

TEST(GoldenTest, EveryFrameOfTheSession) {
  size_t types = 0;
  ForEachExampleMessage([&]<typename Message>(const Message& message) {
    SCOPED_TRACE(FrameTypeName(Message::kType));
    ++types;
    EXPECT_EQ(static_cast<size_t>(Message::kType), types) << "an example for every type, in order";
    const std::string stream = StreamBytes(ToFrame(message));
    ExpectGolden("frame_" + std::string(FrameTypeName(Message::kType)), stream);
    const auto decoded = ReadGoldenFrame<Message>();
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(StreamBytes(ToFrame(*decoded)), stream);
  });
  EXPECT_EQ(types, kMessageTypes);
  EXPECT_EQ(FrameTypeName(static_cast<FrameType>(kMessageTypes + 1)), "frame")
      << "a new type needs an example";
}

TEST(GoldenTest, AFrameOfALaterFormatWithAFieldMore) {
  Frame frame = ToFrame(RestoreRequest{12});
  frame.payload += "a later field";
  std::string stream = StreamBytes(frame);
  stream[4] = 2;  // format; the minimum reader stays 1
  uint32_t crc = Crc32c(std::as_bytes(std::span(stream)).first(16));
  crc = Crc32cExtend(crc, std::as_bytes(std::span(stream)).subspan(kFrameHeaderBytes));
  std::memcpy(stream.data() + 16, &crc, sizeof(crc));
  ExpectGolden("frame_RestoreRequest_format2", stream);
  const auto decoded = ReadGoldenFrame<RestoreRequest>("_format2");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->request, 12u);
}

// As daemons wrote it before there was `sealed`; never written again.
TEST(GoldenTest, AWelcomeThatEndsBeforeItsAppendedFields) {
  const auto decoded = ReadGoldenFrame<Welcome>("_before_sealed");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->daemon_version, "0.1.0");
  EXPECT_TRUE(decoded->sealed.empty());

  // As daemons wrote it that did not say what they know; never written again.
  const auto later = ReadGoldenFrame<Welcome>("_before_newest_frame");
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->sealed.size(), 1u);
  EXPECT_EQ(later->newest_frame, 0u);

  // An appended field that begins must be whole.
  Frame cut = ToFrame(Welcome{.sealed = {WireSlot{}}});
  cut.payload.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(FromFrame<Welcome>(cut).status()));
}

// As daemons of one node wrote them; never written again.
TEST(GoldenTest, ADecisionAndAPlanThatEndBeforeWhatIsRemote) {
  const auto decision = ReadGoldenFrame<Decision>("_before_remote");
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->extras.slot.segment, "/unreft.gpt.0.slot3");
  EXPECT_FALSE(decision->extras.has_remote);
  const auto plan = ReadGoldenFrame<Plan>("_before_staged");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pieces.size(), 2u);
  EXPECT_EQ(plan->staged_bytes, 0u);
  EXPECT_EQ(plan->staging_segment, "");
}

// As clients and daemons wrote them that restored what as many ranks had saved; never written
// again.
TEST(GoldenTest, ARequestAndADecisionThatEndBeforeTheWorld) {
  EXPECT_FALSE(ReadGoldenFrame<RestoreRequest>("_before_any_world")->any_world);
  const auto decision = ReadGoldenFrame<Decision>("_before_source_world");
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->extras.remote, "extras");
  EXPECT_EQ(decision->source_world, 0u);
}

// As daemons wrote it that restored from memory alone; never written again.
TEST(GoldenTest, ADecisionThatEndsBeforeTheDurableCopy) {
  const auto decision = ReadGoldenFrame<Decision>("_before_durable_copy");
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->source_world, 4u);
  EXPECT_EQ(decision->durable_copy, "");
}

// As clients wrote it that restored the newest version; never written again.
TEST(GoldenTest, ARequestThatEndsBeforeTheStep) {
  const auto request = ReadGoldenFrame<RestoreRequest>("_before_at_or_before");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->any_world);
  EXPECT_FALSE(request->has_at_or_before);
}

// As clients wrote it that restored the stored shapes alone; never written again.
TEST(GoldenTest, APlanRequestThatEndsBeforeWhatMayDiffer) {
  const auto request = ReadGoldenFrame<PlanRequest>("_before_allow_shape_mismatch");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->reads_pages);
  EXPECT_TRUE(request->allow_shape_mismatch.empty());
}

// As clients and daemons wrote them that know no pages; never written again.
TEST(GoldenTest, ARequestAPlanAndABlockThatEndBeforeThePages) {
  EXPECT_FALSE(ReadGoldenFrame<PlanRequest>("_before_pages")->reads_pages);
  const auto plan = ReadGoldenFrame<Plan>("_before_pages");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->staged_bytes, 576u);
  EXPECT_TRUE(plan->sources.empty());
  EXPECT_EQ(plan->paged_pieces, 0u);
  const auto staged = ReadGoldenFrame<Staged>("_before_pages");
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->pieces.size(), 1u);
  EXPECT_EQ(staged->block, 0u);
}

// As clients before device_checksum wrote it; never written again.
TEST(GoldenTest, ACapturedThatEndsBeforeItsBlocksCrcs) {
  const auto captured = ReadGoldenFrame<Captured>("_before_block_crcs");
  ASSERT_TRUE(captured.ok()) << captured.status();
  EXPECT_EQ(captured->replica_digests, (std::vector<uint32_t>{0xd1, 0xd2}));
  EXPECT_TRUE(captured->block_crcs.empty());
}

TEST(GoldenTest, FieldsOfAFrameComeBack) {
  EXPECT_EQ(ReadGoldenFrame<Welcome>()->sealed.at(0).segment, "/unreft.gpt.0.slot3");
  EXPECT_EQ(ReadGoldenFrame<Welcome>()->newest_frame, 26u);
  EXPECT_TRUE(ReadGoldenFrame<EverCommitted>()->ever);
  EXPECT_EQ(ReadGoldenFrame<Obstacle>()->what, "rank 2 of 4 has not registered");
  EXPECT_EQ(ReadGoldenFrame<Hello>()->life, (ProcessLife{4711, 123456}));
  const auto decision = ReadGoldenFrame<Decision>();
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->version, (Version{Timeline{5}, Step{41}}));
  EXPECT_EQ(decision->tensors.at(0).spec, Spec("w", {4, 8}, {2, 0}, {2, 8}, 1, 2));
  EXPECT_EQ(decision->extras.slot.segment, "/unreft.gpt.0.slot3");
  EXPECT_EQ(ReadGoldenFrame<Captured>()->replica_digests, (std::vector<uint32_t>{0xd1, 0xd2}));
  EXPECT_EQ(ReadGoldenFrame<Captured>()->block_crcs, (std::vector<uint32_t>{0xb1}));
  EXPECT_EQ(decision->extras.remote, "extras");
  EXPECT_EQ(decision->extras.remote_crc, 0xe1u);
  EXPECT_TRUE(decision->extras.has_remote);
  EXPECT_EQ(decision->source_world, 4u);
  EXPECT_EQ(decision->durable_copy, "/mnt/ckpt/timeline-5-step-41");
  EXPECT_TRUE(ReadGoldenFrame<RestoreRequest>()->any_world);
  EXPECT_EQ(ReadGoldenFrame<RestoreRequest>()->at_or_before, Step{40});
  EXPECT_EQ(ReadGoldenFrame<ExtrasRequest>()->rank, Rank{3});
  EXPECT_EQ(ReadGoldenFrame<Extras>()->extras.remote, "extras");
  EXPECT_EQ(ReadGoldenFrame<Plan>()->staged_bytes, 576u);
  const auto staged = ReadGoldenFrame<Staged>();
  ASSERT_TRUE(staged.ok());
  EXPECT_EQ(staged->crc, 0xc5u);
  EXPECT_EQ(staged->pieces.at(0).target_offset, 576u);
  EXPECT_TRUE(staged->last);
  EXPECT_EQ(staged->block, 7u);
  EXPECT_TRUE(ReadGoldenFrame<PlanRequest>()->reads_pages);
  EXPECT_EQ(ReadGoldenFrame<PlanRequest>()->allow_shape_mismatch, std::vector<uint32_t>{0});
  EXPECT_TRUE(ReadGoldenFrame<Plan>()->sources.at(1).is_staged());
  EXPECT_EQ(ReadGoldenFrame<PlanPage>()->pieces.at(1).target_pitch, 128u);
  EXPECT_TRUE(absl::IsDataLoss(ReadGoldenFrame<StagedDone>()->status.ToStatus()));
  EXPECT_EQ(ReadGoldenFrame<RestoreDone>()->status.ToStatus(),
            absl::DataLossError("slot 3: block 5 does not verify"));
}

TEST(GoldenTest, Manifest) {
  const std::string bytes = layout::EncodeManifest(ExampleManifest());
  ExpectGolden("manifest", bytes);
  const auto manifest = layout::DecodeManifest(Golden("manifest"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, ExampleManifest());
}

TEST(GoldenTest, ManifestOfALaterFormat) {
  layout::SlotManifest later = ExampleManifest();
  later.format = 2;
  // A field that this release does not know: number 100, a varint.
  ExpectGolden("manifest_format2", layout::EncodeManifest(later) + std::string("\xa0\x06\x2a"));
  const auto manifest = layout::DecodeManifest(Golden("manifest_format2"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, later);
}

}  // namespace
}  // namespace unreft
