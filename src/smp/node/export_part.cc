#include "smp/node/export_part.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

constexpr std::chrono::minutes kUnaskedMax(1);

}  // namespace

ExportPart::ExportPart(NodeState& state, Sources sources, DrainProcess* drain, Ended ended)
    : state_(state), sources_(std::move(sources)), drain_(drain), ended_(std::move(ended)) {
  sources_.peers.Answer<CopyPartRequest, CopyPartReply>(
      kCopyPartMethod, [this](NodeSlot, CopyPartRequest request, auto done) {
        OnRequest(request, std::move(done));
      });
}

void ExportPart::OnRequest(const CopyPartRequest& request, Done done) {
  switch (request.what()) {
    case CopyPartRequest::LOOK:
      return done(Look({Timeline{request.timeline()}, Step{request.step()}}));
    case CopyPartRequest::START: {
      const absl::Status status = Start(request);
      if (!status.ok()) return done(status);
      return done(CopyPartReply());
    }
    case CopyPartRequest::ASK:
      if (part_ && part_->id == request.id()) {
        part_->asked = state_.seams.executor.Now();
        if (decoded_ != nullptr && !part_->is_draining) {
          part_->said.set_written(decoded_->decoded_bytes());
          part_->said.set_bytes(decoded_->bytes());
        }
        return done(part_->said);
      }
      return done(absl::NotFoundError("its daemon was started anew, and writes no copy"));
    case CopyPartRequest::STOP:
      if (part_ && part_->id == request.id()) Stop();
      return done(CopyPartReply());
    default:
      return done(absl::InvalidArgumentError(fmt::format(
          "copy-part: what {} is none that this release knows", static_cast<int>(request.what()))));
  }
}

CopyPartReply ExportPart::Look(Version version) const {
  CopyPartReply reply;
  for (const Slot* slot : state_.slots->All()) {
    if (slot->phase != SlotPhase::kSealed || slot->version != version) continue;
    reply.add_ranks(slot->owner.value);
    reply.set_world(std::max(reply.world(), slot->world));
  }
  return reply;
}

absl::Status ExportPart::Start(const CopyPartRequest& request) {
  if (drain_ == nullptr) {
    return absl::FailedPreconditionError("this daemon has no drain, and writes no copies");
  }
  if (NodeSlot{request.node()} != state_.options.node) {
    return absl::InvalidArgumentError(fmt::format("the order is for node {}, found node {}",
                                                  request.node(), state_.options.node));
  }
  if (part_ && part_->is_draining) {
    return absl::FailedPreconditionError(
        "this node is at work on a copy, or about to end: try again once it has");
  }
  if (part_ && part_->said.is_running()) {
    return absl::FailedPreconditionError("this node decodes what is lost for another copy");
  }
  if (request.decode().empty()) return StartDrain(request);
  Decode(request);
  return absl::OkStatus();
}

void ExportPart::Decode(const CopyPartRequest& request) {
  std::vector<recovery::SlabHolder> holders;
  for (const CopyHolder& of : request.holders()) {
    recovery::SlabHolder& holder = holders.emplace_back();
    holder.slot = NodeSlot{of.slot()};
    for (const uint64_t rank : of.ranks()) holder.ranks.push_back(Rank{rank});
    holder.lost = of.is_lost();
  }
  std::set<Rank> ranks;
  for (const uint64_t rank : request.decode()) ranks.insert(Rank{rank});
  const Version version{Timeline{request.timeline()}, Step{request.step()}};
  state_.seams.log.Info(
      "export: the slabs of ranks [{}] of version {} are decoded, no node has "
      "them any more",
      fmt::join(request.decode(), ", "), version);
  part_.emplace(Part{request.id(), {}, state_.seams.executor.Now()});
  part_->said.set_is_running(true);
  decoded_ = std::make_unique<DecodedSlabs>(
      state_, sources_.peers, sources_.job, sources_.own, version, std::move(holders),
      std::move(ranks), [this, request](const absl::StatusOr<DecodedSlabs::Segments>& segments) {
        OnDecoded(request, segments);
      });
}

void ExportPart::OnDecoded(CopyPartRequest request,
                           const absl::StatusOr<DecodedSlabs::Segments>& segments) {
  absl::Status status = segments.status();
  if (status.ok()) {
    for (const auto& [rank, name] : *segments) {
      CopySlot& slot = *request.add_decoded();
      slot.set_rank(rank.value);
      slot.set_segment(name);
    }
    request.clear_holders();
    status = StartDrain(request);
  }
  if (status.ok()) return;
  part_->said.set_error(std::string(status.message()));
  End();
}

absl::Status ExportPart::StartDrain(const CopyPartRequest& request) {
  const absl::Status status =
      drain_->Start(request.SerializeAsString(), lifetime_.Bind([this](const std::string& line) {
        CopyPartReply said;
        if (said.ParseFromString(absl::HexStringToBytes(line))) part_->said = std::move(said);
      }),
                    lifetime_.Bind([this] { OnDrainEnded(); }));
  if (!status.ok()) return status;
  part_.emplace(Part{request.id(), {}, state_.seams.executor.Now(), true});
  part_->said.set_is_running(true);
  return absl::OkStatus();
}

void ExportPart::Stop() {
  if (!part_->said.is_running()) return;
  if (part_->is_draining) return drain_->Stop();
  part_->said.set_error("it was cancelled");
  End();
}

void ExportPart::OnDrainEnded() {
  if (part_->said.is_running()) {
    part_->said.set_error(
        "the drain ended without a word: see what the daemon wrote to standard error");
  }
  End();
}

void ExportPart::End() {
  part_->said.set_is_running(false);
  part_->is_draining = false;
  if (decoded_ != nullptr) {
    decoded_->Cancel();
    retired_.push_back(std::move(decoded_));
  }
  ended_(part_->id, part_->said);
}

void ExportPart::Tick() {
  std::erase_if(retired_, [](const auto& decoded) { return decoded->idle(); });
  const Time now = state_.seams.executor.Now();
  if (!part_ || !part_->said.is_running() || now - part_->asked < kUnaskedMax) return;
  state_.seams.log.Warn("export: nobody asks for this node's part of a copy any more: it is ended");
  part_->asked = now;
  Stop();
}

}  // namespace unreft::smp
