#include "smp/node/load_part.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/format.h"
#include "base/slot_header.h"
#include "base/text.h"

namespace unreft::smp {
namespace {

constexpr std::chrono::milliseconds kAgainAfter(100);
constexpr std::chrono::minutes kUnaskedMax(1);

SlotNeeds NeedsOf(const CopySlabSize& size) {
  return {.data_bytes = size.data_bytes(),
          .extras_bytes = size.extras_bytes(),
          .manifest_bytes = size.manifest_bytes(),
          .world = size.world()};
}

// What is known of the slab before its manifest is in memory.
std::shared_ptr<const layout::SlotManifest> Outline(const CopySlabSize& size, Version version) {
  layout::SlotManifest manifest;
  manifest.version = version;
  manifest.parent = {Timeline{size.parent_timeline()}, Step{size.parent_step()}};
  manifest.rank = Rank{size.rank()};
  manifest.world = size.world();
  manifest.attempt = Attempt{size.attempt()};
  manifest.block_bytes = static_cast<uint32_t>(size.block_bytes());
  manifest.data_bytes = size.data_bytes();
  manifest.extras_bytes = size.extras_bytes();
  return std::make_shared<const layout::SlotManifest>(std::move(manifest));
}

}  // namespace

LoadPart::LoadPart(NodeState& state, Peers& peers, DrainProcess* drain,
                   absl::AnyInvocable<void()> on_sealed)
    : state_(state), drain_(drain), on_sealed_(std::move(on_sealed)) {
  peers.Answer<CopyPartRequest, CopyPartReply>(
      kLoadPartMethod, [this](NodeSlot, CopyPartRequest request, auto done) {
        OnRequest(std::move(request), std::move(done));
      });
}

LoadPart::~LoadPart() { state_.seams.executor.Cancel(timer_); }

void LoadPart::OnRequest(CopyPartRequest request, Done done) {
  if (request.what() == CopyPartRequest::LOAD) {
    const absl::Status status = Check(request);
    if (!status.ok()) return done(status);
    const std::string id = request.id();
    if (!IsOf(id)) Take(std::move(request));
    return done(Said(id));
  }
  if (request.what() == CopyPartRequest::ASK) {
    if (!IsOf(request.id())) {
      return done(absl::NotFoundError("its daemon was started anew, and loads no copy"));
    }
    return done(Said(request.id()));
  }
  if (request.what() == CopyPartRequest::STOP) {
    if (next_ && next_->id() == request.id()) next_.reset();
    if (load_ && load_->order.id() == request.id()) Stop();
    return done(CopyPartReply());
  }
  done(absl::InvalidArgumentError(fmt::format("load-part: what {} is none that this release knows",
                                              static_cast<int>(request.what()))));
}

bool LoadPart::IsOf(const std::string& id) const {
  return (load_ && load_->order.id() == id) || (next_ && next_->id() == id);
}

CopyPartReply LoadPart::Said(const std::string& id) {
  if (load_ && load_->order.id() == id) {
    load_->asked = state_.seams.executor.Now();
    return load_->said;
  }
  CopyPartReply waits;
  waits.set_is_running(true);
  return waits;
}

// In place of the load before: whoever ordered that leads no longer, or has given it up.
void LoadPart::Take(CopyPartRequest order) {
  next_.reset();
  if (load_) Stop();
  if (load_ && load_->said.is_running()) {
    next_ = std::move(order);
  } else {
    Begin(std::move(order));
  }
}

absl::Status LoadPart::Check(const CopyPartRequest& order) const {
  if (drain_ == nullptr) {
    return absl::FailedPreconditionError("this daemon has no drain, and loads no copies");
  }
  if (NodeSlot{order.node()} != state_.options.node) {
    return absl::InvalidArgumentError(
        fmt::format("the order is for node {}, found node {}", order.node(), state_.options.node));
  }
  return absl::OkStatus();
}

void LoadPart::Begin(CopyPartRequest order) {
  load_ = Load{.order = std::move(order), .asked = state_.seams.executor.Now()};
  load_->said.set_is_running(true);
  const std::vector<Slot*> sealed = state_.slots->Sealed(load_->version());
  for (const uint64_t number : load_->order.ranks()) {
    const Rank rank{number};
    // Of a load that was given up when it had come so far.
    const bool is_there =
        std::ranges::any_of(sealed, [rank](const Slot* slot) { return slot->owner == rank; });
    if (!is_there) load_->slabs[rank];
  }
  state_.seams.executor.Post(lifetime_.Bind([this, id = load_->order.id()] {
    if (load_->order.id() == id && load_->said.is_running()) Describe();
  }));
}

void LoadPart::Stop() {
  if (!load_->said.is_running()) return;
  if (!load_->is_draining) return Fail("it was given up");
  load_->is_stopped = true;
  drain_->Stop();
}

void LoadPart::StopUnasked() {
  if (!load_ || !load_->said.is_running()) return;
  if (state_.seams.executor.Now() - load_->asked >= kUnaskedMax) Stop();
}

void LoadPart::RunDrain(CopyPartRequest order, EndOfDrain on_end) {
  auto last = std::make_shared<CopyPartReply>();
  last->set_error("the drain ended without a word: see what the daemon wrote to standard error");
  const absl::Status status = drain_->Start(
      order.SerializeAsString(), lifetime_.Bind([this, last](const std::string& line) {
        CopyPartReply said;
        if (!said.ParseFromString(absl::HexStringToBytes(line))) return;
        if (said.is_running()) {
          load_->said.set_written(said.written());
          load_->said.set_bytes(said.bytes());
        } else {
          *last = std::move(said);
        }
      }),
      lifetime_.Bind([this, last, on_end] {
        load_->is_draining = false;
        load_->is_stopped ? Fail("it was given up") : (this->*on_end)(*last);
      }));
  load_->is_draining = status.ok();
  if (status.ok()) return;
  if (!absl::IsFailedPrecondition(status)) {
    return Fail(CleanText(std::string(status.message()), kTextBytesMax));
  }
  // It writes a copy, of a version that nobody can restore any more.
  drain_->Stop();
  timer_ = state_.seams.executor.After(
      kAgainAfter, lifetime_.Bind([this, id = load_->order.id(), order = std::move(order), on_end] {
        if (load_->order.id() == id && load_->said.is_running()) RunDrain(order, on_end);
      }));
}

void LoadPart::Describe() {
  if (load_->slabs.empty()) {
    load_->said.set_is_running(false);
    load_->said.set_is_done(true);
    return;
  }
  CopyPartRequest order = load_->order;
  order.set_what(CopyPartRequest::DESCRIBE);
  order.clear_ranks();
  for (const auto& [rank, slab] : load_->slabs) order.add_ranks(rank.value);
  RunDrain(std::move(order), &LoadPart::OnDescribed);
}

void LoadPart::OnDescribed(const CopyPartReply& last) {
  if (!last.is_done()) return Fail(CleanText(last.error(), kTextBytesMax), last.is_damaged());
  for (const CopySlabSize& size : last.sizes()) {
    const auto slab = load_->slabs.find(Rank{size.rank()});
    if (slab != load_->slabs.end()) slab->second.size = size;
  }
  for (const auto& [rank, slab] : load_->slabs) {
    if (slab.size.block_bytes() == state_.options.block_bytes) continue;
    return Fail(fmt::format(
        "the slab of rank {} was saved in blocks of {} bytes, this node has blocks of {}", rank,
        slab.size.block_bytes(), state_.options.block_bytes));
  }
  ProvideAll();
}

void LoadPart::ProvideAll() {
  // Once slots are granted again, what is freed here may be on its way to a commit.
  if (!state_.timeline_closed) return Fail("the decision was made without it");
  for (const auto& [rank, slab] : load_->slabs) {
    if (slab.slot != nullptr) continue;
    if (const absl::Status status = Provide(rank, slab); !status.ok()) {
      return Fail(fmt::format("the slab of rank {}: {}", rank, std::string(status.message())));
    }
  }
  TakeAll();
}

absl::Status LoadPart::Provide(Rank rank, const Slab& slab) {
  const absl::Status status =
      state_.slots->ProvideForRebuild(rank, NeedsOf(slab.size), load_->version());
  const std::vector<Slot*> slots = state_.slots->OfRank(rank);
  const bool will_be = std::ranges::any_of(slots, [](const Slot* slot) {
    return slot->phase == SlotPhase::kFree || slot->phase == SlotPhase::kPopulating ||
           slot->phase == SlotPhase::kDraining;
  });
  if (status.ok() && will_be) return absl::OkStatus();
  if (FreeOne(rank)) return absl::OkStatus();  // which may take a while
  if (!status.ok()) return status;
  return absl::ResourceExhaustedError(
      fmt::format("all of its {} slots have versions that are kept", slots.size()));
}

// The rank's oldest version that is neither committed nor pinned: none that is in memory can be
// restored.
bool LoadPart::FreeOne(Rank rank) {
  Slot* oldest = nullptr;
  for (Slot* slot : state_.slots->OfRank(rank)) {
    if (slot->phase != SlotPhase::kSealed || slot->version == load_->version()) continue;
    if (slot->version == state_.record->committed() || !state_.MayRetire(slot->version)) continue;
    if (oldest == nullptr || slot->version < oldest->version) oldest = slot;
  }
  if (oldest == nullptr) return false;
  state_.slots->Free(*oldest);
  return true;
}

void LoadPart::TakeAll() {
  bool all = true;
  for (auto& [rank, slab] : load_->slabs) {
    if (slab.slot != nullptr) continue;
    slab.slot = state_.slots->TakeForRebuild(rank, Outline(slab.size, load_->version()),
                                             slab.size.manifest_bytes());
    all &= slab.slot != nullptr;
  }
  if (all) return Fill();
  timer_ = state_.seams.executor.After(kAgainAfter, lifetime_.Bind([this, id = load_->order.id()] {
    if (load_->order.id() == id && load_->said.is_running()) ProvideAll();
  }));
}

void LoadPart::Fill() {
  CopyPartRequest order = load_->order;
  order.clear_ranks();
  for (const auto& [rank, slab] : load_->slabs) {
    CopySlot& into = *order.add_into();
    into.set_rank(rank.value);
    into.set_segment(slab.slot->segment->name());
    into.set_generation(slab.slot->generation.value);
  }
  RunDrain(std::move(order), &LoadPart::OnFilled);
}

void LoadPart::OnFilled(const CopyPartReply& last) {
  if (!last.is_done()) return Fail(CleanText(last.error(), kTextBytesMax), last.is_damaged());
  for (const LoadedSlab& loaded : last.loaded()) {
    const auto slab = load_->slabs.find(Rank{loaded.rank()});
    if (slab != load_->slabs.end()) slab->second.loaded = loaded;
  }
  for (auto& [rank, slab] : load_->slabs) {
    const absl::Status status = Seal(rank, slab);
    if (!status.ok()) {
      return Fail(fmt::format("the slab of rank {}: {}", rank, std::string(status.message())));
    }
    state_.seams.log.Info("rank {}: its slab of version {} is back, out of a durable copy", rank,
                          load_->version());
  }
  load_->slabs.clear();
  load_->said.set_is_running(false);
  load_->said.set_is_done(true);
  if (state_.on_slot_change) state_.on_slot_change();
  on_sealed_();
}

absl::Status LoadPart::Seal(Rank rank, Slab& slab) {
  if (!slab.loaded) return absl::InternalError("the drain says nothing of it");
  const LoadedSlab& loaded = *slab.loaded;
  Slot& slot = *slab.slot;
  const std::span<const std::byte> region = slot.view->manifest();
  if (loaded.manifest_bytes() > region.size()) {
    return absl::InternalError(fmt::format("its manifest has {} bytes, the slot has room for {}",
                                           loaded.manifest_bytes(), region.size()));
  }
  const std::string bytes(reinterpret_cast<const char*>(region.data()), loaded.manifest_bytes());
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)));
  if (crc != loaded.manifest_crc()) {
    return absl::DataLossError(
        fmt::format("its manifest has CRC {:08x}, needed {:08x}", crc, loaded.manifest_crc()));
  }
  absl::StatusOr<layout::SlotManifest> manifest = layout::DecodeManifest(bytes);
  if (!manifest.ok()) return manifest.status();
  if (manifest->version != load_->version() || manifest->rank != rank) {
    return absl::DataLossError(fmt::format("its manifest is of version {} of rank {}, needed {}",
                                           manifest->version, manifest->rank, load_->version()));
  }
  slot.manifest = std::make_shared<const layout::SlotManifest>(*std::move(manifest));
  SlotSeal seal;
  seal.layout_digest = loaded.layout_digest();
  seal.data_bytes = loaded.data_bytes();
  seal.extras_bytes = loaded.extras_bytes();
  seal.manifest_bytes = loaded.manifest_bytes();
  seal.extras_crc = loaded.extras_crc();
  seal.manifest_crc = loaded.manifest_crc();
  seal.crc_table_crc = loaded.crc_table_crc();
  slot.SealRebuilt(seal);
  slab.slot = nullptr;  // it is nobody's to free any more
  return absl::OkStatus();
}

void LoadPart::Fail(const std::string& why, bool is_damaged) {
  for (auto& [rank, slab] : load_->slabs) {
    if (slab.slot != nullptr) state_.slots->Free(*std::exchange(slab.slot, nullptr));
  }
  load_->slabs.clear();
  load_->said.set_is_running(false);
  load_->said.set_error(why);
  load_->said.set_is_damaged(is_damaged);
  state_.seams.log.Error("version {} is not loaded out of {}: {}", load_->version(),
                         CleanText(load_->order.directory(), kTextBytesMax), why);
  if (!next_) return;
  CopyPartRequest next = *std::exchange(next_, std::nullopt);
  Begin(std::move(next));
}

}  // namespace unreft::smp
