#include "tests/unit/snapshot/scripted_daemon.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "layout/tensor_table.h"

namespace unreft::snapshot {
ScriptedDaemon::ScriptedDaemon(MakeListener make_listener, SegmentStore& segments,
                               ProcessLife trainer, std::string job)
    : make_listener_(std::move(make_listener)),
      segments_(segments),
      trainer_(trainer),
      prefix_(SegmentPrefix(job, 0)) {
  decision = Decision{.kind = DecisionKind::kFresh, .timeline = timeline};
  MakeControl();
}

ScriptedDaemon::~ScriptedDaemon() {
  (void)segments_.Remove(prefix_ + "control");
  for (const auto& [id, slot] : slots_) (void)segments_.Remove(slot.name);
}

void ScriptedDaemon::MakeControl() {
  control_segment_ = *segments_.Create(prefix_ + "control", kControlSegmentBytes);
  UNREFT_CHECK(control_segment_->Reserve(0, kControlSegmentBytes).ok());
  control_ = &FormatControlPage(control_segment_->bytes(), Rank{0});
}

void ScriptedDaemon::Listen() {
  listener_ = make_listener_();
  listener_->Start([this](std::unique_ptr<Channel> channel, PeerIdentity) {
    ++connections;
    channel_ = std::move(channel);
    channel_->Start([this](const Frame& frame) { OnFrame(frame); }, [](const absl::Status&) {});
  });
}

void ScriptedDaemon::Die() {
  listener_.reset();
  channel_.reset();
}

void ScriptedDaemon::MakeSlots(int count, uint64_t data_bytes, RandomId incarnation) {
  for (uint64_t id = 0; id < static_cast<uint64_t>(count); ++id) {
    ScriptedSlot& slot = slots_[id];
    slot.name = prefix_ + "slot" + std::to_string(id);
    if (slot.segment) UNREFT_CHECK(segments_.Remove(slot.name).ok());
    SlotGeometry geometry =
        MakeSlotGeometry(SlotId{id}, kBlockBytes, 4096, extras_capacity, data_bytes);
    geometry.incarnation = incarnation;
    const uint64_t bytes = SlotSegmentBytes(geometry);
    slot.segment = *segments_.Create(slot.name, bytes);
    UNREFT_CHECK(slot.segment->Reserve(0, bytes).ok());
    slot.view = FormatSlot(slot.segment->bytes(), geometry);
    // What was there before does not read as zeros.
    std::memset(slot.view->data().data(), 0xee, slot.view->data().size());
  }
}

void ScriptedDaemon::Grant(uint64_t id, uint64_t generation) {
  SlotView& view = *slots_.at(id).view;
  SlotGrant grant;
  grant.generation = generation;
  grant.world = 1;
  grant.pid = trainer_.pid;
  grant.start_time = trainer_.start_time;
  grant.timeline = timeline.value;
  SetBodyCrc(grant);
  view.header().grant = grant;
  view.set_state(Generation{generation}, SlotState::kCapturing);
  control_->grant.store(
      GrantWord{GrantState::kGranted, SlotId{id}, Generation{generation}}.Encode());
}

bool ScriptedDaemon::TakeBackGrant(uint64_t id, uint64_t generation) {
  uint64_t word = GrantWord{GrantState::kGranted, SlotId{id}, Generation{generation}}.Encode();
  return control_->grant.compare_exchange_strong(word, GrantWord{}.Encode());
}

void ScriptedDaemon::Seal(const Captured& captured) {
  SlotView& view = *slots_.at(captured.slot.value).view;
  SlotSeal seal;
  seal.generation = captured.generation.value;
  seal.timeline = captured.version.timeline.value;
  seal.step = captured.version.step.value;
  seal.layout_digest = captured.layout_digest;
  seal.data_bytes = captured.data_bytes;
  seal.extras_bytes = captured.extras_bytes;
  const uint64_t blocks = BlockCount(captured.data_bytes, kBlockBytes);
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint32_t crc = Crc32c(view.block(i));
    std::memcpy(view.crc_table().data() + i * sizeof(crc), &crc, sizeof(crc));
  }
  seal.crc_table_crc = Crc32c(view.crc_table().first(blocks * sizeof(uint32_t)));
  seal.extras_crc = Crc32c(view.extras().first(captured.extras_bytes));
  SetBodyCrc(seal);
  view.header().seal = seal;
  view.set_state(captured.generation, SlotState::kSealed);
}

WireSlot ScriptedDaemon::Where(uint64_t id) const {
  const ScriptedSlot& slot = slots_.at(id);
  return {SlotId{id}, slot.view->state().generation, slot.name};
}

void ScriptedDaemon::SendRegistered() {
  const auto table = layout::TensorTable::Create(FromWire(registration_->tensors));
  Registered answer{
      .request = registration_->request,
      .status = register_status,
      .control_segment = prefix_ + "control",
      .capture_mode = static_cast<uint8_t>(mode),
      .layout_digest = layout_digest.value_or(layout::CapturePlan::Make(*table, mode).digest()),
      .block_bytes = kBlockBytes,
      .replica_check_every = replica_check_every};
  for (const auto& [id, slot] : slots_) {
    if (not_offered.contains(id)) continue;
    const SlotGeometry& geometry = slot.view->geometry();
    answer.slots.push_back({SlotId{id}, slot.name, geometry.extras_offset, geometry.extras_capacity,
                            geometry.data_offset, geometry.data_capacity});
  }
  Send(answer);
}

void ScriptedDaemon::SendPlan(uint64_t request) {
  constexpr size_t kPagePieces = 2;
  if (!plan_status.ok()) return Send(Plan{.request = request, .status = plan_status});
  if (!plan) return;
  const std::vector<PlanPiece>& pieces = plan->pieces;
  for (size_t at = 0; at < pieces.size(); at += kPagePieces) {
    const auto begin = pieces.begin() + static_cast<ptrdiff_t>(at);
    const auto end = begin + static_cast<ptrdiff_t>(std::min(kPagePieces, pieces.size() - at));
    Send(PlanPage{request, {begin, end}});
  }
  Send(Plan{.request = request,
            .staging_segment = plan->staging_segment,
            .staging_bytes = plan->staging_bytes,
            .staged_bytes = plan->staged_bytes,
            .sources = plan->sources,
            .paged_pieces = pieces.size(),
            .block_bytes = plan->block_bytes});
}

void ScriptedDaemon::OnFrame(const Frame& frame) {
  frames.push_back(frame);
  Answer(frame);
  if (on_frame) on_frame(frame);
}

void ScriptedDaemon::Answer(const Frame& frame) {
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kHello:
      if (refused) return Send(*refused);
      return Send(Welcome{
          .timeline = timeline,
          .block_bytes = kBlockBytes,
          .sealed = sealed,
          .newest_frame = static_cast<uint16_t>(knows == FrameType::kHello ? FrameType{} : knows)});
    case FrameType::kEverCommittedRequest:
      if (!ever_committed) return;
      ever_committed->request = FromFrame<EverCommittedRequest>(frame)->request;
      return Send(*ever_committed);
    case FrameType::kExtrasRequest: {
      const ExtrasRequest request = *FromFrame<ExtrasRequest>(frame);
      const auto stored = extras.find(request.rank);
      if (stored == extras.end()) {
        return Send(Extras{.request = request.request,
                           .status = absl::OutOfRangeError("there was no such rank")});
      }
      return Send(Extras{.request = request.request, .extras = stored->second});
    }
    case FrameType::kRestoreRequest:
      if (!decision) return;
      decision->request = FromFrame<RestoreRequest>(frame)->request;
      return Send(*decision);
    case FrameType::kPlanRequest:
      return SendPlan(FromFrame<PlanRequest>(frame)->request);
    case FrameType::kRegister:
      registration_ = *FromFrame<Register>(frame);
      if (answers_register) SendRegistered();
      return;
    default:
      return;
  }
}

}  // namespace unreft::snapshot
