#include "smp/node/export_part.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

constexpr std::chrono::minutes kUnaskedMax(1);

}  // namespace

ExportPart::ExportPart(NodeState& state, Peers& peers, DrainProcess* drain, Ended ended)
    : state_(state), drain_(drain), ended_(std::move(ended)) {
  peers.Answer<CopyPartRequest, CopyPartReply>(
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
        return done(part_->said);
      }
      return done(absl::NotFoundError("its daemon was started anew, and writes no copy"));
    case CopyPartRequest::STOP:
      if (part_ && part_->id == request.id() && drain_ != nullptr) drain_->Stop();
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
  const absl::Status status =
      drain_->Start(request.SerializeAsString(), lifetime_.Bind([this](const std::string& line) {
        CopyPartReply said;
        if (said.ParseFromString(absl::HexStringToBytes(line))) part_->said = std::move(said);
      }),
                    lifetime_.Bind([this] { OnEnded(); }));
  if (!status.ok()) return status;
  part_.emplace(Part{request.id(), {}, state_.seams.executor.Now()});
  part_->said.set_is_running(true);
  return absl::OkStatus();
}

void ExportPart::OnEnded() {
  CopyPartReply& said = part_->said;
  if (said.is_running()) {
    said.set_error("the drain ended without a word: see what the daemon wrote to standard error");
  }
  said.set_is_running(false);
  ended_(part_->id, said);
}

void ExportPart::StopUnasked() {
  const Time now = state_.seams.executor.Now();
  if (!part_ || !part_->said.is_running() || now - part_->asked < kUnaskedMax) return;
  state_.seams.log.Warn("export: nobody asks for this node's part of a copy any more: it is ended");
  part_->asked = now;
  drain_->Stop();
}

}  // namespace unreft::smp
